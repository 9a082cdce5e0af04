//! The error of a node's life.

use coordination::channel::ChannelError;
use coordination::records::RecordError;
use dax::error::ErrorKind;
use pgserver::PostgresError;

/// Why a node could not start, or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The storage tier said no; its kind tells what to do.
    #[error(transparent)]
    Storage(#[from] dax::error::Error),
    /// A file operation failed, or what is stored is invalid.
    #[error(transparent)]
    Volume(#[from] volume::error::Error),
    /// The mount could not be made, or broke.
    #[error(transparent)]
    Mount(#[from] mount::Error),
    /// PostgreSQL could not be run.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// A registry record could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    #[cfg(feature = "backup")]
    /// The repository that lies beneath the volume could not be read.
    #[error("the image beneath the volume cannot be read")]
    Beneath(#[from] backup::error::Error),
    /// The direct channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The volume holds no database yet.
    #[error("the volume {0} holds no database")]
    NotInitialised(dax::ids::VolumeName),
    /// The volume holds a database already.
    #[error("the volume {0} holds a database already")]
    Initialised(dax::ids::VolumeName),
    /// The database goes on in another volume: begin anew, there.
    #[error("the database goes on in the volume {0}")]
    Moved(dax::ids::VolumeName),
    /// The control file cannot be understood.
    #[error("global/pg_control: {0}")]
    Control(#[from] pgdata::control::ControlError),
    /// The version of PostgreSQL is not supported.
    #[error(transparent)]
    Version(#[from] pgdata::settings::VersionError),
    /// Settings of the database that cannot work on a volume.
    #[error("{0}")]
    Refused(String),
    /// The operating system said no.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Shorthand for results of a node's life.
pub type Result<T, E = AgentError> = std::result::Result<T, E>;

impl AgentError {
    pub(crate) fn system(what: impl Into<String>, source: std::io::Error) -> AgentError {
        AgentError::System {
            what: what.into(),
            source,
        }
    }

    /// What an operator can do about it, if that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            AgentError::NotInitialised(_) => Some("Create one: understudy init.".to_owned()),
            AgentError::Initialised(_) => Some("Choose another name for the volume.".to_owned()),
            AgentError::Postgres(error) => error.hint().map(str::to_owned),
            AgentError::Mount(error) => error.hint(),
            _ => None,
        }
    }

    /// True if another node owns the volume now, or was faster: follow it.
    pub fn is_superseded(&self) -> bool {
        match self {
            AgentError::Storage(e) => e.is_fenced() || e.kind() == ErrorKind::Conflict,
            AgentError::Volume(e) => e.is_fenced(),
            AgentError::Record(e) => e.is_fenced(),
            _ => false,
        }
    }

    /// True if something about this machine must change first: trying again by itself is no use
    /// for a node that has not run yet.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        match self {
            AgentError::Mount(_) | AgentError::System { .. } => true,
            AgentError::Postgres(e) => matches!(
                e,
                PostgresError::Installation { .. }
                    | PostgresError::Version { .. }
                    | PostgresError::NoUser { .. }
                    | PostgresError::Root
                    | PostgresError::PortInUse { .. }
            ),
            _ => false,
        }
    }
}
