//! From the readings of five seconds to how commits wait (pure).
//!
//! By Little's law a commit waits as long as the number that wait, divided by the number that come in a second.
//! Waiting for a flush is what counts, not the time that a transaction's statements take: where that is as long
//! as a flush, two groups that take turns lose nothing.
//!
//! Invariant: a window is of one delay, without gaps and without counters that began anew. Anything else begins
//! another one.

use std::time::Duration;

/// How long a window is: about thirty readings, whose mean is exact to a twentieth, about.
const LASTS: Duration = Duration::from_secs(5);
/// Between two readings of one window: PostgreSQL or the zones stood still, or the load did.
const GAP_MAX: Duration = Duration::from_secs(2);
/// Fewer readings, or fewer transactions, say nothing.
const READINGS_MIN: u32 = 16;
const TRANSACTIONS_MIN: u64 = 50;
/// Nor do fewer who wait, on average: PostgreSQL waits for nobody then.
const WAITING_MIN: f64 = 3.0;

/// What PostgreSQL and the storage say at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Since the one before.
    pub passed: Duration,
    /// Commits that wait for a flush.
    pub waiting: u64,
    /// Clients that did something lately.
    pub clients: u64,
    /// Transactions that wrote, so far.
    pub transactions: u64,
    /// Flushes, so far.
    pub flushes: u64,
    /// The `commit_delay` that is in force.
    pub delay: Duration,
}

/// What a window shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// How long a commit waits.
    pub wait: Duration,
    /// How many flushes that is: one if all commits are one group, nearly two if there are two groups.
    pub turns: f64,
    /// Clients that did something within a second, on average.
    pub clients: f64,
}

/// The readings since a window began.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Where its counters began.
    first: Option<Reading>,
    last: Option<Reading>,
    lasted: Duration,
    readings: u32,
    waiting: u64,
    clients: u64,
}

impl Window {
    /// One more reading, at a PostgreSQL that was told `delay`, with zones `round_trip` away. What the window shows, if
    /// it is over and there is something to learn.
    pub(super) fn read(
        &mut self,
        now: Reading,
        delay: Duration,
        round_trip: Duration,
    ) -> Option<Measured> {
        let goes_on = self.last.is_some_and(|last| {
            now.passed <= GAP_MAX
                && now.transactions >= last.transactions
                && now.flushes >= last.flushes
        });
        // What was told is not in force yet, or an operator has said something else.
        if !goes_on || now.delay != delay {
            self.begin(now);
            return None;
        }
        self.last = Some(now);
        self.lasted += now.passed;
        self.readings += 1;
        self.waiting += now.waiting;
        self.clients += now.clients;
        if self.lasted < LASTS {
            return None;
        }
        let measured = self.measured(delay, round_trip);
        self.begin(now);
        measured
    }

    fn begin(&mut self, first: Reading) {
        *self = Window {
            first: Some(first),
            last: Some(first),
            ..Window::default()
        };
    }

    fn measured(&self, delay: Duration, round_trip: Duration) -> Option<Measured> {
        let (first, last) = (self.first?, self.last?);
        let transactions = last.transactions - first.transactions;
        let waiting = self.waiting as f64 / f64::from(self.readings);
        if self.readings < READINGS_MIN || transactions < TRANSACTIONS_MIN || waiting < WAITING_MIN
        {
            return None;
        }
        let seconds = self.lasted.as_secs_f64();
        let wait = waiting * seconds / transactions as f64;
        let by_count = wait * (last.flushes - first.flushes) as f64 / seconds;
        let by_distance = wait / (round_trip + delay).as_secs_f64();
        Some(Measured {
            wait: Duration::from_secs_f64(wait),
            // A checkpoint's flushes are counted too, and a flush can take longer than a round trip: both must say it.
            turns: by_count.min(by_distance),
            clients: self.clients as f64 / f64::from(self.readings),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(3);
    const ROUND_TRIP: Duration = Duration::from_millis(37);

    /// The last of so many readings, of which each quarter of a second has so many transactions and flushes.
    fn last(waiting: u64, each: (u64, u64), change: impl Fn(usize, &mut Reading)) -> Vec<Measured> {
        let mut window = Window::default();
        let readings = (0..84).map(|at| {
            let mut reading = Reading {
                passed: Duration::from_millis(250),
                waiting,
                clients: 10,
                transactions: 1000 + at as u64 * each.0,
                flushes: at as u64 * each.1,
                delay: DELAY,
            };
            change(at, &mut reading);
            reading
        });
        let measured = readings.filter_map(|reading| window.read(reading, DELAY, ROUND_TRIP));
        measured.collect()
    }

    #[test]
    fn turns_are_flushes_that_a_commit_waits_for() {
        let windows = last(10, (50, 5), |_, _| {});
        assert_eq!(windows.len(), 4);
        assert_eq!(windows[0].wait, Duration::from_millis(50));
        assert!((windows[0].turns - 1.0).abs() < 1e-9, "{windows:?}");
        assert!((windows[0].clients - 10.0).abs() < 1e-9);
        let windows = last(10, (31, 6), |_, _| {});
        assert!(windows[1].turns > 1.9, "{windows:?}");
    }

    #[test]
    fn a_checkpoints_flushes_are_not_turns_and_slow_ones_are_not_either() {
        assert!(last(10, (60, 100), |_, _| {})[0].turns < 1.1);
        assert!(last(10, (30, 3), |_, _| {})[0].turns < 1.01);
    }

    #[test]
    fn too_little_says_nothing() {
        assert!(last(2, (50, 5), |_, _| {}).is_empty());
        assert!(last(10, (1, 1), |_, _| {}).is_empty());
        assert!(last(0, (0, 0), |_, _| {}).is_empty());
        let slow = |_: usize, reading: &mut Reading| reading.passed = Duration::from_secs(1);
        assert!(last(10, (50, 5), slow).is_empty(), "too few readings");
    }

    #[test]
    fn interruption_of_a_window_begins_another_one() {
        let interrupted = |change: fn(&mut Reading)| {
            let at_times = move |at: usize, reading: &mut Reading| {
                if at.is_multiple_of(15) {
                    change(reading);
                }
            };
            assert!(last(10, (50, 5), at_times).is_empty());
        };
        interrupted(|reading| reading.transactions = 1);
        interrupted(|reading| reading.flushes = 0);
        interrupted(|reading| reading.passed = Duration::from_secs(3));
        interrupted(|reading| reading.delay = Duration::from_millis(2));
    }
}
