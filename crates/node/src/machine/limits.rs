//! How long the machine waits for what.

use std::time::Duration;

/// Times that the machine decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tmax: an active that shows nothing for so long is gone.
    pub timeout: Duration,
    /// How long each better candidate is given to own the epoch and say so.
    pub head_start: Duration,
    /// How long all of them together are waited for.
    pub head_start_max: Duration,
    /// Two reports of a living standby fall into this time.
    pub reports: Duration,
    /// How long an enlisted spare may take to show itself as a standby.
    pub enlisted_within: Duration,
    /// How long a living node may try to become a warm standby before a spare is enlisted for it.
    pub warm_within: Duration,
    /// The wait after the first failure; each further one in a row waits twice as long.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
}

impl Limits {
    /// Those of a node with this Tmax.
    pub fn new(timeout: Duration) -> Limits {
        Limits {
            timeout,
            head_start: Duration::from_millis(300),
            head_start_max: Duration::from_secs(1),
            reports: Duration::from_millis(1200),
            enlisted_within: Duration::from_secs(10),
            warm_within: Duration::from_secs(120),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}
