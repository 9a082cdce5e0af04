//! `[storage]`: what an active does about the storage tier in the background.

use std::time::Duration;

use dax::scrub::Pace;
use serde::Deserialize;

use super::ByteSize;

/// When a sync of the database's log is answered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogMode {
    /// When the log is durable.
    #[default]
    Strict,
    /// When the log is on its way. Flushes overlap, and each commit waits until its log is confirmed.
    Ordered,
}

/// `[storage]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StorageConfig {
    /// Time between the end of a scrub, which verifies and compares all copies of all blocks, and the next one.
    #[serde(with = "humantime_serde")]
    pub scrub_every: Duration,
    /// Most bytes of blocks that are compared in a second, by a scrub or to bring a zone up to date.
    pub scrub_rate: ByteSize,
    /// Most WAL that is kept for a standby. A standby that needs more reattaches at the newest seal. The active never waits.
    pub claim_cap: ByteSize,
    /// Moment at which a sync of PostgreSQL's WAL is answered, while this node is the active.
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
