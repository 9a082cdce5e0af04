//! Finds the shortest delay at which nearly all commits are one group (pure).
//!
//! A delay that is a little too short costs a third of all commits, one that is a little too long a few per cent. So it
//! is made longer as soon as commits wait for two flushes, and shorter with hesitation. Whether longer ones gained
//! anything shows when the longest has been tried: where clients are not in step at all, the delay returns to the one
//! with which a commit waited least.
//!
//! Invariant: calm. Every change is at least by [`STEP_MIN`], and what was found to be too short, or in vain, is not tried
//! again for [`PATIENCE_MIN`] and then ever more rarely, unless clients or zones are not those for which it was found.

use std::time::Duration;

use super::window::{Measured, Reading, Window};

/// Parts of a round trip: what it begins with, and between what it stays.
const PART: u32 = 12;
const PART_MIN: u32 = 24;
const PART_MAX: u32 = 4;
/// A longer wait costs more than it gains, however far the zones are.
const DELAY_MAX: Duration = Duration::from_millis(20);
/// No finer differences are told.
const GRAIN_US: u64 = 100;
/// With more flushes than these in a commit's wait there are two groups, or many commits come too late for theirs; with
/// fewer than the second there is one. It is a little less than one flush, because clients are at work between flushes.
const TWO_GROUPS: f64 = 1.12;
const ONE_GROUP: f64 = 1.05;
/// By what it is made longer or shorter: by more, the more flushes a commit waits for.
const LONGER: f64 = 1.3;
const LONGER_MAX: f64 = 1.7;
const SHORTER: f64 = 0.8;
/// A change that is not worth its trouble: each rewrites the shared configuration.
const STEP_MIN: f64 = 1.2;
/// So many windows must show one group before a shorter delay is tried ...
const CALM_WINDOWS: u32 = 3;
/// ... and so many two groups, where it was found out before what suits.
const CROWDED_WINDOWS: u32 = 2;
/// Waits that differ by less are the same.
const SAME_WAIT: f64 = 1.05;
/// How long what was found counts, the first time and later.
const PATIENCE_MIN: Duration = Duration::from_secs(10 * 60);
const PATIENCE_MAX: Duration = Duration::from_secs(80 * 60);
/// How many times more or fewer clients are others, and how many times farther zones.
const OTHER_CLIENTS: f64 = 1.5;
const OTHER_DISTANCE: f64 = 1.25;

#[derive(Debug)]
pub(super) struct Tuner {
    round_trip: Duration,
    delay: Duration,
    window: Window,
    course: Course,
    found: Option<Found>,
    /// How long the next finding counts.
    patience: Duration,
}

/// What is being tried.
#[derive(Debug)]
enum Course {
    /// Nothing. In a row, so many windows showed one group, and so many two.
    Stays { calm: u32, crowded: u32 },
    /// Longer ones, after these.
    Climbs(Vec<Tried>),
    /// A shorter one than this.
    Shortens { from: Duration },
}

const STAYS: Course = Course::Stays {
    calm: 0,
    crowded: 0,
};

#[derive(Debug, Clone, Copy)]
struct Tried {
    delay: Duration,
    /// How long a commit waited with it.
    wait: Duration,
}

/// What was found out, and for whom.
#[derive(Debug)]
struct Found {
    what: What,
    age: Duration,
    clients: f64,
    round_trip: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    /// With this there are two groups.
    TooShort(Duration),
    /// There are two groups whatever the delay.
    InVain,
}

impl Tuner {
    pub(super) fn new(round_trip: Duration) -> Tuner {
        let mut tuner = Tuner {
            round_trip,
            delay: Duration::ZERO,
            window: Window::default(),
            course: STAYS,
            found: None,
            patience: PATIENCE_MIN,
        };
        tuner.delay = tuner.bounded(round_trip / PART);
        tuner
    }

    /// How long commits should wait for each other.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    /// Time has passed, and zones are so far now.
    pub(super) fn pass(&mut self, passed: Duration, round_trip: Duration) {
        self.round_trip = round_trip;
        let bounded = self.bounded(self.delay);
        if differ(bounded, self.delay, STEP_MIN) {
            self.delay = bounded;
            self.course = STAYS;
        }
        if let Some(found) = &mut self.found {
            found.age += passed;
        }
    }

    /// One more reading.
    pub(super) fn read(&mut self, reading: Reading) {
        let before = self.delay;
        if let Some(measured) = self.window.read(reading, self.delay, self.round_trip) {
            self.judge(measured);
            if self.delay != before {
                let (turns, delay) = (measured.turns, self.delay);
                tracing::debug!(
                    turns,
                    ?before,
                    ?delay,
                    "commits wait for each other otherwise"
                );
            }
        }
    }

