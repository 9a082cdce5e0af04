//! One clock for a run: every event of the load, the kill and the takeover on one axis.
//!
//! Invariant: an [`Offset`] is microseconds since the run's zero. Our own events use the monotonic
//! clock; a node's record carries wall-clock times of the same machine and is converted.

use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// Microseconds since the zero of a run; negative before it.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Offset(pub i64);

impl Offset {
    /// As milliseconds, rounded to a tenth.
    pub fn millis(self) -> f64 {
        (self.0 as f64 / 100.0).round() / 10.0
    }

    /// As seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What lies between an earlier offset and this one; zero if it is not earlier.
    pub fn since(self, earlier: Offset) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Offset {
    type Output = Offset;
    fn add(self, by: Duration) -> Offset {
        Offset(self.0 + by.as_micros() as i64)
    }
}

/// The zero of a run.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    monotonic: Instant,
    wall: SystemTime,
}

impl Clock {
    /// A clock whose zero is now.
    pub fn start() -> Clock {
        Clock {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Now.
    pub fn now(&self) -> Offset {
        Offset(self.monotonic.elapsed().as_micros() as i64)
    }

    /// A wall-clock time of this machine.
    pub fn at(&self, wall: SystemTime) -> Offset {
        match wall.duration_since(self.wall) {
            Ok(after) => Offset(after.as_micros() as i64),
            Err(before) => Offset(-(before.duration().as_micros() as i64)),
        }
    }
}
