//! `[standby]`: how this node follows while it is a standby.

use std::time::Duration;

use serde::Deserialize;

use super::ConfigError;

/// PostgreSQL counts its delays in milliseconds, in 31 bits.
const DELAY_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// `[standby]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StandbyConfig {
    /// How long redo waits for queries in its way before it cancels them. Short, because what redo
    /// has not done yet a takeover must do.
    #[serde(with = "humantime_serde")]
    pub max_streaming_delay: Duration,
    /// Whether the active's vacuum spares rows that queries here may still read.
    pub feedback: bool,
}

impl Default for StandbyConfig {
    fn default() -> Self {
        StandbyConfig {
            max_streaming_delay: Duration::from_secs(1),
            // As PostgreSQL's own default: a long query here must not bloat the active unasked.
            feedback: false,
        }
    }
}

impl StandbyConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.max_streaming_delay > DELAY_MAX {
            return Err(ConfigError::invalid(
                "standby.max_streaming_delay",
                "PostgreSQL waits 24 days at most",
            ));
        }
        Ok(())
    }
}