    fn judge(&mut self, measured: Measured) {
        self.forget_what_counts_no_more(measured);
        let one_group = measured.turns < ONE_GROUP;
        match std::mem::replace(&mut self.course, STAYS) {
            Course::Stays { calm, .. } if one_group => self.stay_calm(calm + 1),
            Course::Stays { crowded, .. } if measured.turns > TWO_GROUPS => {
                self.be_crowded(crowded + 1, measured);
            }
            Course::Climbs(tried) if one_group => {
                if let Some(last) = tried.last() {
                    self.find(What::TooShort(last.delay), measured);
                }
            }
            Course::Climbs(tried) => self.climb(tried, measured),
            Course::Shortens { from } if !one_group => {
                self.find(What::TooShort(self.delay), measured);
                self.delay = from;
            }
            // Neither is sure, or the shorter one is as good.
            Course::Stays { .. } | Course::Shortens { .. } => {}
        }
    }

    fn stay_calm(&mut self, calm: u32) {
        self.course = Course::Stays { calm, crowded: 0 };
        if calm >= CALM_WINDOWS {
            self.shorten();
        }
    }

    fn be_crowded(&mut self, crowded: u32, measured: Measured) {
        match self.found.as_ref().map(|found| found.what) {
            Some(What::InVain) => {}
            Some(What::TooShort(_)) if crowded < CROWDED_WINDOWS => {
                self.course = Course::Stays { calm: 0, crowded };
            }
            _ => self.climb(Vec::new(), measured),
        }
    }

    /// Tries a longer one after those, if there is one.
    fn climb(&mut self, mut tried: Vec<Tried>, measured: Measured) {
        tried.push(Tried {
            delay: self.delay,
            wait: measured.wait,
        });
        let by = measured.turns.clamp(LONGER, LONGER_MAX);
        let longer = self.bounded(self.delay.mul_f64(by));
        if differ(longer, self.delay, STEP_MIN) {
            self.delay = longer;
            self.course = Course::Climbs(tried);
        } else {
            self.find(What::InVain, measured);
            self.delay = best(&tried).unwrap_or(self.delay);
        }
    }

    fn shorten(&mut self) {
        let shorter = self.bounded(self.delay.mul_f64(SHORTER));
        let too_short = match self.found.as_ref().map(|found| found.what) {
            Some(What::TooShort(known)) => shorter < known || !differ(shorter, known, STEP_MIN),
            Some(What::InVain) | None => false,
        };
        if !too_short && differ(shorter, self.delay, STEP_MIN) {
            let from = std::mem::replace(&mut self.delay, shorter);
            self.course = Course::Shortens { from };
        }
    }

    fn find(&mut self, what: What, measured: Measured) {
        self.found = Some(Found {
            what,
            age: Duration::ZERO,
            clients: measured.clients,
            round_trip: self.round_trip,
        });
    }

    fn forget_what_counts_no_more(&mut self, measured: Measured) {
        let Some(found) = &self.found else { return };
        let is_other = ratio(found.clients, measured.clients) > OTHER_CLIENTS
            || differ(found.round_trip, self.round_trip, OTHER_DISTANCE);
        if is_other {
            self.patience = PATIENCE_MIN;
            self.found = None;
        } else if found.age >= self.patience {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.found = None;
        }
    }

    fn bounded(&self, delay: Duration) -> Duration {
        let most = (self.round_trip / PART_MAX).min(DELAY_MAX);
        let least = (self.round_trip / PART_MIN).min(most);
        let delay_us = delay.clamp(least, most).as_micros() as u64;
        Duration::from_micros(delay_us.next_multiple_of(GRAIN_US))
    }
}

/// The shortest of those with which a commit waited least, or hardly longer.
fn best(tried: &[Tried]) -> Option<Duration> {
    let least = tried.iter().map(|tried| tried.wait).min()?;
    let good = tried
        .iter()
        .find(|tried| tried.wait <= least.mul_f64(SAME_WAIT));
    good.map(|tried| tried.delay)
}

fn differ(one: Duration, other: Duration, times: f64) -> bool {
    // What is nearly that much counts, because delays are rounded.
    ratio(one.as_secs_f64(), other.as_secs_f64()) > times - 0.02
}

