//! `cluster`: facts about the database that never change after it was created.

use dax::storage::Authority;
use serde::{Deserialize, Serialize};

use super::{Libraries, Record};

/// Facts about the database in a volume; written once, by `init`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// PostgreSQL's system identifier, as in its control file.
    pub system_identifier: u64,
    /// PostgreSQL's major version (15, 16, ...).
    pub postgres_major: u32,
    /// Bytes in a log segment (`initdb --wal-segsize`).
    pub wal_segment_bytes: u32,
    /// Bytes in a page of the database.
    pub page_bytes: u32,
    /// True if pages carry PostgreSQL's checksums.
    #[serde(default)]
    pub data_checksums: bool,
    /// The role that agents connect as.
    #[serde(default = "superuser")]
    pub superuser: String,
    /// When the cluster was created, Unix milliseconds; for people only.
    #[serde(default)]
    pub created_unix_ms: u64,
    /// Libraries of the node that created the database, which its indexes agree with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Libraries>,
}

fn superuser() -> String {
    "postgres".to_owned()
}

impl Record for Cluster {
    const PREFIX: &'static str = "cluster";
    const AUTHORITY: Authority = Authority::Owner;
}
