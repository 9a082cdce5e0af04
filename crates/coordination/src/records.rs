//! The registry records that nodes share, and how they are read and written.
//!
//! Owns the JSON forms of `backup/<name>`, `cluster`, `engine`, `filling`, `forms`, `heartbeat`, `node/<name>`, `history/<n>`,
//! `horizon/<epoch>` and `control` (`volume` and `seals` belong to the volume, `claim/<name>` to the standby view; `probe/<name>` says
//! nothing). Each record has one writer: the epoch's owner, or the node that it is about; [`control`] says how operators share theirs. Fields that a reader does not know are
//! ignored and those that are missing take a default, so that nodes of two versions can work
//! together.

mod backup;
mod branch;
mod cluster;
mod control;
mod engine;
mod filling;
mod forms;
mod heartbeat;
mod history;
mod horizon;
mod libraries;
mod member;
mod moved;
mod probe;

use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use dax::storage::{Authority, Storage};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use backup::BackupState;
pub use branch::{Branch, BranchState};
pub use cluster::Cluster;
pub use control::{Control, EditError, Paused, ScheduledSwitchover, edit_control};
pub use engine::EngineFacts;
pub use filling::Filling;
pub use forms::{NotRaised, check_raise, finish_upgrade, raise_forms, written_forms};
pub use heartbeat::{ActiveState, Heartbeat};
pub use history::{
    Cause, Decider, HistoryEntry, Lsns, OldActive, PhaseTiming, append_history, read_history,
};
pub use horizon::Horizon;
pub use libraries::Libraries;
pub use member::{Incarnation, Member, MemberState, Role, ServerFacts, ServerStart};
pub use moved::Moved;
pub use probe::{probe_writes, remove_probe};

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The storage tier said no; its kind tells what to do.
    #[error(transparent)]
    Storage(#[from] dax::error::Error),
    /// What is stored is no such record.
    #[error("cannot decode the record \"{name}\"; a newer version may have written it")]
    Damaged {
        /// Name of the record in the registry.
        name: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl RecordError {
    /// True if a higher epoch exists, which is final.
    pub fn is_fenced(&self) -> bool {
        matches!(self, RecordError::Storage(e) if e.is_fenced())
    }
}

/// For those who know errors of the storage tier alone: what is stored and cannot be understood is corrupt.
impl From<RecordError> for dax::Error {
    fn from(error: RecordError) -> dax::Error {
        match error {
            RecordError::Storage(error) => error,
            RecordError::Damaged { ref name, .. } => {
                let message = format!("the record \"{name}\"");
                dax::Error::with_source(dax::ErrorKind::Corrupt, message, error)
            }
        }
    }
}

/// Now, in Unix milliseconds, as records carry it for people; nothing is decided by it.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Shorthand for results of this module.
pub type Result<T, E = RecordError> = std::result::Result<T, E>;

/// A record of the registry.
#[async_trait]
pub trait Record: Serialize + DeserializeOwned + Send + Sync {
    /// What its names start with.
    const PREFIX: &'static str;
    /// Who may write it.
    const AUTHORITY: Authority;

    /// The whole name of this record.
    fn name(&self) -> String {
        Self::PREFIX.to_owned()
    }

    /// Writes the record durably.
    ///
    /// # Errors
    /// `Fenced` for a record of the owner if a higher epoch exists.
    async fn store(&self, storage: &dyn Storage) -> Result<()> {
        let name = self.name();
        let bytes = serde_json::to_vec(self).map_err(|source| RecordError::Damaged {
            name: name.clone(),
            source,
        })?;
        storage
            .put_record(&name, Bytes::from(bytes), Self::AUTHORITY)
            .await?;
        Ok(())
    }

    /// Reads the record `name`, if it was ever written.
    ///
    /// # Errors
    /// `Damaged` if it cannot be understood.
    async fn load_named(storage: &dyn Storage, name: &str) -> Result<Option<Self>> {
        let bytes = storage.get_record(name).await?;
        bytes.map(|b| decode(name, &b)).transpose()
    }

    /// Reads the only record of this kind.
    ///
    /// # Errors
    /// As [`load_named`](Record::load_named).
    async fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        Self::load_named(storage, Self::PREFIX).await
    }

    /// Reads all records of this kind, by name. One that cannot be understood is left out with a
    /// warning: the others must stay usable.
    ///
    /// # Errors
    /// Of the storage tier.
    async fn list(storage: &dyn Storage) -> Result<Vec<Self>> {
        let found = storage.list_records(Self::PREFIX).await?;
        let understood = found.into_iter().filter_map(|(name, bytes)| {
            decode(&name, &bytes)
                .inspect_err(|error| tracing::warn!(%error, "skipped an unreadable record"))
                .ok()
        });
        Ok(understood.collect())
    }
}

fn decode<R: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<R> {
    serde_json::from_slice(bytes).map_err(|source| RecordError::Damaged {
        name: name.to_owned(),
        source,
    })
}
