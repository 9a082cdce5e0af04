//! Counts and times of what clients do, and how a client's activity becomes them.
//!
//! Invariant: a number never goes down. A time is counted when it is over, once for each statement, transaction or wait.

use std::time::{Duration, Instant};

use super::session::{Counts, Session};

/// Upper bounds of the buckets of times, in microseconds; the last bucket has none.
pub const BOUNDS: [u64; 16] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// Times by their length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Histogram {
    /// Counts a time.
    pub fn observe(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.counts[bucket] += 1;
        self.sum += time;
    }

    /// Number of times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All times together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Number of times up to each of [`BOUNDS`].
    pub fn cumulative(&self) -> [u64; BOUNDS.len()] {
        let mut below = 0;
        std::array::from_fn(|at| {
            below += self.counts[at];
            below
        })
    }
}

/// Numbers of the clients of one user in one database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Statements and batches, from their arrival to their answer.
    pub queries: Histogram,
    /// Transactions, from the arrival of their first statement to their last answer.
    pub transactions: Histogram,
    /// Waits for a connection to a server. Each ends with one.
    pub waits: Histogram,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
}

/// Activity of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activity {
    /// Nothing, between two transactions.
    #[default]
    Idle,
    /// Nothing, within a transaction.
    IdleInTransaction,
    /// A statement is on a server, or waits for one.
    Statement,
}

impl Activity {
    /// That of a session.
    pub fn of(session: &Session) -> Activity {
        match (session.is_idle(), session.is_idle_in_transaction()) {
            (true, _) => Activity::Idle,
            (_, true) => Activity::IdleInTransaction,
            _ => Activity::Statement,
        }
    }
}

/// State of a client's clocks.
#[derive(Debug, Default)]
pub struct Clocks {
    activity: Activity,
    batches: u64,
    transactions: u64,
    query: Option<Instant>,
    transaction: Option<Instant>,
}

impl Clocks {
    /// Goes on from the counts of a session that has begun elsewhere.
    pub fn begin_at(&mut self, counts: &Counts) {
        (self.batches, self.transactions) = (counts.batches, counts.transactions);
    }

    /// True if there is something to note.
    pub fn differ(&self, activity: Activity, counts: &Counts) -> bool {
        (self.activity, self.batches, self.transactions)
            != (activity, counts.batches, counts.transactions)
    }

    /// Notes what the client does `now`, and counts in `tally` what is over.
    pub fn note(&mut self, activity: Activity, counts: &Counts, now: Instant, tally: &mut Tally) {
        let queries = counts.batches - self.batches;
        let transactions = counts.transactions - self.transactions;
        self.transaction.get_or_insert(now);
        self.query.get_or_insert(now);
        let since = |clock: Option<Instant>| clock.map_or(Duration::ZERO, |since| now - since);
        for _ in 0..queries {
            tally.queries.observe(since(self.query));
        }
        for _ in 0..transactions {
            tally.transactions.observe(since(self.transaction));
        }
        let is_busy = activity == Activity::Statement;
        if queries > 0 || !is_busy {
            self.query = is_busy.then_some(now);
        }
        if transactions > 0 || activity == Activity::Idle {
            self.transaction = (activity != Activity::Idle).then_some(now);
        }
        self.activity = activity;
        (self.batches, self.transactions) = (counts.batches, counts.transactions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_buckets_that_prometheus_expects() {
        let mut histogram = Histogram::default();
        let micros = Duration::from_micros;
        for time in [0, 250, 251, 1_000, 30_000_000, 30_000_001] {
            histogram.observe(micros(time));
        }
        let cumulative = histogram.cumulative();
        assert_eq!(cumulative[..4], [2, 3, 4, 4], "bounds are included");
        assert_eq!((cumulative[15], histogram.count()), (5, 6));
        assert_eq!(histogram.sum(), micros(60_001_502));
        assert!(BOUNDS.is_sorted());
    }

    /// Notes at given milliseconds: the activity, and the batches and transactions that are over.
    fn run(notes: &[(u64, Activity, u64, u64)]) -> Tally {
        let begin = Instant::now();
        let (mut clocks, mut tally) = (Clocks::default(), Tally::default());
        for (at, activity, batches, transactions) in notes {
            let counts = Counts {
                batches: *batches,
                transactions: *transactions,
                ..Counts::default()
            };
            let now = begin + Duration::from_millis(*at);
            clocks.note(*activity, &counts, now, &mut tally);
        }
        tally
    }

    #[test]
    fn statements_and_transactions_have_their_own_clocks() {
        use Activity::{Idle, IdleInTransaction, Statement};
        let tally = run(&[
            (0, Statement, 0, 0),
            (10, IdleInTransaction, 1, 0),
            (40, Statement, 1, 0),
            (45, Idle, 2, 1),
            (1000, Statement, 2, 1),
            (1003, Idle, 3, 2),
        ]);
        let millis = Duration::from_millis;
        assert_eq!(
            (tally.queries.count(), tally.queries.sum()),
            (3, millis(18))
        );
        assert_eq!(
            (tally.transactions.count(), tally.transactions.sum()),
            (2, millis(48))
        );
    }

    #[test]
    fn simultaneous_events_count_one_by_one() {
        use Activity::{Idle, Statement};
        let tally = run(&[
            (0, Statement, 0, 0),
            (2, Statement, 1, 1),
            (5, Statement, 2, 2),
            (6, Idle, 4, 4),
            (9, Idle, 5, 5),
        ]);
        let millis = Duration::from_millis;
        assert_eq!((tally.queries.count(), tally.queries.sum()), (5, millis(7)));
        assert_eq!(tally.transactions, tally.queries);
    }
}
