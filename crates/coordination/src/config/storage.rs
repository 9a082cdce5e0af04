//! `[storage]`: what an active does about the storage tier in the background.

use std::time::Duration;

use dax::scrub::Pace;
use serde::Deserialize;

use super::ByteSize;

/// When a sync of the database's log is answered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogMode {
    /// When it is durable.
    #[default]
    Strict,
    /// When it is on its way; commits then wait for what is confirmed.
    Ordered,
}

/// `[storage]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// How long after a scrub of all copies the next one begins.
    #[serde(with = "humantime_serde")]
    pub scrub_every: Duration,
    /// Bytes of blocks that a scrub, or bringing a zone up to date, compares in a second.
    pub scrub_rate: ByteSize,
    /// Log that is kept for a standby at most: one that needs more loses its claim and attaches afresh.
    /// The active is never held back.
    pub claim_cap: ByteSize,
    /// When syncs of PostgreSQL's log are answered while this node is the active.
    pub log: LogMode,
}

impl Default for StorageConfig {
    fn default() -> Self {
        let pace = Pace::default();
        StorageConfig {
            scrub_every: pace.every,
            scrub_rate: ByteSize(pace.bytes_per_second),
            claim_cap: ByteSize::mib(16 << 10),
            log: LogMode::Strict,
        }
    }
}

impl StorageConfig {
    /// When and how fast copies are compared.
    pub fn scrub_pace(&self) -> Pace {
        Pace {
            every: self.scrub_every,
            bytes_per_second: self.scrub_rate.0,
        }
    }
}
