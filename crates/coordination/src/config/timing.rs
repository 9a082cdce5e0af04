//! `[heartbeat]`: how quickly a silent active is given up.
//!
//! T, Tmax and the polling period of CAC-DB's appendix A. The paper used T = 2 s, Tmax = 9 s and
//! polls every 2 s, and needs Tmax to be generous, because acting on a wrong suspicion was its
//! only danger. Here fencing makes a wrong suspicion safe (it costs a needless takeover, never
//! data), so the presets are shorter.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// Named sets of timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// One data centre: a silent active is given up after 1.5 s, so that a machine that vanishes costs less than 3 s.
    Fast,
    /// A region: given up after 4 s.
    Normal,
    /// Several regions: given up after 9 s.
    Wide,
}

/// The timings of heartbeats and of the detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// T: the active advances its counter this often.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Tmax: a counter that stood still this long means that the active is gone.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How often a standby reads the counter.
    #[serde(with = "humantime_serde")]
    pub poll: Duration,
    /// How long a broken direct channel may take to come back before it counts as evidence.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
}

impl Preset {
    /// What the name stands for.
    pub const fn timings(self) -> Heartbeat {
        let [interval, timeout, poll, grace] = match self {
            Preset::Fast => [200, 1_500, 200, 100],
            Preset::Normal => [1_000, 4_000, 500, 200],
            Preset::Wide => [2_000, 9_000, 2_000, 500],
        };
        Heartbeat {
            interval: Duration::from_millis(interval),
            timeout: Duration::from_millis(timeout),
            poll: Duration::from_millis(poll),
            grace: Duration::from_millis(grace),
        }
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Preset::Fast.timings()
    }
}

/// The table as written: a preset, whose single values can be replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeartbeatChoice {
    /// Name of a set of all four times. Each time that is given replaces that of the set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// T: time between two heartbeats of the active.
    #[serde(
        with = "humantime_serde::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub interval: Option<Duration>,
    /// Tmax: time without a heartbeat after which the active is suspected.
    #[serde(
        with = "humantime_serde::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Duration>,
    /// Time between two looks of a standby at the heartbeat.
    #[serde(
        with = "humantime_serde::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub poll: Option<Duration>,
    /// Time that a broken direct channel may take to come back before it counts as evidence.
    #[serde(
        with = "humantime_serde::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub grace: Option<Duration>,
}

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(300);

impl HeartbeatChoice {
    /// Fills the gaps and refuses what cannot work.
    pub(super) fn resolve(&self) -> Result<Heartbeat, ConfigError> {
        self.over(Heartbeat::default())
    }

    /// Fills the gaps with `own`, if no preset is named, and refuses what cannot work.
    ///
    /// # Errors
    /// As [`Heartbeat::check`].
    pub fn over(&self, own: Heartbeat) -> Result<Heartbeat, ConfigError> {
        let preset = self.preset.map_or(own, Preset::timings);
        let timings = Heartbeat {
            interval: self.interval.unwrap_or(preset.interval),
            timeout: self.timeout.unwrap_or(preset.timeout),
            poll: self.poll.unwrap_or(preset.poll),
            grace: self.grace.unwrap_or(preset.grace),
        };
        timings.check()?;
        Ok(timings)
    }
}

impl Heartbeat {
    /// Refuses timings with which a healthy active would be suspected, or a dead one never.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with the reason.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse =
            |key: &str, why: String| Err(ConfigError::invalid(&format!("heartbeat.{key}"), why));
        for (key, value) in [
            ("interval", self.interval),
            ("timeout", self.timeout),
            ("poll", self.poll),
        ] {
            if value < SHORTEST || value > LONGEST {
                return refuse(
                    key,
                    format!("{value:?} is not between {SHORTEST:?} and {LONGEST:?}"),
                );
            }
        }
        let least = 2 * self.interval + 2 * self.poll;
        if self.timeout < least {
            return refuse(
                "timeout",
                format!(
                    "{:?} is too short for heartbeats every {:?} read every {:?}: one late beat \
                     would look like a dead active; use at least {least:?}, or shorten interval and poll",
                    self.timeout, self.interval, self.poll
                ),
            );
        }
        if self.grace > self.timeout {
            return refuse(
                "grace",
                format!(
                    "{:?} is longer than the timeout ({:?}), so the hint would never count",
                    self.grace, self.timeout
                ),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_ordered() {
        let all = [Preset::Fast, Preset::Normal, Preset::Wide].map(Preset::timings);
        for timings in all {
            timings.check().unwrap();
        }
        assert!(all[0].timeout < all[1].timeout && all[1].timeout < all[2].timeout);
        // The goal for a machine that vanishes is 3 s, of which the takeover itself takes about 1 s.
        let worst = all[0].timeout + all[0].poll;
        assert!(worst < Duration::from_millis(2_000));
    }

    #[test]
    fn a_timeout_that_one_late_beat_exceeds_is_refused() {
        let raw = HeartbeatChoice {
            interval: Some(Duration::from_millis(800)),
            ..HeartbeatChoice::default()
        };
        let error = raw.resolve().unwrap_err().to_string();
        assert!(
            error.contains("heartbeat.timeout") && error.contains("at least 2s"),
            "{error}"
        );
    }
}
