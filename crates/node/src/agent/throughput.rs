//! How much the active does: what its PostgreSQL commits, and how much log becomes durable, each second.
//!
//! Commits are PostgreSQL's own count over all databases, asked for on one session that stays open; the
//! log's end is known anyway. Invariant: never in the way. What is not known is left out, and the
//! session is given up where PostgreSQL does not answer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgdata::sealer::Sealer;
use pgserver::{Session, StartOptions};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior};
use volume::lsn::Lsn;

use super::asking::Asking;

/// How often it is measured.
const EVERY: Duration = Duration::from_secs(1);

/// What an active did in the last second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Throughput {
    /// Transactions that PostgreSQL committed, also those that only read.
    pub commits_per_second: Option<f64>,
    /// Log that became durable.
    pub log_bytes_per_second: f64,
}

/// Throughput for the node's status; nothing before the second measurement.
pub(super) type ThroughputStatus = Arc<Mutex<Option<Throughput>>>;

/// Measures until it is aborted, at the PostgreSQL that was started with these options.
pub(super) async fn run(postgres: StartOptions, sealer: Arc<Sealer>, told: ThroughputStatus) {
    let mut asking = Asking::new(postgres);
    let mut meter = Meter::default();
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let commits = asking.ask("what it committed", Session::commits).await;
        let reading = Reading {
            at: Instant::now(),
            commits: commits.flatten(),
            log_end: sealer.synced().borrow().end,
        };
        *told.lock() = meter.read(reading);
    }
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    commits: Option<u64>,
    log_end: Lsn,
}

/// From counters to rates (pure).
#[derive(Debug, Default)]
struct Meter {
    last: Option<Reading>,
    /// Commits of our own questions that PostgreSQL's count does not show yet.
    own: u64,
}

impl Meter {
    fn read(&mut self, now: Reading) -> Option<Throughput> {
        let last = self.last.replace(now)?;
        let seconds = now.at.duration_since(last.at).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let counts = last.commits.zip(now.commits);
        // The count begins anew when somebody resets PostgreSQL's statistics.
        let more = counts.and_then(|(before, after)| after.checked_sub(before));
        if last.commits.is_some() {
            self.own += 1;
        }
        let theirs = more.map(|more| more.saturating_sub(self.own));
        self.own = self.own.saturating_sub(more.unwrap_or(self.own));
        Some(Throughput {
            commits_per_second: theirs.map(|count| count as f64 / seconds),
            log_bytes_per_second: now.log_end.bytes_since(last.log_end) as f64 / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(counts: &[(u64, Option<u64>, u64)]) -> Vec<Option<(Option<f64>, f64)>> {
        let start = Instant::now();
        let mut meter = Meter::default();
        let mut read = |&(seconds, commits, log_end): &(u64, Option<u64>, u64)| {
            let rates = meter.read(Reading {
                at: start + Duration::from_secs(seconds),
                commits,
                log_end: Lsn(log_end),
            });
            rates.map(|r| (r.commits_per_second, r.log_bytes_per_second))
        };
        counts.iter().map(&mut read).collect()
    }

    #[test]
    fn rates_are_differences_without_our_own_questions() {
        let read = rates(&[(0, Some(100), 0), (1, Some(111), 500), (3, Some(132), 2500)]);
        assert_eq!(
            read,
            [None, Some((Some(10.0), 500.0)), Some((Some(10.0), 1000.0))]
        );
    }

    #[test]
    fn an_idle_server_commits_nothing_however_late_it_counts_our_questions() {
        let read = rates(&[
            (0, Some(5), 0),
            (1, Some(5), 0),
            (2, Some(7), 0),
            (3, Some(8), 0),
        ]);
        assert!(
            read[1..].iter().all(|r| *r == Some((Some(0.0), 0.0))),
            "{read:?}"
        );
    }

    #[test]
    fn unknown_throughput_is_not_zero() {
        let read = rates(&[
            (0, Some(50), 0),
            (1, None, 10),
            (2, Some(90), 20),
            (3, Some(3), 20),
        ]);
        let commits: Vec<_> = read.into_iter().map(|r| r.and_then(|r| r.0)).collect();
        assert_eq!(commits, [None, None, None, None]);
    }
}
