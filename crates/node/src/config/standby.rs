//! `[standby]`: how this node follows while it is a standby.

use std::time::Duration;

use coordination::config::{ByteSize, ConfigError};
use serde::Deserialize;

/// PostgreSQL counts its delays in milliseconds, in 31 bits.
const DELAY_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// `[standby]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StandbyConfig {
    /// Number of blocks that are read at the same time ahead of redo, at most 256. 0: redo reads alone.
    pub prefetch: u16,
    /// Reaction to a standby that is further behind than `max_lag`.
    #[serde(alias = "slow")]
    pub on_lag: OnLag,
    /// WAL that a standby may be behind.
    #[serde(alias = "slow_after")]
    pub max_lag: ByteSize,
    /// Time that redo waits for a query in its way before it cancels the query. A long time makes a takeover longer.
    #[serde(with = "humantime_serde")]
    pub max_streaming_delay: Duration,
    /// Makes vacuum on the active keep the rows that queries on this standby may still read.
    pub feedback: bool,
}

/// What is done about a standby that is too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLag {
    /// The standby reattaches at the newest seal, if that saves replay (CAC-DB 4.4.3).
    Skip,
    /// The standby goes on replaying.
    Follow,
    /// Set on the active: its commits wait for the standby, within bounds (CAC-DB 4.4.2). For comparison.
    Wait,
}

/// More reads at the same time than this help nobody.
const PREFETCH_MAX: u16 = 256;

impl Default for StandbyConfig {
    fn default() -> Self {
        StandbyConfig {
            prefetch: 10,
            on_lag: OnLag::Skip,
            max_lag: ByteSize::mib(1 << 10),
            max_streaming_delay: Duration::from_secs(1),
            // As PostgreSQL's own default: a long query here must not bloat the active unasked.
            feedback: false,
        }
    }
}

impl StandbyConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.prefetch > PREFETCH_MAX {
            let why = format!(
                "{} parallel reads are too many; use at most {PREFETCH_MAX}",
                self.prefetch
            );
            return Err(ConfigError::invalid("standby.prefetch", why));
        }
        if self.max_streaming_delay > DELAY_MAX {
            return Err(ConfigError::invalid(
                "standby.max_streaming_delay",
                "PostgreSQL waits 24 days at most",
            ));
        }
        Ok(())
    }
}
