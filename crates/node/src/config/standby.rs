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
    /// Blocks that are read at the same time ahead of redo; 0: redo reads alone.
    pub prefetch: u16,
    /// What is done about a standby that is too far behind.
    pub slow: Slow,
    /// How much log a standby may be behind before it counts as too far.
    pub slow_after: ByteSize,
    /// How long redo waits for queries in its way before it cancels them. Short, because what redo
    /// has not done yet a takeover must do.
    #[serde(with = "humantime_serde")]
    pub max_streaming_delay: Duration,
    /// Whether the active's vacuum spares rows that queries here may still read.
    pub feedback: bool,
}

/// What is done about a standby that is too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Slow {
    /// It begins anew at the newest seal, if that saves it replay (CAC-DB 4.4.3).
    Skip,
    /// It goes on replaying.
    Follow,
    /// The active's commits wait for it, within bounds (CAC-DB 4.4.2). For comparison.
    Wait,
}

/// More reads at the same time than this help nobody.
const PREFETCH_MAX: u16 = 256;

impl Default for StandbyConfig {
    fn default() -> Self {
        StandbyConfig {
            prefetch: 10,
            slow: Slow::Skip,
            slow_after: ByteSize::mib(1 << 10),
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
                "{} reads at the same time help nobody; use at most {PREFETCH_MAX}",
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
