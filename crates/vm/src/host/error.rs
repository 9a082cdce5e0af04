//! Why a machine could not be run on this host.

use std::io;
use std::time::Duration;

/// See the module; [`hint`](HostError::hint) says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Something about this host must change before a machine can run here.
    #[error("{what}")]
    Unfit {
        /// What is missing.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// The process could not be started or ended.
    #[error(transparent)]
    Child(#[from] supervise::ChildError),
    /// QEMU ended. The machine is lost.
    #[error("QEMU ended: {report}")]
    Ended {
        /// How, with the end of what it printed.
        report: String,
    },
    /// QEMU does not do what it is told. The machine's state is unknown; kill it.
    #[error(transparent)]
    Qmp(#[from] super::qmp::QmpError),
    /// The machine did not become ready. Kill it.
    #[error("the machine did not {what} within {after:?}")]
    Slow {
        /// What it should have done.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
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

/// Shorthand for results of this module.
pub type Result<T, E = HostError> = std::result::Result<T, E>;

impl HostError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> HostError {
        HostError::System {
            what: what.into(),
            source: source.into(),
        }
    }

    pub(crate) fn unfit(what: impl Into<String>, hint: impl Into<String>) -> HostError {
        HostError::Unfit {
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// What an operator can do about it, if that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            HostError::Unfit { hint, .. } => Some(hint),
            HostError::Child(error) => error.hint(),
            _ => None,
        }
    }

    /// True if the host must change first; trying again changes nothing.
    pub fn is_of_this_host(&self) -> bool {
        matches!(self, HostError::Unfit { .. } | HostError::Child(_))
    }
}