fn ratio(one: f64, other: f64) -> f64 {
    one.max(other) / one.min(other).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuner() -> Tuner {
        Tuner::new(Duration::from_millis(36))
    }

    /// What a window shows that has so many turns.
    fn judged(tuner: &mut Tuner, turns: f64, clients: f64, wait_ms: u64) -> u128 {
        let measured = Measured {
            wait: Duration::from_millis(wait_ms),
            turns,
            clients,
        };
        tuner.judge(measured);
        tuner.delay().as_micros()
    }

    fn times(count: u32, tuner: &mut Tuner, turns: f64) -> u128 {
        let delays = (0..count).map(|_| judged(tuner, turns, 8.0, 50));
        delays.last().unwrap_or_default()
    }

    #[test]
    fn window_that_was_too_short_is_not_tried_again_for_a_while() {
        let mut tuner = tuner();
        assert_eq!(times(2, &mut tuner, 1.0), 3000);
        assert_eq!(times(1, &mut tuner, 1.0), 2400);
        assert_eq!(times(1, &mut tuner, 1.8), 3000, "back at once");
        assert_eq!(times(100, &mut tuner, 1.0), 3000);
        tuner.pass(PATIENCE_MIN, Duration::from_millis(36));
        assert_eq!(times(1, &mut tuner, 1.0), 2400);
        assert_eq!(times(1, &mut tuner, 1.8), 3000);
        tuner.pass(PATIENCE_MIN, Duration::from_millis(36));
        assert_eq!(times(100, &mut tuner, 1.0), 3000, "ever more rarely");
    }

    #[test]
    fn windows_passed_by_a_climb_are_known_to_be_too_short() {
        let mut tuner = tuner();
        assert_eq!(times(1, &mut tuner, 1.3), 3900);
        assert_eq!(times(1, &mut tuner, 1.3), 5100);
        assert_eq!(times(100, &mut tuner, 1.0), 5100);
        assert_eq!(times(1, &mut tuner, 1.3), 5100, "one window proves little");
        assert_eq!(times(1, &mut tuner, 1.0), 5100);
        assert_eq!(times(1, &mut tuner, 1.3), 5100, "not in a row");
        assert_eq!(times(1, &mut tuner, 1.3), 6700);
    }

    #[test]
    fn the_more_flushes_a_commit_waits_for_the_longer_is_the_step() {
        assert_eq!(times(1, &mut tuner(), 1.2), 3900);
        assert_eq!(times(1, &mut tuner(), 1.5), 4500);
        assert_eq!(times(1, &mut tuner(), 3.0), 5100, "but not by any length");
    }

    #[test]
    fn other_clients_or_zones_are_tried_anew() {
        let mut tuner = tuner();
        times(3, &mut tuner, 1.0);
        assert_eq!(times(1, &mut tuner, 1.8), 3000);
        assert_eq!(judged(&mut tuner, 1.8, 9.0, 50), 3000);
        assert_eq!(judged(&mut tuner, 1.3, 32.0, 50), 3900, "at once");
        assert_eq!(times(1, &mut tuner, 1.0), 3900);
        tuner.pass(Duration::ZERO, Duration::from_millis(50));
        assert_eq!(times(3, &mut tuner, 1.0), 3200);
    }

    #[test]
    fn delay_with_the_shortest_wait_is_taken_where_none_helps() {
        let mut tuner = tuner();
        let mut delays = Vec::new();
        for wait_ms in [58, 54, 53, 52, 60] {
            delays.push(judged(&mut tuner, 1.3, 8.0, wait_ms));
        }
        assert_eq!(delays, [3900, 5100, 6700, 8800, 3900]);
        assert_eq!(times(100, &mut tuner, 1.3), 3900);
        assert_eq!(times(2, &mut tuner, 1.0), 3900);
        assert_eq!(
            times(1, &mut tuner, 1.0),
            3200,
            "but shorter ones are not in vain"
        );
    }

    #[test]
    fn window_stays_within_its_part_of_a_round_trip() {
        let far = Tuner::new(Duration::from_millis(600));
        assert_eq!(far.delay(), DELAY_MAX);
        let mut tuner = tuner();
        tuner.pass(Duration::ZERO, Duration::from_millis(35));
        assert_eq!(
            tuner.delay(),
            Duration::from_micros(3000),
            "not for a trifle"
        );
        tuner.pass(Duration::ZERO, Duration::from_millis(120));
        assert_eq!(tuner.delay(), Duration::from_micros(5000));
        tuner.pass(Duration::ZERO, Duration::from_millis(12));
        assert_eq!(tuner.delay(), Duration::from_micros(3000));
        let mut shortest = Tuner::new(Duration::from_millis(36));
        for _ in 0..100 {
            times(10, &mut shortest, 1.0);
        }
        assert_eq!(shortest.delay(), Duration::from_micros(1600));
    }
}
