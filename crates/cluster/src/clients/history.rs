//! What the clients of a run saw: every transaction they tried, and the answer.
//!
//! Invariant: an attempt is [`Outcome::Acknowledged`] only if the server answered its COMMIT, and
//! [`Outcome::Refused`] only if COMMIT was never sent, or the server answered that it was rolled back. Everything
//! else is unknown and may be present or not. The analysis is pure.

use std::collections::HashMap;
use std::time::Duration;

use super::clock::Offset;

/// What a client knows of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The server said that it is committed.
    Acknowledged,
    /// COMMIT was sent and its answer never came, or was that nobody knows.
    Unknown,
    /// Failed before COMMIT was sent, or was rolled back by the server's word, so it cannot be committed.
    Refused,
}

/// One transaction of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Number of the client, from 0.
    pub client: i32,
    /// Counts the client's transactions; never used twice.
    pub n: i64,
    /// What became of it.
    pub outcome: Outcome,
    /// When the client began it.
    pub began: Offset,
    /// When the client knew.
    pub ended: Offset,
}

/// Everything that all clients tried, in the order in which they knew the outcome.
#[derive(Debug, Clone, Default)]
pub struct History {
    attempts: Vec<Attempt>,
}

impl History {
    /// Sorts attempts by the time they ended.
    pub fn new(mut attempts: Vec<Attempt>) -> History {
        attempts.sort_by_key(|a| (a.ended, a.client, a.n));
        History { attempts }
    }

    /// All attempts.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// How many attempts had this outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.attempts
            .iter()
            .filter(|a| a.outcome == outcome)
            .count() as u64
    }

    /// The outcome of each `(client, n)`.
    pub fn outcomes(&self) -> HashMap<(i32, i64), Outcome> {
        self.attempts
            .iter()
            .map(|a| ((a.client, a.n), a.outcome))
            .collect()
    }

    /// Acknowledged commits, oldest first.
    pub fn commits(&self) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.attempts
            .iter()
            .filter(|a| a.outcome == Outcome::Acknowledged)
    }

    /// Acknowledged commits a second between two moments.
    pub fn rate(&self, from: Offset, to: Offset) -> f64 {
        let seconds = to.since(from).as_secs_f64();
        if seconds <= 0.0 {
            return 0.0;
        }
        let within = self
            .commits()
            .filter(|a| from <= a.ended && a.ended < to)
            .count();
        (within as f64 / seconds * 10.0).round() / 10.0
    }

    /// The silence that a crash at `crash` caused: the longest one after it, up to the first acknowledgement of a
    /// transaction that began afterwards. What was under way at the crash may have been answered before the silence, or,
    /// by a proxy, after it. `None` if no commit followed.
    pub fn outage(&self, crash: Offset) -> Option<Outage> {
        let first = self.commits().find(|a| a.began > crash)?.ended;
        let answers = self.commits().map(|a| a.ended).filter(|&at| at <= first);
        let answers: Vec<Offset> = std::iter::once(Offset(0)).chain(answers).collect();
        let silences = answers.windows(2).filter(|pair| pair[1] > crash);
        let longest = silences.max_by_key(|pair| pair[1].since(pair[0]))?;
        Some(Outage {
            last_before: longest[0],
            first_after: longest[1],
        })
    }

    /// Acknowledged commits in each slice of time from zero to `end`.
    pub fn buckets(&self, width: Duration, end: Offset) -> Vec<u32> {
        let width = width.as_micros().max(1) as i64;
        let slices = usize::try_from((end.0 + width - 1) / width).unwrap_or(0);
        let mut counts = vec![0; slices];
        for commit in self.commits() {
            let slice = usize::try_from(commit.ended.0 / width).ok();
            if let Some(count) = slice.and_then(|s| counts.get_mut(s)) {
                *count += 1;
            }
        }
        counts
    }
}

/// A time without commits, as the clients saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// The last acknowledgement before it.
    pub last_before: Offset,
    /// The first acknowledgement after it.
    pub first_after: Offset,
}

impl Outage {
    /// How long nothing was acknowledged.
    pub fn length(&self) -> Duration {
        self.first_after.since(self.last_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(client: i32, n: i64, outcome: Outcome, began_ms: i64, ended_ms: i64) -> Attempt {
        Attempt {
            client,
            n,
            outcome,
            began: Offset(began_ms * 1000),
            ended: Offset(ended_ms * 1000),
        }
    }

    fn crash_at_100ms() -> History {
        History::new(vec![
            attempt(1, 3, Outcome::Acknowledged, 930, 950),
            attempt(1, 1, Outcome::Acknowledged, 10, 20),
            attempt(1, 2, Outcome::Unknown, 95, 101),
            attempt(2, 1, Outcome::Acknowledged, 90, 102),
            attempt(2, 2, Outcome::Refused, 400, 401),
        ])
    }

    #[test]
    fn outage_runs_from_the_last_answer_of_the_old_active_to_the_first_of_the_new() {
        let outage = crash_at_100ms().outage(Offset(100_000)).unwrap();
        // (2,1) was answered just after the kill, but it began before.
        assert_eq!(outage.last_before, Offset(102_000));
        assert_eq!(outage.first_after, Offset(950_000));
        assert_eq!(outage.length(), Duration::from_millis(848));
    }

    #[test]
    fn a_transaction_that_a_proxy_took_over_the_outage_ends_it() {
        let history = History::new(vec![
            attempt(1, 1, Outcome::Acknowledged, 80, 90),
            attempt(2, 1, Outcome::Acknowledged, 95, 400),
            attempt(1, 2, Outcome::Acknowledged, 91, 410),
            attempt(2, 2, Outcome::Acknowledged, 401, 411),
        ]);
        let outage = history.outage(Offset(100_000)).unwrap();
        assert_eq!(outage.last_before, Offset(90_000));
        assert_eq!(outage.first_after, Offset(400_000));
    }

    #[test]
    fn outage_without_a_commit_after_it_is_not_reported() {
        assert_eq!(crash_at_100ms().outage(Offset(940_000)), None);
    }

    #[test]
    fn throughput_counts_acknowledged_attempts_only() {
        let history = crash_at_100ms();
        assert_eq!(
            history.buckets(Duration::from_millis(100), Offset(1_000_000)),
            [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(history.rate(Offset(0), Offset(500_000)), 4.0);
        assert_eq!(history.count(Outcome::Unknown), 1);
    }

    #[test]
    fn commits_after_the_end_fall_into_no_bucket() {
        let history = crash_at_100ms();
        let counts = history.buckets(Duration::from_millis(100), Offset(150_000));
        assert_eq!(counts, [1, 1]);
    }
}
