//! One server as a child of this process: started as another user, watched, signalled, stopped, and cleaned up
//! after.
//!
//! ```text
//!   Launch ──▶ a thread of its own ── spawn ──▶ the server
//!                   │ waitid(WNOWAIT)             │ gets a signal when that thread, or this process, ends
//!                   ▼                             ▼
//!            exit told at once ──▶ what is left of it killed ──▶ clean
//! ```
//!
//! Invariant: no server outlives its agent's interest in it. The kernel signals it when the agent dies, whatever
//! kills the agent; a server that survived that all the same is found and killed before another one is started
//! ([`leftovers`]). So two servers never run on one directory, and never one that nobody watches.
//!
//! Why a thread per server: `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, not the process, so a
//! pool's worker must not fork it. And the kernel clears the setting when the user changes, so it is set after
//! that, just before `exec`.
//!
//! Nothing here knows what the server is. Who it runs as:
//!
//! ```
//! use supervise::RunAs;
//!
//! // An ordinary user cannot become another one; root can, but never stays root.
//! assert!(RunAs::resolve("root").map_or(true, |user| user.is_none()));
//! ```

mod child;
pub mod directory;
pub mod leftovers;
pub mod logfile;
mod port;
pub mod ports;
mod run_as;
pub mod spawn;

use std::time::Duration;

pub use child::{Child, Exit, Launch, Signals};
pub use directory::Lock;
pub use port::check_port;
pub use run_as::RunAs;

/// Why something about a child process failed; [`hint`](ChildError::hint) says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The user that it should run as does not exist.
    #[error("there is no user \"{user}\" to run the server as")]
    NoUser {
        /// User of the configuration, which the system does not have.
        user: String,
    },
    /// The user that it should run as is root.
    #[error("the server must not run as root")]
    Root,
    /// Something else listens there.
    #[error("port {port} is in use at {address}")]
    PortInUse {
        /// Address that the server was to listen on.
        address: String,
        /// Port that another process uses.
        port: u16,
    },
    /// A process of it does not go away.
    #[error("the server did not {what} within {after:?}{detail}")]
    Timeout {
        /// What it should have done.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
        /// What is known, with punctuation in front; may be empty.
        detail: String,
    },
    /// The operating system said no.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ChildError {
    /// What its operator can do about it, if that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ChildError::NoUser { .. } => Some("Create the user, or set run_as."),
            ChildError::Root => Some("Set run_as to an unprivileged user."),
            ChildError::PortInUse { .. } => {
                Some("Stop what listens there, or choose another port.")
            }
            _ => None,
        }
    }

    fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> ChildError {
        ChildError::System {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Shorthand for results of this crate.
pub type Result<T, E = ChildError> = std::result::Result<T, E>;
