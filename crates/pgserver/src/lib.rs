//! One PostgreSQL server as a child of this process: found, started, watched, promoted, stopped, and
//! cleaned up after.
//!
//! ```text
//!   install ──▶ initdb                        logfile: what it says
//!      │                                         ▲
//!      ▼                                         │
//!   server ──▶ supervise::Child ──▶ postmaster ──┘ ◀── session: SQL of the agent
//!                  │                     │ SIGQUIT when the agent ends
//!                  └──── exit report ◀───┘
//!   leftovers: kills what an earlier agent left, before anything is started
//! ```
//!
//! Invariant: no server of this node outlives its agent's interest in it ([`supervise`] sees to that). The
//! postmaster gets SIGQUIT (immediate shutdown) when the agent dies, whatever kills the agent. So two servers never
//! run on one node's directory, and never one that nobody watches.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use pgserver::{Installation, Postgres, StartOptions, StopMode};
//!
//! # async fn run(options: StartOptions) -> pgserver::Result<()> {
//! let installation = Installation::find(Path::new("/usr/lib/postgresql/15/bin"))?;
//! let postgres = Postgres::start(&installation, options).await?;
//! postgres.wait_ready(Duration::from_secs(60)).await?;
//! postgres.stop(StopMode::Fast, Duration::from_secs(60)).await?;
//! # Ok(())
//! # }
//! ```

pub mod install;
pub mod leftovers;
mod libraries;
pub mod logfile;
mod options;
mod server;
pub mod session;

use std::path::PathBuf;
use std::time::Duration;

pub use install::{InitdbOptions, Installation, Password, PgVersion};
pub use libraries::HostLibraries;
pub use options::{ExitReport, StartOptions, StopMode};
pub use server::{Postgres, Reloader};
pub use session::{CommitWaits, Session};
use supervise::ChildError;
pub use supervise::RunAs;

/// Why something about the server failed; [`hint`](PostgresError::hint) says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// A program is missing or cannot be run.
    #[error("cannot use {path}: {why}", path = path.display())]
    Installation {
        /// The program or directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The cluster was made by another major version.
    #[error("the cluster is PostgreSQL {needed}, but {bin} holds {found}", bin = bin.display())]
    Version {
        /// The configured directory.
        bin: PathBuf,
        /// Version of the installed programs.
        found: PgVersion,
        /// The major version that the cluster needs.
        needed: u32,
    },
    /// The user that PostgreSQL should run as does not exist.
    #[error("there is no user \"{user}\" to run PostgreSQL as")]
    NoUser {
        /// User of the configuration, which the system does not have.
        user: String,
    },
    /// PostgreSQL refuses to run as root.
    #[error("PostgreSQL does not run as root")]
    Root,
    /// Something else listens there.
    #[error("port {port} is in use at {address}")]
    PortInUse {
        /// Address that PostgreSQL was to listen on.
        address: String,
        /// Port that another process uses.
        port: u16,
    },
    /// A program of PostgreSQL failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Name of the program, such as `initdb`.
        program: &'static str,
        /// What it printed.
        output: String,
    },
    /// The server ended while it was needed.
    #[error("PostgreSQL ended: {0}")]
    Exited(ExitReport),
    /// The server is not ready, or did not do something, in time.
    #[error("PostgreSQL did not {what} within {after:?}{detail}")]
    Timeout {
        /// What it should have done.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
        /// What is known, with punctuation in front; may be empty.
        detail: String,
    },
    /// A query of the agent failed.
    #[error("a query of the agent failed")]
    Sql(#[from] tokio_postgres::Error),
    /// The server answered something that is invalid.
    #[error("unexpected answer from PostgreSQL: {0}")]
    Answer(String),
    /// The operating system said no.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<ChildError> for PostgresError {
    fn from(error: ChildError) -> PostgresError {
        match error {
            ChildError::NoUser { user } => PostgresError::NoUser { user },
            ChildError::Root => PostgresError::Root,
            ChildError::PortInUse { address, port } => PostgresError::PortInUse { address, port },
            ChildError::Timeout {
                what,
                after,
                detail,
            } => PostgresError::Timeout {
                what,
                after,
                detail,
            },
            ChildError::System { what, source } => PostgresError::System { what, source },
            other => PostgresError::Answer(other.to_string()),
        }
    }
}

/// The user to become before PostgreSQL is started; see [`RunAs::resolve`].
///
/// # Errors
/// [`PostgresError::NoUser`], or [`PostgresError::Root`]: PostgreSQL refuses to be root.
pub fn run_as(user: &str) -> Result<Option<RunAs>> {
    Ok(RunAs::resolve(user)?)
}

/// Tries PostgreSQL's addresses; see [`supervise::check_port`].
///
/// # Errors
/// [`PostgresError::PortInUse`]
pub fn check_port(listen_addresses: &str, port: u16) -> Result<()> {
    Ok(supervise::check_port(listen_addresses, port)?)
}

impl PostgresError {
    /// What its operator can do about it, if that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PostgresError::Installation { .. } => {
                Some("Set postgres.bin to the directory of PostgreSQL's programs.")
            }
            PostgresError::Version { .. } => {
                Some("Set postgres.bin to the programs of the cluster's major version.")
            }
            PostgresError::NoUser { .. } => Some("Create the user, or set postgres.run_as."),
            PostgresError::Root => Some("Set postgres.run_as to an unprivileged user."),
            PostgresError::PortInUse { .. } => {
                Some("Stop what listens there, or set postgres.port.")
            }
            _ => None,
        }
    }

    pub(crate) fn system(
        what: impl Into<String>,
        source: impl Into<std::io::Error>,
    ) -> PostgresError {
        PostgresError::System {
            what: what.into(),
            source: source.into(),
        }
    }
}

/// Shorthand for results of this module.
pub type Result<T, E = PostgresError> = std::result::Result<T, E>;
