//! How long commits wait for one another where zones are far away.
//!
//! PostgreSQL flushes its log one flush after the other, and each takes a round trip to the zones that make
//! it durable. Clients then come in two groups, each waiting for the other's flush as well as for its own; if
//! the one who flushes waits a moment for those whose commits were just acknowledged, they are one group. How
//! long a moment, depends on how many they are and what they do, so it is measured ([`tuner`]). Within a data
//! centre the wait gains nothing.
//!
//! ```text
//!   zones ──▶ distance ──▶ far? ──▶ tuner ──▶ parameters ──▶ configuring
//!                                     ▲
//!   PostgreSQL ──▶ who waits ──▶ window
//! ```
//!
//! Invariant: never in the way. PostgreSQL is asked only where zones are far and clients commit, and what is not
//! known changes nothing.

mod distance;
#[cfg(test)]
mod model;
mod tuner;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dax::storage::Storage;
use pgserver::{CommitWaits, Session, StartOptions};
use tokio::sync::watch;
use tokio::time::Instant;

use self::distance::{Distance, round_trip};
use self::tuner::Tuner;
use self::window::Reading;
use crate::agent::asking::Asking;

/// How often it is looked how far the zones are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often PostgreSQL is asked who waits, at least and at most: many times in a window, each at another moment
/// between two flushes.
const ASK_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(240));
/// With fewer flushes in a second nobody is asked.
const BUSY_FLUSHES: u64 = 2;
/// So many others must be in a transaction.
const SIBLINGS: u32 = 3;

/// PostgreSQL's parameters; nothing as long as it is not known what suits.
pub(super) type Suitable = Option<BTreeMap<String, String>>;

/// Tells what is suitable until it is aborted, at the PostgreSQL that was started with these options.
pub(super) async fn run(
    postgres: StartOptions,
    storage: Arc<dyn Storage>,
    told: watch::Sender<Suitable>,
) {
    let mut asking = Asking::new(postgres);
    let mut delay = GroupCommit::default();
    let mut pace = Pace::default();
    let mut looked = Instant::now();
    loop {
        let passed = looked.elapsed();
        looked += passed;
        delay.look(
            round_trip(&storage.replicas(), storage.sync_replicas()),
            passed,
        );
        let asks = pace.is_busy(storage.counters().syncs, passed) && delay.tuner.is_some();
        let what = "who waits for a flush";
        if asks && let Some(waits) = asking.ask(what, Session::commit_waits).await {
            delay.read(&waits, storage.counters().syncs, Instant::now());
        }
        let suitable = delay.suitable();
        told.send_if_modified(|told| {
            let is_new = *told != suitable;
            *told = suitable;
            is_new
        });
        let pause = match asks {
            true => pace.ask_after(),
            false => LOOK_EVERY,
        };
        tokio::time::sleep(pause).await;
    }
}

/// When PostgreSQL is asked.
#[derive(Debug, Default)]
struct Pace {
    busy: bool,
    /// The count of flushes when this second began, and how much of it has passed.
    flushes: u64,
    passed: Duration,
    asked: u32,
}

impl Pace {
    /// True if enough was flushed in the last whole second.
    fn is_busy(&mut self, flushes: u64, passed: Duration) -> bool {
        self.passed += passed;
        if self.passed >= LOOK_EVERY {
            self.busy = flushes.saturating_sub(self.flushes) >= BUSY_FLUSHES;
            self.flushes = flushes;
            self.passed = Duration::ZERO;
        }
        self.busy
    }

    /// Multiples of the golden section are spread evenly, and in step with nothing.
    fn ask_after(&mut self) -> Duration {
        const GOLDEN: f64 = 0.618_033_988_749_895;
        self.asked = self.asked.wrapping_add(1);
        let (least, most) = ASK_AFTER;
        least + (most - least).mul_f64((f64::from(self.asked) * GOLDEN).fract())
    }
}

/// What suits, as far as it is known (pure but for the moments of readings).
#[derive(Debug, Default)]
struct GroupCommit {
    distance: Distance,
    /// There while zones are far.
    tuner: Option<Tuner>,
    read: Option<Instant>,
}

