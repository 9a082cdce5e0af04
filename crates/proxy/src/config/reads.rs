//! Which servers answer transactions that only read.

use std::time::Duration;

use serde::Deserialize;

/// `[reads]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reads {
    /// Consistency of reads: `active`, `strong`, `session`, `any` or `bounded:BYTES`.
    pub mode: String,
    /// Longest time that a read waits until a standby has replayed far enough.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Time without any answer after which a standby gets no reads, and the active answers those that wait for it. `0s`: no limit.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Names of standbys in this proxy's zone: as long as one of them has replayed far enough, it gets the reads. Of those that are
    /// left, the one gets a read to which this proxy has the fewest connections in use.
    pub near: Vec<String>,
    /// Share of reads that go to spares, to keep them warm: 0 to 1.
    pub spare: f64,
    /// Names of standbys that are spares. They get the share `spare` of the reads, or all reads when no other standby is there.
    pub spares: Vec<String>,
}

impl Default for Reads {
    fn default() -> Reads {
        Reads {
            mode: "active".to_owned(),
            wait: Duration::from_millis(20),
            timeout: Duration::from_secs(2),
            near: Vec::new(),
            spare: 0.01,
            spares: Vec::new(),
        }
    }
}
