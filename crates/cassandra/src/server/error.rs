//! What can go wrong with a development cluster.

use std::io;
use std::path::{Path, PathBuf};

/// Why a cluster is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A program that is needed is not installed; the message says what to install.
    #[error("{0}")]
    Missing(String),
    /// Maven could not fetch the artifacts, or they are not what they should be.
    #[error("cannot fetch Apache Cassandra: {0}")]
    Fetch(String),
    /// The cluster was asked for something that is invalid.
    #[error("{0}")]
    Invalid(String),
    /// No free block of loopback addresses.
    #[error("all blocks of loopback addresses are in use by other clusters")]
    NoAddress,
    /// A node ended, or nodetool failed.
    #[error("{what}; {log} ends with:\n{tail}", log = log.display())]
    Failed {
        /// What failed.
        what: String,
        /// Where it logs.
        log: PathBuf,
        /// The last lines there.
        tail: String,
    },
    /// A file or process could not be handled.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Shorthand for results of this module.
pub type Result<T> = std::result::Result<T, ServerError>;

/// Says what was tried when an I/O error happens.
pub(super) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| ServerError::Io {
            what: what(),
            source,
        })
    }
}

impl<T> Tried<T> for nix::Result<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(io::Error::from).tried(what)
    }
}

/// A failure with the end of the log that tells why.
pub(super) fn failed(what: impl Into<String>, log: &Path) -> ServerError {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    ServerError::Failed {
        what: what.into(),
        log: log.to_owned(),
        tail: lines[lines.len().saturating_sub(12)..].join("\n"),
    }
}
