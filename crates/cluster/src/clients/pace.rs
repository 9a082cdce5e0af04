//! Spreads work evenly over time.
//!
//! Invariant: slots that passed while nobody could work are not made up for in a burst.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Hands out slots at a rate, to any number of workers.
#[derive(Debug)]
pub struct Pace {
    every: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    /// So many slots a second; as many as wanted if `None`.
    pub fn new(per_second: Option<f64>) -> Pace {
        let every = per_second.map(|rate| Duration::from_secs_f64(1.0 / rate.max(0.001)));
        Pace {
            every: every.unwrap_or_default(),
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a slot.
    pub async fn wait(&self) {
        if !self.every.is_zero() {
            tokio::time::sleep_until(self.claim(Instant::now())).await;
        }
    }

    fn claim(&self, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let slot = now.max(*next);
        *next = slot + self.every;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_evenly_spaced_and_missed_ones_are_gone() {
        let pace = Pace::new(Some(10.0));
        let start = *pace.next.lock();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(pace.claim(start), start);
        assert_eq!(pace.claim(start), after(100));
        assert_eq!(pace.claim(after(1000)), after(1000));
        assert_eq!(pace.claim(after(1000)), after(1100));
    }
}
