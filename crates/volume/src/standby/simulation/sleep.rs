//! Standbys that sleep now and then, and an active that gives up what they claim meanwhile, as slowly as it must; or
//! another node that takes the sleeper's name, and with it the place of its claim.
//!
//! All by a clock and chances of its own, so that nothing else in a history depends on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::Storage;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simulate::Coverage;

use super::super::standing::{ClaimWatch, Clock};
use super::active::Active;
use super::checkers::Held;
use super::standby::{Standby, change};
use super::trace::say;
use crate::claim::{Claim, GRACE, VALID_FOR};
use crate::seal::load_seals;

pub(super) struct Sleep {
    rng: SmallRng,
    /// For names that are taken.
    names: SmallRng,
    seconds: Arc<AtomicU64>,
}

impl Sleep {
    pub fn new(seed: u64) -> Sleep {
        Sleep {
            rng: SmallRng::seed_from_u64(!seed),
            names: SmallRng::seed_from_u64(seed.reverse_bits()),
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
        let shared: Arc<dyn Storage> = active.storage.clone();
        if self.rng.random() {
            Claim::revoke(&shared, &standby.node).await?;
            self.pass(GRACE.as_secs());
            Claim::give_back(&shared, &standby.node).await?;
            standby.forgotten = true;
            say(|| format!("{} loses its claim in its sleep", standby.node));
            coverage.one("standbys forgotten in their sleep");
        } else if self.names.random() {
            self.take_name(&shared, &standby.node).await?;
            standby.forgotten = true;
            say(|| format!("{} loses its name in its sleep", standby.node));
            coverage.one("standbys whose name was taken in their sleep");
        }
        Ok(())
    }

    /// Another node attaches under this name, at the last seal.
    async fn take_name(&self, shared: &Arc<dyn Storage>, node: &NodeName) -> Held<()> {
        let other = ClaimWatch::begin_by(shared, node.clone(), self.clock()).await?;
        let seals = load_seals(shared).await?;
        let last = seals.last().expect("a volume is formatted with a seal");
        for _ in 0..2 {
            change(&other, shared, node, std::slice::from_ref(last)).await?;
            self.pass(GRACE.as_secs());
        }
        Ok(())
    }
}
