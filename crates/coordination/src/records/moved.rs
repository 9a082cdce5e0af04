//! `moved`: the database goes on in another volume; in the registry of the one that it left.
//!
//! ```text
//!   volume of the configuration ── moved 1 ──▶ a branch ── moved 2 ──▶ the volume of the configuration
//! ```
//!
//! Invariant: only who owns the epoch of the volume that is left writes it, so whoever owns a later one finds it, and serves nothing
//! there. Numbers grow along the way: one that is not above the number by which a volume was reached is from before.

use dax::credentials::VolumeKey;
use dax::ids::VolumeName;
use dax::storage::Authority;
use serde::{Deserialize, Serialize};

use super::Record;

/// Where the database goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// How often the database has moved, counted from 1.
    pub number: u64,
    /// The volume that it is in from then on.
    pub volume: VolumeName,
    /// The key of that volume, for the nodes of the database: they have that of the volume in their configuration alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VolumeKey>,
    /// When, Unix milliseconds.
    pub unix_ms: u64,
}

impl Record for Moved {
    const PREFIX: &'static str = "moved";
    const AUTHORITY: Authority = Authority::Owner;
}