impl GroupCommit {
    /// The slowest replica that is needed is so far now; `passed` since the last time.
    fn look(&mut self, round_trip: Option<Duration>, passed: Duration) {
        self.distance.see(round_trip, passed);
        match (&mut self.tuner, self.distance.far()) {
            (Some(tuner), Some(far)) => tuner.pass(passed, far),
            (tuner, far) => *tuner = far.map(Tuner::new),
        }
    }

    fn read(&mut self, waits: &CommitWaits, flushes: u64, now: Instant) {
        let before = self.read.replace(now);
        if let (Some(tuner), Some(before)) = (&mut self.tuner, before) {
            tuner.read(Reading {
                passed: now.duration_since(before),
                waiting: waits.waiting,
                clients: waits.clients,
                transactions: waits.snapshot_end.0,
                flushes,
                delay: waits.commit_delay,
            });
        }
    }

    fn suitable(&self) -> Suitable {
        if !self.distance.is_known() {
            return None;
        }
        let parameters = self.tuner.as_ref().map(|tuner| {
            [
                ("commit_delay", tuner.delay().as_micros().to_string()),
                ("commit_siblings", SIBLINGS.to_string()),
            ]
        });
        let named = parameters.into_iter().flatten();
        Some(
            named
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(seconds: u32, round_trip_ms: Option<u64>, delay: &mut GroupCommit) -> Suitable {
        for _ in 0..seconds {
            delay.look(round_trip_ms.map(Duration::from_millis), SECOND);
        }
        delay.suitable()
    }

    fn delay_us(suitable: &Suitable) -> Option<&str> {
        suitable.as_ref()?.get("commit_delay").map(String::as_str)
    }

    #[test]
    fn far_zones_get_a_delay_and_near_ones_none() {
        let mut far = GroupCommit::default();
        let suitable = after(1, Some(36), &mut far);
        assert_eq!(delay_us(&suitable), Some("3000"));
        assert_eq!(suitable.unwrap()["commit_siblings"], "3");
        let near = after(1, Some(1), &mut GroupCommit::default());
        assert_eq!(near, Some(BTreeMap::new()));
    }

    #[test]
    fn unmeasured_windows_change_nothing() {
        let mut delay = GroupCommit::default();
        assert_eq!(after(10, None, &mut delay), None);
        assert_eq!(delay_us(&after(1, Some(36), &mut delay)), Some("3000"));
        assert_eq!(delay_us(&after(100, None, &mut delay)), Some("3000"));
    }

    #[test]
    fn zones_that_become_far_or_near_later_count() {
        let mut delay = GroupCommit::default();
        assert_eq!(after(5, Some(1), &mut delay), Some(BTreeMap::new()));
        assert_eq!(delay_us(&after(60, Some(36), &mut delay)), Some("3000"));
        assert_eq!(after(60, Some(1), &mut delay), Some(BTreeMap::new()));
    }

    #[test]
    fn postgresql_is_asked_while_there_are_flushes() {
        let mut pace = Pace::default();
        assert!(!pace.is_busy(0, Duration::ZERO), "nothing is known");
        assert!(pace.is_busy(40, SECOND));
        assert!(pace.is_busy(40, SECOND / 2), "the second is not over");
        assert!(!pace.is_busy(41, SECOND), "one is a checkpoint's or so");
        assert!(!pace.is_busy(3, SECOND), "another handle");
        assert!(pace.is_busy(50, SECOND));
    }

    #[test]
    fn questions_fall_into_every_part_of_a_cycle() {
        let mut pace = Pace::default();
        let mut seen = [0; 4];
        let mut at = Duration::ZERO;
        for _ in 0..80 {
            let pause = pace.ask_after();
            assert!(pause >= ASK_AFTER.0 && pause <= ASK_AFTER.1);
            at += pause;
            seen[at.as_millis() as usize % 40 / 10] += 1;
        }
        assert!(seen.iter().all(|count| *count >= 12), "{seen:?}");
    }
}
