//! Why a mount cannot be started, each with a hint what to do about it.

use std::io;
use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a mount cannot be started, switched or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/dev/fuse` does not exist.
    #[error("/dev/fuse is missing")]
    DeviceMissing,
    /// `/dev/fuse` exists and may not be opened.
    #[error("/dev/fuse may not be opened")]
    DeviceDenied(#[source] io::Error),
    /// An ordinary user needs the set-user-id helper.
    #[error("fusermount3 is missing")]
    HelperMissing,
    /// fusermount3 refused; its own message follows.
    #[error("fusermount3 refused to mount on {path}: {message}")]
    HelperRefused {
        /// The mount point.
        path: PathBuf,
        /// What fusermount3 said.
        message: String,
    },
    /// An ordinary user asked for `allow_other`.
    #[error("other users may not be let in")]
    AllowOtherDenied,
    /// The kernel refused the mount for lack of privilege.
    #[error("the kernel refused to mount on {path}")]
    Denied {
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The mount point does not exist.
    #[error("mount point {0} does not exist")]
    MountPointMissing(PathBuf),
    /// The mount point is something else than a directory.
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    /// The mount point has names in it, which the mount would hide.
    #[error("mount point {0} is not empty")]
    NotEmpty(PathBuf),
    /// Something alive is mounted there.
    #[error("{path} is in use by a mount of type {kind}")]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// The file system type.
        kind: String,
    },
    /// The view that is shown lets the kernel cache; another cannot take its place.
    #[error("the mounted view lets the kernel cache names and pages, so it cannot be replaced")]
    CachingView,
    /// Anything else.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// What its operator can do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::DeviceMissing => {
                "Load the module (modprobe fuse), or start the container with --device /dev/fuse."
            }
            Error::DeviceDenied(_) => {
                "Let users open it (chmod 666 /dev/fuse), run as root, or start the container with --device /dev/fuse \
                 --cap-add SYS_ADMIN."
            }
            Error::HelperMissing => "Install fuse3, or run as root.",
            Error::AllowOtherDenied => {
                "Add user_allow_other to /etc/fuse.conf, or mount without allow_other."
            }
            Error::Denied { .. } => {
                "Run as root, or give the container --cap-add SYS_ADMIN (and an AppArmor profile that allows \
                 mounts)."
            }
            Error::MountPointMissing(path) => {
                return Some(format!("Create it: mkdir -p {}", path.display()));
            }
            Error::NotDirectory(_) => "Choose another path.",
            Error::NotEmpty(_) => "Choose an empty directory.",
            Error::AlreadyMounted { path, .. } => {
                return Some(format!("Unmount it first: umount {}", path.display()));
            }
            Error::CachingView => "Unmount it, and start again.",
            _ => return None,
        };
        Some(hint.to_owned())
    }

    /// An [`Error::Io`], for `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io {
            action,
            path,
            source,
        }
    }
}
