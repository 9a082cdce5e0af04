//! What it means that the key-value store or the system refused.
//!
//! Invariant: only contents that are not what was written count as damage; whatever else the system says may pass.

use std::path::Path;

use super::EngineError;
use crate::error::OpenError;

/// What a read that failed means: wrong contents are damage; whatever else the system says may pass, and nobody knows
/// what is there.
pub(super) fn meaning(error: fjall::Error) -> EngineError {
    match (&error, system_error(&error)) {
        (fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted, _) => failed(error),
        (_, Some(source)) if !is_corruption(source) => EngineError::Unreadable(error.into()),
        _ => EngineError::Damaged(error.into()),
    }
}

pub(super) fn failed(error: fjall::Error) -> EngineError {
    EngineError::Store(error.into())
}

/// What the store could not do while it was opened.
pub(super) fn not_opened(dir: &Path, error: fjall::Error) -> OpenError {
    match is_other_version(&error) {
        true => not_understood(dir, error),
        false => meaning(error).at_open(dir),
    }
}

/// True if its files are of another version of the store than this program has.
fn is_other_version(error: &fjall::Error) -> bool {
    matches!(
        error,
        fjall::Error::InvalidVersion(Some(_))
            | fjall::Error::Storage(fjall::LsmError::InvalidVersion(_))
    )
}

/// Something is there, whole, that this program does not understand.
pub(super) fn not_understood(
    dir: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> OpenError {
    OpenError::NotUnderstood {
        dir: dir.into(),
        source: source.into(),
    }
}

/// What the system said, if it was the system.
fn system_error(error: &fjall::Error) -> Option<&std::io::Error> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        source = cause.source();
    }
    None
}

pub(super) fn unusable(dir: &Path, source: std::io::Error) -> OpenError {
    OpenError::Directory {
        dir: dir.into(),
        source,
    }
}

pub(super) fn damaged(
    dir: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> OpenError {
    OpenError::Damaged {
        dir: dir.into(),
        source: source.into(),
    }
}

/// Input errors that mean wrong contents rather than a file that cannot be used.
fn is_corruption(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::InvalidInput
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn wrong_contents_alone_are_damage() {
        let system = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
        for errno in [Errno::EIO, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            for error in [
                fjall::Error::Io(system(errno)),
                fjall::Error::Storage(system(errno).into()),
            ] {
                assert!(meaning(error).may_pass(), "{errno}");
            }
        }
        let cut_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        for error in [
            fjall::Error::Storage(cut_short().into()),
            fjall::Error::InvalidTrailer,
        ] {
            assert!(matches!(meaning(error), EngineError::Damaged(_)));
        }
        let newer = fjall::Error::Storage(fjall::LsmError::InvalidVersion(9));
        let text = not_opened(Path::new("zone"), newer).to_string();
        assert!(!text.contains("away") && text.contains("newer"), "{text}");
        assert!(matches!(
            meaning(fjall::Error::Poisoned),
            EngineError::Store(_)
        ));
    }
}
