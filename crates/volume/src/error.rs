//! The error of file operations. `mount` translates it to errno in one table.

use dax::error::{Error as DaxError, ErrorKind as DaxErrorKind};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file operation failed; each variant has one errno.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such file, directory or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// A file was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has names.
    #[error("directory not empty")]
    NotEmpty,
    /// The operation would leave the volume (a symbolic link out of it, H11).
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// A rename or link between shared and private names.
    #[error("cross-device link")]
    CrossDevice,
    /// A name longer than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// Arguments that are invalid.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Not offered.
    #[error("not supported")]
    NotSupported,
    /// Larger than a file can be.
    #[error("file too large")]
    TooLarge,
    /// More hard links than a file can have.
    #[error("too many links")]
    TooManyLinks,
    /// The storage said no; its kind tells what to do.
    #[error(transparent)]
    Storage(#[from] DaxError),
    /// Local disk (private files, spill) failed.
    #[error("local disk: {0}")]
    Local(#[from] std::io::Error),
    /// The claim of this standby was given up, so what it stands on may be gone: it must attach afresh.
    #[error("this standby's claim was given up: what it stands on may not be kept any more")]
    ClaimLost,
    /// The image that was asked for was not kept, or was given up while a pin on it was being made.
    #[error("the image is not kept any more: choose another one")]
    NotKept,
    /// A stored journal, snapshot or seal is invalid.
    #[error("damaged volume: {0}")]
    Damaged(String),
}

impl Error {
    /// True if a higher epoch exists, which is final.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Error::Storage(e) if e.kind() == DaxErrorKind::Fenced)
    }
}
