//! What a host must have before a machine can be started or protected here.
//!
//! Each check tries the thing itself where that is possible, rather than a version, and says what to do.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::spec::Spec;
use super::{HostError, Result};

pub(super) const TRACKING_HINT: &str = "Use Linux 6.7 or later, built with CONFIG_USERFAULTFD and \
    CONFIG_PTE_MARKER_UFFD_WP, and see that no seccomp filter of a container forbids userfaultfd.";

/// What the kernel must offer: asynchronous write protection, of pages that are not there yet, of shared memory.
const FEATURES: u64 = 1 << 15 | 1 << 13 | 1 << 12;
const USERFAULTFD_API: u64 = 0xAA;
const USER_MODE_ONLY: libc::c_int = 1;

/// `struct uffdio_api`
#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(userfaultfd_api, 0xAA, 0x3F, Api);

/// True if the machine of `spec` can be started here and its writes be tracked.
///
/// # Errors
/// `Unfit`, with what to do.
pub fn check(spec: &Spec) -> Result<()> {
    check_architecture(std::env::consts::ARCH)?;
    check_program(&spec.qemu)?;
    for file in [&spec.kernel, &spec.initrd] {
        let missing = || format!("there is no {}", file.display());
        if !file.is_file() {
            return Err(HostError::unfit(
                missing(),
                "Make an image with \"understudy vm create\".",
            ));
        }
    }
    check_kernel()?;
    check_memory(&spec.memory_dir, spec.memory)
}

fn check_architecture(architecture: &str) -> Result<()> {
    if architecture == "x86_64" {
        return Ok(());
    }
    let what = format!("machines run on hosts of x86-64, and this one is of {architecture}");
    Err(HostError::unfit(what, "Use another host."))
}

fn check_program(qemu: &Path) -> Result<()> {
    if nix::unistd::access(qemu, nix::unistd::AccessFlags::X_OK).is_ok() {
        return Ok(());
    }
    let what = format!("there is no QEMU at {}", qemu.display());
    Err(HostError::unfit(
        what,
        "Install it (Debian: apt-get install qemu-system-x86), or set its path.",
    ))
}

/// The version of a QEMU, without that of its package: `7.2.22`.
///
/// # Errors
/// If it does not say it.
pub fn version(qemu: &Path) -> Result<String> {
    let said = std::process::Command::new(qemu)
        .arg("--version")
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| HostError::system(format!("cannot run {}", qemu.display()), e))?;
    let said = String::from_utf8_lossy(&said.stdout);
    number(&said).map(str::to_owned).ok_or_else(|| {
        let what = format!("{} does not say its version", qemu.display());
        HostError::unfit(what, "Set the path of QEMU.")
    })
}

fn number(said: &str) -> Option<&str> {
    let (_, after) = said.split_once("version ")?;
    after.split_whitespace().next()
}

/// Asks the kernel whether it tracks writes asynchronously.
fn check_kernel() -> Result<()> {
    // SAFETY: the system call takes flags alone.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    let refused = |what: &str, error: std::io::Error| {
        HostError::unfit(format!("the kernel {what} ({error})"), TRACKING_HINT)
    };
    let descriptor = i32::try_from(made).unwrap_or(-1);
    if descriptor < 0 {
        return Err(refused(
            "gives this process no userfaultfd",
            std::io::Error::last_os_error(),
        ));
    }
    // SAFETY: the kernel just made it, for nobody else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut api = Api {
        api: USERFAULTFD_API,
        features: FEATURES,
        ioctls: 0,
    };
    // SAFETY: the structure is the kernel's and lives through the call.
    unsafe { userfaultfd_api(descriptor.as_raw_fd(), &raw mut api) }
        .map_err(|error| refused("does not track writes to shared memory", error.into()))?;
    Ok(())
}

/// True if a directory can hold the memory of a machine, beside what is in it.
fn check_memory(directory: &Path, bytes: u64) -> Result<()> {
    // It is made when the machine is started.
    let existing = directory
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    let about = statfs(existing)
        .map_err(|e| HostError::system(format!("cannot look at {}", existing.display()), e))?;
    if about.filesystem_type() != TMPFS_MAGIC {
        let what = format!(
            "{} is not in memory, as a machine's memory must be",
            directory.display()
        );
        return Err(HostError::unfit(
            what,
            "Choose a directory of a tmpfs, such as /dev/shm.",
        ));
    }
    // A tmpfs without a limit says 0 of 0.
    let block = about.block_size().cast_unsigned();
    let free = about.blocks_available().saturating_mul(block);
    if about.blocks() > 0 && free < bytes {
        let what = format!(
            "{} has {} MiB free, and the machine needs {} MiB",
            existing.display(),
            free >> 20,
            bytes >> 20
        );
        let hint = format!(
            "Give the machine less memory, or: mount -o remount,size=... {}",
            existing.display()
        );
        return Err(HostError::unfit(what, hint));
    }
    Ok(())
}

/// A page of a file that is swapped out has no place for the mark whether it was written, and what a kernel says of it
/// then is not promised. So pages are locked if the host swaps.
pub(super) fn check_swap(locked: bool) -> Result<()> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    check_swaps(locked, &swaps)
}

fn check_swaps(locked: bool, swaps: &str) -> Result<()> {
    // The first line is a heading.
    let swapping = swaps.lines().nth(1).is_some();
    if locked || !swapping {
        return Ok(());
    }
    let what = "this host swaps, and QEMU may not lock the machine's memory, so that writes to it could be missed";
    let hint =
        "Raise the limit of locked memory (LimitMEMLOCK=infinity in the unit), or: swapoff -a";
    Err(HostError::unfit(what, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_must_be_in_memory_and_large_enough() {
        check_memory(Path::new("/dev/shm/not/there/yet"), 1 << 20).unwrap();
        let error = check_memory(Path::new("/dev/shm"), 1 << 50).unwrap_err();
        assert!(error.to_string().contains("MiB free"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("remount")));
        let error = check_memory(Path::new("/proc"), 1).unwrap_err();
        assert!(
            error.hint().is_some_and(|hint| hint.contains("tmpfs")),
            "{error}"
        );
    }

    #[test]
    fn swapped_pages_are_locked_or_refused() {
        const SWAPS: &str = "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n";
        check_swaps(true, SWAPS).unwrap();
        check_swaps(false, "Filename Type Size Used Priority\n").unwrap();
        check_swaps(false, "").unwrap();
        let error = check_swaps(false, SWAPS).unwrap_err();
        assert!(
            error.is_of_this_host() && error.hint().is_some_and(|hint| hint.contains("swapoff"))
        );
    }

    #[test]
    fn missing_requirements_are_named() {
        let error = check_program(Path::new("/nonexistent/qemu")).unwrap_err();
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("qemu-system-x86"))
        );
        check_architecture("x86_64").unwrap();
        check_architecture("aarch64").unwrap_err();
    }
}
