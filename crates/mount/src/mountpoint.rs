//! Mount points: whether one can be used, what is mounted there, getting rid of a dead mount.
//!
//! Invariant: a mount is only ever taken away by device number, never by path alone, so that a
//! newer mount at the same path survives the end of an older one.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use tracing::info;

use crate::attach;
use crate::error::{Error, Result};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountInfo {
    /// `major:minor` of the file system.
    pub(crate) device: String,
    /// Where it is mounted.
    pub(crate) path: PathBuf,
    /// The type, such as `fuse.understudy`.
    pub(crate) kind: String,
}

impl MountInfo {
    fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// Takes away a FUSE mount at `path` whose process is gone ("Transport endpoint is not
/// connected"), if there is one; says whether there was. [`crate::Mount::start`] does this first.
///
/// # Errors
/// [`Error::AlreadyMounted`] if something alive is mounted there, [`Error::Io`] if the dead mount
/// cannot be taken away.
pub fn detach_stale(path: &Path) -> Result<bool> {
    let mut found = false;
    // Dead mounts can be piled up, one per crash.
    while let Some(top) = find_mounted(path)? {
        if !top.is_fuse() || !is_dead(&top.path) {
            return Err(Error::AlreadyMounted {
                path: top.path,
                kind: top.kind,
            });
        }
        attach::detach(&top.path).map_err(Error::io("detach the dead mount on", &top.path))?;
        info!(path = %top.path.display(), "removed a mount that a dead process had left behind");
        found = true;
    }
    Ok(found)
}

/// Checks that `path` is an empty directory, and returns it without symbolic links.
pub(crate) fn check_usable(path: &Path) -> Result<PathBuf> {
    let missing = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Error::MountPointMissing(path.to_path_buf()),
        _ => Error::io("look at mount point", path)(source),
    };
    let path = path.canonicalize().map_err(missing)?;
    if !path.is_dir() {
        return Err(Error::NotDirectory(path));
    }
    let mut names = fs::read_dir(&path).map_err(Error::io("read mount point", &path))?;
    if names.next().is_some() {
        return Err(Error::NotEmpty(path));
    }
    Ok(path)
}

/// What is mounted on top at exactly this path, which has no symbolic links. Asks only the table,
/// never whoever serves the mount.
pub(crate) fn mounted_at(path: &Path) -> Result<Option<MountInfo>> {
    const TABLE: &str = "/proc/self/mountinfo";
    let table = fs::read(TABLE).map_err(Error::io("read", TABLE))?;
    let last = table
        .split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .rfind(|mount| mount.path == path);
    Ok(last)
}

/// What is mounted on top at this path, which may be a dead mount or lead to one.
fn find_mounted(path: &Path) -> Result<Option<MountInfo>> {
    let absolute = std::path::absolute(path).map_err(Error::io("resolve", path))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return mounted_at(&absolute);
    };
    let Ok(parent) = parent.canonicalize() else {
        return Ok(None); // nothing can be mounted in a directory that does not exist
    };
    // A mount point is not a symbolic link, so look in the table before asking the mount.
    let path = parent.join(name);
    if let Some(mount) = mounted_at(&path)? {
        return Ok(Some(mount));
    }
    match fs::read_link(&path) {
        Ok(target) => find_mounted(&parent.join(target)),
        Err(_) => Ok(None),
    }
}

/// True if nobody serves the mount any more. Asks for the room, which the kernel never answers by
/// itself; attributes it may remember.
fn is_dead(path: &Path) -> bool {
    matches!(
        nix::sys::statvfs::statvfs(path),
        Err(Errno::ENOTCONN | Errno::ECONNABORTED)
    )
}

fn parse_line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let path = fields.nth(1)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some(MountInfo {
        device: String::from_utf8(device.to_vec()).ok()?,
        path: PathBuf::from(unescape(path)),
        kind: String::from_utf8(kind.to_vec()).ok()?,
    })
}

/// Undoes mountinfo's `\040` for bytes that would break its lines.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// True if an unmount failed only because processes still use the mount.
pub(crate) fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::EBUSY as i32)
}

/// The number under which the kernel's FUSE control directory knows a device: its own encoding.
pub(crate) fn connection_number(device: &str) -> Option<u64> {
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
    Some((major << 20) | minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = br"36 35 0:57 / /mnt/a\040b rw,noatime shared:1 master:2 - fuse.understudy understudy rw,user_id=0";
        let mount = parse_line(line).unwrap();
        assert_eq!(mount.device, "0:57");
        assert_eq!(mount.path, Path::new("/mnt/a b"));
        assert_eq!(mount.kind, "fuse.understudy");
        assert!(mount.is_fuse());
        assert_eq!(parse_line(b""), None);
        let bare = parse_line(b"1 0 8:1 / / rw - ext4 /dev/sda rw").unwrap();
        assert!(!bare.is_fuse());
    }

    #[test]
    fn numbers_of_connections() {
        assert_eq!(connection_number("0:57"), Some(57));
        assert_eq!(connection_number("0:300"), Some(300));
        assert_eq!(connection_number("x"), None);
    }

    #[test]
    fn unusable_mount_points() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(matches!(
            check_usable(&missing),
            Err(Error::MountPointMissing(_))
        ));
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(check_usable(&file), Err(Error::NotDirectory(_))));
        assert!(matches!(check_usable(dir.path()), Err(Error::NotEmpty(_))));
        fs::remove_file(&file).unwrap();
        assert!(check_usable(dir.path()).is_ok());
    }

    #[test]
    fn nothing_stale_on_a_plain_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!detach_stale(dir.path()).unwrap());
        assert!(matches!(
            detach_stale(Path::new("/proc")),
            Err(Error::AlreadyMounted { .. })
        ));
    }
}
