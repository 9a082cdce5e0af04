//! Why a hosted server could not be run.

use std::io;
use std::time::Duration;

use coordination::channel::ChannelError;
use coordination::config::ConfigError;
use coordination::records::RecordError;
use dax::error::ErrorKind;

/// See the module; [`hint`](EngineError::hint) says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The storage tier said no; its kind tells what to do.
    #[error(transparent)]
    Storage(#[from] dax::error::Error),
    /// A file operation failed, or what is stored is invalid.
    #[error(transparent)]
    Volume(#[from] volume::error::Error),
    /// The mount could not be made, or broke.
    #[error(transparent)]
    Mount(#[from] mount::Error),
    /// A registry record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The direct channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A value of the configuration cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The child process could not be started or stopped.
    #[error(transparent)]
    Child(#[from] supervise::ChildError),
    /// Something about the volume, or this machine, does not fit; says what to do.
    #[error("{0}")]
    Refused(String),
    /// Something about this machine must change first; says what.
    #[error("{0}")]
    Machine(String),
    /// The server ended while it was needed.
    #[error("{name} ended: {report}")]
    Exited {
        /// What the server is.
        name: String,
        /// How, with the end of its log.
        report: String,
    },
    /// The server does not become ready.
    #[error("{name} was not ready within {after:?}")]
    NotReady {
        /// What the server is.
        name: String,
        /// How long it was waited for.
        after: Duration,
        /// Its log.
        log: String,
    },
    /// A program that makes the database failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Path of the program that failed.
        program: String,
        /// The end of what it printed.
        output: String,
    },
    /// The operating system said no.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Shorthand for results of this crate.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

impl EngineError {
    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> EngineError {
        EngineError::System {
            what: what.into(),
            source,
        }
    }

    /// What an operator can do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            EngineError::Mount(error) => error.hint(),
            EngineError::Config(error) => error.hint().map(str::to_owned),
            EngineError::Child(error) => error.hint().map(str::to_owned),
            EngineError::NotReady { log, .. } => {
                Some(format!("See {log}, or raise engine.ready_within."))
            }
            _ => None,
        }
    }

    /// True if another node owns the volume now, or was faster.
    pub fn is_superseded(&self) -> bool {
        match self {
            EngineError::Storage(e) => e.is_fenced() || e.kind() == ErrorKind::Conflict,
            EngineError::Volume(e) => e.is_fenced(),
            EngineError::Record(e) => e.is_fenced(),
            _ => false,
        }
    }

    /// True if something about this machine or its configuration must change first.
    pub fn is_of_this_machine(&self) -> bool {
        matches!(
            self,
            EngineError::Mount(_)
                | EngineError::System { .. }
                | EngineError::Machine(_)
                | EngineError::Config(_)
                | EngineError::Child(_)
        )
    }
}
