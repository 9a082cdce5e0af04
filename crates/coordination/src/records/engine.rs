//! `engine`: facts about the database of a volume that hosts another server than PostgreSQL.

use dax::storage::Authority;
use serde::{Deserialize, Serialize};

use super::Record;

/// Facts about the database in a volume; written by `init`, and by an owner whose server is newer than all before it.
/// A volume has either this record or [`Cluster`](super::Cluster).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineFacts {
    /// Which server: `MariaDB`, or the name of a configured program.
    pub engine: String,
    /// The largest write in bytes that must not be torn, which the volume's blocks were chosen for.
    pub page_bytes: u32,
    /// When the database was created, Unix milliseconds; for people only.
    #[serde(default)]
    pub created_unix_ms: u64,
    /// The newest version of the server that was started on the volume (`10.11.19`), if it is known.
    #[serde(default)]
    pub version: Option<String>,
}

impl Record for EngineFacts {
    const PREFIX: &'static str = "engine";
    const AUTHORITY: Authority = Authority::Owner;
}
