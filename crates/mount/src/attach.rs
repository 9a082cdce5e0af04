//! Attaching a FUSE device to a directory and taking it away again: mount(2) where we may, the
//! set-user-id helper fusermount3 otherwise.
//!
//! fuser could mount by itself; done here because unmounting must not hit a newer mount at the same
//! path, must fall back to a lazy or forced unmount, and because refusals deserve a remedy.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::{getegid, geteuid};

use crate::error::{Error, Result};

const DEVICE: &str = "/dev/fuse";

/// The source column of the mount table.
const SOURCE: &str = "understudy";

/// The type column of the mount table.
const KIND: &str = "fuse.understudy";

/// The variable in which fusermount3 finds the number of the socket to answer on.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts on `path`, an existing directory, and returns the device to serve.
pub(crate) fn attach(path: &Path, allow_other: bool) -> Result<OwnedFd> {
    if !Path::new(DEVICE).exists() {
        return Err(Error::DeviceMissing);
    }
    if !geteuid().is_root() {
        return attach_by_helper(path, allow_other);
    }
    match attach_by_kernel(path, allow_other) {
        // A root without CAP_SYS_ADMIN (container); the helper may have what we lack.
        Err(Error::Denied { path, source }) => {
            attach_by_helper(&path, allow_other).map_err(|_| Error::Denied { path, source })
        }
        other => other,
    }
}

fn attach_by_kernel(path: &Path, allow_other: bool) -> Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device: File = device.map_err(|e| match e.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Error::DeviceMissing,
        Some(Errno::EPERM | Errno::EACCES) => Error::DeviceDenied(e),
        _ => Error::io("open", DEVICE)(e),
    })?;
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        geteuid(),
        getegid()
    );
    if allow_other {
        options.push_str(",allow_other");
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    nix::mount::mount(Some(SOURCE), path, Some(KIND), flags, Some(&*options)).map_err(|e| {
        let source = io::Error::from(e);
        match e {
            Errno::EPERM | Errno::EACCES => Error::Denied {
                path: path.to_path_buf(),
                source,
            },
            Errno::ENODEV => Error::DeviceMissing,
            _ => Error::io("mount on", path)(source),
        }
    })?;
    Ok(device.into())
}

fn attach_by_helper(path: &Path, allow_other: bool) -> Result<OwnedFd> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Error::HelperMissing,
        _ => Error::io("run fusermount3 for", path)(e),
    };
    let (ours, theirs) = UnixStream::pair().map_err(&failed)?;
    let mut options =
        "default_permissions,noatime,nosuid,nodev,fsname=understudy,subtype=understudy".to_owned();
    if allow_other {
        options.push_str(",allow_other");
    }
    // Standard input is the socket to answer on: it is the one descriptor a child inherits as is.
    let output = run_helper(|command| {
        command
            .args(["-o", &options, "--"])
            .arg(path)
            .env(SOCKET_VARIABLE, "0");
        Ok(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
    })
    .map_err(&failed)?;
    drop(theirs);
    if !output.status.success() {
        return Err(refusal(path, &output));
    }
    receive_device(&ours).map_err(Error::io("receive the device from fusermount3 for", path))
}

fn refusal(path: &Path, output: &Output) -> Error {
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("user_allow_other") {
        return Error::AllowOtherDenied;
    }
    if message.contains(DEVICE) && message.contains("ermission denied") {
        return Error::DeviceDenied(io::Error::other(message));
    }
    Error::HelperRefused {
        path: path.to_path_buf(),
        message,
    }
}

/// Runs fusermount3, or fusermount where that is its name.
fn run_helper(prepare: impl Fn(&mut Command) -> io::Result<Stdio>) -> io::Result<Output> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for name in ["fusermount3", "/bin/fusermount3", "fusermount"] {
        let mut command = Command::new(name);
        let stdin = prepare(&mut command)?;
        match command.stdin(stdin).output() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => last = e,
            other => return other,
        }
    }
    Err(last)
}

fn receive_device(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(descriptor) = descriptors.first()
        {
            // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(*descriptor) });
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "no descriptor in the answer",
    ))
}

/// Unmounts; fails with `EBUSY` while processes use the mount.
pub(crate) fn unmount(path: &Path) -> io::Result<()> {
    unmount_with(path, MntFlags::empty(), &["-u"])
}

/// Takes the mount out of the tree; it ends when the last process stops using it.
pub(crate) fn detach(path: &Path) -> io::Result<()> {
    unmount_with(path, MntFlags::MNT_DETACH, &["-u", "-z"])
}

/// As [`detach`], and fails all requests that wait, if we have the privilege.
pub(crate) fn force(path: &Path) -> io::Result<()> {
    unmount_with(
        path,
        MntFlags::MNT_DETACH | MntFlags::MNT_FORCE,
        &["-u", "-z"],
    )
}

fn unmount_with(path: &Path, flags: MntFlags, helper: &[&str]) -> io::Result<()> {
    match nix::mount::umount2(path, flags | MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EPERM) => {}
        other => return other.map_err(io::Error::from),
    }
    let output = run_helper(|command| {
        command.args(helper).arg("--").arg(path);
        Ok(Stdio::null())
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(Errno::EBUSY.into());
    }
    Err(io::Error::other(message))
}
