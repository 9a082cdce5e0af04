//! The errors of backups, by where they come from.

use volume::lsn::Lsn;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the volume in the zones.
    #[error("the volume cannot be read")]
    Volume(#[from] volume::error::Error),
    /// Of the zones themselves.
    #[error("the zones cannot be read")]
    Zones(#[from] dax::error::Error),
    /// Of what nodes leave there.
    #[error("the registry cannot be read")]
    Registry(#[from] coordination::records::RecordError),
    /// Of the object store.
    #[error("the repository cannot be used")]
    Store(#[from] object_store::Error),
    /// An operation of this machine's system failed; the text says which.
    #[error("{0}")]
    System(String, #[source] std::io::Error),
    /// An object is not what was written.
    #[error("{object} of the repository is damaged: {why}")]
    Damaged {
        /// Name of the object in the repository.
        object: String,
        /// Fault that was found.
        why: String,
    },
    /// An object is not there.
    #[error("{0} of the repository is missing")]
    Missing(String),
    /// The repository belongs to another database, or has a format or a key that is not known here: no try will help.
    #[error("{0}")]
    NotOurs(String),
    /// An expiry removes pieces: a copy waits until it has ended.
    #[error(
        "an expiry removes pieces of the repository: copies wait until it has ended, or for five minutes if it was killed"
    )]
    Expiring,
    /// It cannot be done like this.
    #[error("{0}")]
    Refused(String),
    /// No image can be restored to where it was asked for.
    #[error(
        "the repository does not reach {wanted}: from the image at {from} on its log goes to {to}"
    )]
    OutOfReach {
        /// The moment that was asked for.
        wanted: String,
        /// Where the image ends.
        from: Lsn,
        /// Where its log ends.
        to: Lsn,
    },
}

/// The result of most of this room's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this machine, with what was tried.
    pub(crate) fn system(tried: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let tried = tried.into();
        move |error| Error::System(tried, error)
    }

    pub(crate) fn damaged(object: impl Into<String>, why: impl ToString) -> Error {
        Error::Damaged {
            object: object.into(),
            why: why.to_string(),
        }
    }
}
