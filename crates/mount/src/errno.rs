//! The one table from errors of file operations to errno, and where they are logged.
//!
//! PostgreSQL tells apart few of them: `ENOENT` and `EEXIST` steer it, `ENOSPC` becomes a disk-full
//! error, anything else fails the operation, and any failed fsync is a PANIC. So an error that
//! waiting could cure should not get here: views wait while too few zones answer.

use std::sync::atomic::{AtomicBool, Ordering};

use dax::error::ErrorKind;
use fuser::Errno;
use tracing::{debug, error, warn};
use volume::error::Error;

/// The errno for an error.
pub fn errno_of(e: &Error) -> Errno {
    match e {
        Error::NotFound => Errno::ENOENT,
        Error::Exists => Errno::EEXIST,
        Error::NotDirectory => Errno::ENOTDIR,
        Error::IsDirectory => Errno::EISDIR,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::NotPermitted(_) => Errno::EPERM,
        Error::CrossDevice => Errno::EXDEV,
        Error::NameTooLong => Errno::ENAMETOOLONG,
        Error::Invalid(_) => Errno::EINVAL,
        Error::NotSupported => Errno::EOPNOTSUPP,
        Error::TooLarge => Errno::EFBIG,
        Error::TooManyLinks => Errno::EMLINK,
        Error::Storage(e) => errno_of_storage(e.kind()),
        Error::Local(e) => e.raw_os_error().map_or(Errno::EIO, Errno::from_i32),
        Error::Damaged(_) => Errno::EIO,
        // The enum may grow; an error this table does not know is one nobody can act on.
        _ => Errno::EIO,
    }
}

/// What is said of an inode that the kernel found by a name and that is gone: the name may lead elsewhere now, and
/// `ESTALE` has the kernel look. `ENOENT` it hands on as the answer, though there was a file at every moment.
pub(crate) fn stale(e: Error) -> Error {
    match e {
        Error::NotFound => Error::Local(std::io::Error::from_raw_os_error(Errno::ESTALE.code())),
        other => other,
    }
}

/// The errno for what the storage said.
fn errno_of_storage(kind: ErrorKind) -> Errno {
    match kind {
        // Final: for this writer the volume is read-only from now on.
        ErrorKind::Fenced => Errno::EROFS,
        ErrorKind::Full => Errno::ENOSPC,
        // Views wait instead; who gets this asked not to.
        ErrorKind::Unavailable => Errno::EIO,
        // A block, record or peer that is not what it must be says nothing about the file's name:
        // never ENOENT, which PostgreSQL takes for an answer.
        ErrorKind::Corrupt
        | ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::Invalid
        | ErrorKind::Protocol
        | ErrorKind::Denied => Errno::EIO,
        _ => Errno::EIO,
    }
}

/// Logs errors as they become replies: once where repeating says nothing new.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    fenced: AtomicBool,
    full: AtomicBool,
}

impl ErrorLog {
    /// Logs an error of `operation` as far as an operator must see it, and returns its errno.
    pub(crate) fn reply(&self, operation: &'static str, e: &Error) -> Errno {
        let errno = errno_of(e);
        match e {
            Error::Storage(s) => self.log_storage(operation, s),
            Error::Damaged(_) => error!(operation, error = %e, "the volume is damaged"),
            Error::Local(io) if errno.code() == Errno::EIO.code() => {
                error!(operation, error = %io, "local disk failed");
            }
            _ => debug!(operation, error = %e, errno = errno.code(), "refused"),
        }
        errno
    }

    fn log_storage(&self, operation: &'static str, e: &dax::error::Error) {
        let cause = std::error::Error::source(e).map(tracing::field::display);
        match e.kind() {
            ErrorKind::Fenced => {
                if !self.fenced.swap(true, Ordering::Relaxed) {
                    warn!(operation, error = %e, "a newer epoch owns the volume: this mount stays read-only");
                }
            }
            ErrorKind::Full => {
                if !self.full.swap(true, Ordering::Relaxed) {
                    warn!(operation, error = %e, "a zone is full: make room");
                }
            }
            ErrorKind::Unavailable => {
                debug!(operation, error = %e, cause, "too few zones answer");
            }
            ErrorKind::Corrupt => error!(operation, error = %e, cause, "stored data is damaged"),
            _ => error!(operation, error = %e, cause, "the storage answered something unexpected"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn storage(kind: ErrorKind) -> Error {
        Error::Storage(dax::error::Error::new(kind, "test"))
    }

    #[test]
    fn every_error_has_its_errno() {
        let table = [
            (Error::NotFound, nix::libc::ENOENT),
            (Error::Exists, nix::libc::EEXIST),
            (Error::NotDirectory, nix::libc::ENOTDIR),
            (Error::IsDirectory, nix::libc::EISDIR),
            (Error::NotEmpty, nix::libc::ENOTEMPTY),
            (Error::NotPermitted("x"), nix::libc::EPERM),
            (Error::CrossDevice, nix::libc::EXDEV),
            (Error::NameTooLong, nix::libc::ENAMETOOLONG),
            (Error::Invalid("x"), nix::libc::EINVAL),
            (Error::NotSupported, nix::libc::EOPNOTSUPP),
            (Error::TooLarge, nix::libc::EFBIG),
            (Error::TooManyLinks, nix::libc::EMLINK),
            (Error::Damaged("x".into()), nix::libc::EIO),
            (
                Error::Local(io::Error::from_raw_os_error(nix::libc::ENOSPC)),
                nix::libc::ENOSPC,
            ),
            (Error::Local(io::Error::other("no number")), nix::libc::EIO),
            (storage(ErrorKind::Fenced), nix::libc::EROFS),
            (storage(ErrorKind::Unavailable), nix::libc::EIO),
            (storage(ErrorKind::Corrupt), nix::libc::EIO),
            (storage(ErrorKind::Full), nix::libc::ENOSPC),
            (storage(ErrorKind::NotFound), nix::libc::EIO),
            (storage(ErrorKind::Conflict), nix::libc::EIO),
            (storage(ErrorKind::Invalid), nix::libc::EIO),
            (storage(ErrorKind::Protocol), nix::libc::EIO),
            (storage(ErrorKind::Denied), nix::libc::EIO),
        ];
        let log = ErrorLog::default();
        for (error, errno) in table {
            assert_eq!(errno_of(&error).code(), errno, "{error:?}");
            assert_eq!(log.reply("test", &error).code(), errno, "{error:?}");
        }
    }
}
