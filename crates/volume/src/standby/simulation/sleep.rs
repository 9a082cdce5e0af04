//! Standbys that sleep now and then, and an active that gives up what they claim meanwhile, as slowly as it must.
//!
//! All by a clock and chances of its own, so that nothing else in a history depends on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dax::storage::Storage;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::super::standing::Clock;
use super::active::Active;
use super::checkers::Held;
use super::standby::Standby;
use crate::claim::{Claim, GRACE, VALID_FOR};

/// See the module.
pub(super) struct Sleep {
    rng: SmallRng,
    seconds: Arc<AtomicU64>,
}

impl Sleep {
    pub fn new(seed: u64) -> Sleep {
        Sleep {
            rng: SmallRng::seed_from_u64(!seed),
            seconds: Arc::default(),
        }
    }

    /// The clock of every standby.
    pub fn clock(&self) -> Clock {
        let seconds = Arc::clone(&self.seconds);
        Arc::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)))
    }

    fn pass(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// One step of the history passes; perhaps one more falls asleep.
    pub async fn step(
        &mut self,
        active: &Active,
        standbys: &mut [Standby],
        coverage: &mut Coverage,
    ) -> Held<()> {
        for standby in &mut *standbys {
            standby.sleeps = standby.sleeps.saturating_sub(1);
        }
        if standbys.is_empty() || !self.rng.random_ratio(1, 20) {
            return Ok(());
        }
        let at = self.rng.random_range(0..standbys.len());
        let standby = &mut standbys[at];
        standby.sleeps = self.rng.random_range(1..100);
        let some = self.rng.random_range(0..2 * VALID_FOR.as_secs());
        self.pass(some);
        if self.rng.random() {
            let shared: Arc<dyn Storage> = active.storage.clone();
            Claim::revoke(&shared, &standby.node).await?;
            self.pass(GRACE.as_secs());
            Claim::give_back(&shared, &standby.node).await?;
            standby.forgotten = true;
            coverage.one("standbys forgotten in their sleep");
        }
        Ok(())
    }
}
