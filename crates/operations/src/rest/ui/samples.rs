//! The last minutes of the cluster, a sample each second (pure).
//!
//! Invariant: times grow, and nothing is kept longer than [`KEPT`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

/// How long a sample is kept.
const KEPT: Duration = Duration::from_secs(15 * 60);

/// What was seen at one moment. What was not known is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// When, by this node's clock, in Unix milliseconds.
    pub unix_ms: u64,
    /// Who served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// Transactions committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commits_per_second: Option<f64>,
    /// Log that became durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes_per_second: Option<f64>,
    /// How far each standby was behind.
    pub lag_bytes: BTreeMap<String, u64>,
}

/// The samples of the last minutes, oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples {
    ring: VecDeque<Sample>,
}

impl Samples {
    /// Takes a new one in.
    pub fn push(&mut self, sample: Sample) {
        // The clock was set back: what lies in the future now would stay for ever.
        self.ring.retain(|old| old.unix_ms < sample.unix_ms);
        let oldest = sample.unix_ms.saturating_sub(KEPT.as_millis() as u64);
        self.ring.push_back(sample);
        while self.ring.front().is_some_and(|s| s.unix_ms < oldest) {
            self.ring.pop_front();
        }
    }

    /// Those after a moment, oldest first.
    pub fn after(&self, unix_ms: u64) -> impl Iterator<Item = &Sample> {
        let from = self.ring.partition_point(|s| s.unix_ms <= unix_ms);
        self.ring.range(from..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_ms: u64) -> Sample {
        Sample {
            unix_ms,
            ..Sample::default()
        }
    }

    fn filled(times: &[u64]) -> Samples {
        let mut samples = Samples::default();
        for unix_ms in times {
            samples.push(at(*unix_ms));
        }
        samples
    }

    fn times(samples: &Samples, after: u64) -> Vec<u64> {
        samples.after(after).map(|s| s.unix_ms).collect()
    }

    #[test]
    fn repeated_question_gets_new_samples_only() {
        let samples = filled(&[1000, 2000, 3000]);
        assert_eq!(times(&samples, 0), [1000, 2000, 3000]);
        assert_eq!(times(&samples, 2000), [3000]);
        assert_eq!(times(&samples, 9000), [0; 0]);
    }

    #[test]
    fn old_ones_go_and_so_does_the_future_when_the_clock_is_set_back() {
        let kept = KEPT.as_millis() as u64;
        let mut samples = filled(&[1, 1000, kept + 2]);
        assert_eq!(times(&samples, 0), [1000, kept + 2]);
        samples.push(at(5000));
        assert_eq!(times(&samples, 0), [1000, 5000]);
    }
}
