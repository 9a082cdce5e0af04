//! `[storage]`: what an active does about the storage tier in the background.

use std::time::Duration;

use dax::scrub::Pace;
use serde::Deserialize;

use super::ByteSize;

/// Moment at which a sync of the database's WAL is answered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalSync {
    /// When the WAL is durable.
    #[default]
    Strict,
    /// When the WAL is on its way. Flushes overlap, and each commit waits until its WAL is confirmed.
    #[serde(alias = "ordered")]
    Pipelined,
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
    #[serde(alias = "claim_cap")]
    pub max_retained_wal: ByteSize,
    /// Moment at which a sync of PostgreSQL's WAL is answered, while this node is the active.
    #[serde(alias = "log")]
    pub wal_sync: WalSync,
}

impl Default for StorageConfig {
    fn default() -> Self {
        let pace = Pace::default();
        StorageConfig {
            scrub_every: pace.every,
            scrub_rate: ByteSize(pace.bytes_per_second),
            max_retained_wal: ByteSize::mib(16 << 10),
            wal_sync: WalSync::Strict,
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
