//! `backup/<name>`: how far a repository of backups is, as who archives into it last said.
//!
//! For people and alarms, and for those who would archive if this one did not. A mistake costs a turn and nothing else: the
//! claim decides who archives, and the repository itself says what can be restored.

use dax::ids::NodeName;
use dax::storage::Authority;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::Record;

/// State of the archive into one repository, as the archiver last wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupState {
    /// By which name the archiver claims what it reads.
    pub name: NodeName,
    /// The node that archives, or the name of the machine.
    pub by: String,
    /// True if that is the active.
    #[serde(default)]
    pub by_active: bool,
    /// A number that changes while it archives.
    #[serde(default)]
    pub beat: u64,
    /// The directory or bucket.
    pub repository: String,
    /// The last complete image.
    #[serde(default)]
    pub image: Option<String>,
    /// When that was begun, Unix milliseconds.
    #[serde(default)]
    pub image_unix_ms: Option<u64>,
    /// All log before this is in the repository.
    #[serde(default)]
    pub archived: Option<Lsn>,
    /// When that was all that was durable, Unix milliseconds.
    #[serde(default)]
    pub archived_unix_ms: Option<u64>,
    /// The end of the last drill whose checks all held, Unix milliseconds.
    #[serde(default)]
    pub drill_unix_ms: Option<u64>,
    /// The last failure, if nothing has succeeded since.
    #[serde(default)]
    pub trouble: Option<String>,
}

impl BackupState {
    /// Of somebody who begins to archive.
    pub fn new(name: NodeName, by: &str, repository: &str) -> BackupState {
        BackupState {
            name,
            by: by.to_owned(),
            by_active: false,
            beat: 0,
            repository: repository.to_owned(),
            image: None,
            image_unix_ms: None,
            archived: None,
            archived_unix_ms: None,
            drill_unix_ms: None,
            trouble: None,
        }
    }
}

impl Record for BackupState {
    const PREFIX: &'static str = "backup/";
    const AUTHORITY: Authority = Authority::Node;

    fn name(&self) -> String {
        format!("{}{}", Self::PREFIX, self.name)
    }
}
