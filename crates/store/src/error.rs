//! What can go wrong when a zone is opened or starts to serve, each with what to do about it.

use std::path::PathBuf;

/// A zone cannot be opened, or cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the directory open.
    #[error(
        "{} is in use by another zone server; stop it first, or give this one a directory of its own",
        dir.display()
    )]
    Locked {
        /// The zone's directory.
        dir: PathBuf,
    },
    /// The directory cannot be created, read or written.
    #[error("cannot use {} for a zone; check that it exists and who may write to it", dir.display())]
    Directory {
        /// The zone's directory.
        dir: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the zone cannot be read or written at present.
    #[error(
        "the zone's files in {} cannot be used at present; they may be intact: solve what the system reports, then \
         start the zone again", dir.display()
    )]
    Engine {
        /// The zone's directory.
        dir: PathBuf,
        /// What the system says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The files are not what this program wrote.
    #[error(
        "the zone's files in {} are damaged; move the directory away and start with an empty one: \
         the other zones bring it up to date",
        dir.display()
    )]
    Damaged {
        /// The zone's directory.
        dir: PathBuf,
        /// What the engine or the decoder says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is there is what was written, as far as checksums tell, and this program does not understand it.
    #[error(
        "the zone in {} has something that this program does not understand; it may be intact: start the release that \
         wrote it, or a newer one", dir.display()
    )]
    NotUnderstood {
        /// The zone's directory.
        dir: PathBuf,
        /// What the decoder says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The directory was written by a version this one cannot read.
    #[error(
        "the zone in {} has format {found}, this program reads format {expected}: start the release that wrote it, or a \
         newer one", dir.display()
    )]
    Format {
        /// The zone's directory.
        dir: PathBuf,
        /// The format that is there.
        found: String,
        /// The format this program writes.
        expected: String,
    },
    /// The address is taken.
    #[error("{address} is already in use; stop what listens there, or choose another address")]
    AddressInUse {
        /// The address as given.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; use host:port or unix:/path")]
    Address {
        /// The address as given.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file that says which network to emulate cannot be read or is invalid.
    #[error("cannot use the network file {}", path.display())]
    Network {
        /// Path of the network file.
        path: PathBuf,
        /// What is wrong with it.
        source: crate::network::file::NetworkError,
    },
    /// Other machines could connect, and nobody would have to prove anything.
    #[error(
        "other machines can reach {address}, and without a certificate all of them could read and \
         write every volume; give --identity FILE (understudy init or understudy key --new-identity \
         FILE makes one), or listen on 127.0.0.1 or unix:/path"
    )]
    Unprotected {
        /// The address as given.
        address: String,
    },
    /// The system has no random numbers, and a new zone's id is one.
    #[error("cannot give the zone an id")]
    Random(#[source] dax::error::Error),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// A zone stopped by itself; what it acknowledged is safe. Check the disk, then start it again.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the zone failed: {0}")]
pub struct ZoneFailed(pub(crate) String);
