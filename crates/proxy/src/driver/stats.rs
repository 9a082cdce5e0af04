//! Numbers by database and user, and their averages of the last minute.
//!
//! They are kept as long as the process runs, so that nobody who reads them sees one go down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::core::stats::{Histogram, Tally};

/// Time that averages are of.
const PERIOD: Duration = Duration::from_secs(60);

/// Sums of one database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Connections given to clients, transactions, statements, and bytes from clients and to them.
    pub counts: [u64; 5],
    /// Times of transactions, of statements and of waits, in microseconds.
    pub times: [u64; 3],
}

fn micros(histogram: &Histogram) -> u64 {
    u64::try_from(histogram.sum().as_micros()).unwrap_or(u64::MAX)
}

impl Sums {
    fn add(&mut self, tally: &Tally) {
        let counts = [
            tally.waits.count(),
            tally.transactions.count(),
            tally.queries.count(),
            tally.received,
            tally.sent,
        ];
        let times = [&tally.transactions, &tally.queries, &tally.waits].map(micros);
        let mut all = self.counts.iter_mut().zip(counts);
        all.by_ref().for_each(|(sum, more)| *sum += more);
        let all = self.times.iter_mut().zip(times);
        all.for_each(|(sum, more)| *sum += more);
    }

    fn since(&self, before: &Sums) -> Sums {
        Sums {
            counts: std::array::from_fn(|at| self.counts[at] - before.counts[at]),
            times: std::array::from_fn(|at| self.times[at] - before.times[at]),
        }
    }

    /// Counts by second, and the mean of each time.
    fn averages(&self, lasted: Duration) -> Sums {
        let seconds = lasted.as_secs_f64().max(f64::EPSILON);
        // The counts of transactions, statements and waits.
        let of = [self.counts[1], self.counts[2], self.counts[0]];
        Sums {
            counts: self
                .counts
                .map(|count| (count as f64 / seconds).round() as u64),
            times: std::array::from_fn(|at| self.times[at].checked_div(of[at]).unwrap_or(0)),
        }
    }
}

/// Database and user.
pub type Names = (String, String);

/// Numbers of the clients of one user in one database.
pub type SharedTally = Arc<Mutex<Tally>>;

struct Period {
    began: Instant,
    then: BTreeMap<String, Sums>,
    averages: BTreeMap<String, Sums>,
}

/// All numbers.
pub struct Stats {
    all: Mutex<BTreeMap<Names, SharedTally>>,
    period: Mutex<Period>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            all: Mutex::default(),
            period: Mutex::new(Period {
                began: Instant::now(),
                then: BTreeMap::new(),
                averages: BTreeMap::new(),
            }),
        }
    }
}

impl Stats {
    /// Those of a user in a database.
    pub fn of(&self, database: &str, user: &str) -> SharedTally {
        let names = (database.to_owned(), user.to_owned());
        self.all.lock().entry(names).or_default().clone()
    }

    /// All of them.
    pub fn all(&self) -> Vec<(Names, Tally)> {
        let all = self.all.lock();
        all.iter()
            .map(|(names, own)| (names.clone(), *own.lock()))
            .collect()
    }

    /// Sums and averages by database.
    pub fn by_database(&self) -> Vec<(String, Sums, Sums)> {
        let period = self.period.lock();
        let all = self.sums().into_iter();
        all.map(|(database, sums)| {
            let averages = period.averages.get(&database).copied();
            (database, sums, averages.unwrap_or_default())
        })
        .collect()
    }

    /// Looks whether a period is over.
    pub fn tick(&self, now: Instant) {
        let mut period = self.period.lock();
        let lasted = now - period.began;
        if lasted < PERIOD {
            return;
        }
        let sums = self.sums();
        let then = std::mem::replace(&mut period.then, sums.clone());
        period.began = now;
        period.averages = sums
            .into_iter()
            .map(|(database, sums)| {
                let before = then.get(&database).copied().unwrap_or_default();
                (database, sums.since(&before).averages(lasted))
            })
            .collect();
    }

    fn sums(&self) -> BTreeMap<String, Sums> {
        let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
        for ((database, _), tally) in self.all() {
            sums.entry(database).or_default().add(&tally);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_of_the_last_minute() {
        let stats = Stats::default();
        let begin = Instant::now();
        let observe = |user: &str, count: u64| {
            let own = stats.of("d", user);
            for _ in 0..count {
                own.lock().queries.observe(Duration::from_micros(300));
            }
            own.lock().received += 6_000 * count;
        };
        observe("a", 1);
        observe("b", 120);
        let [(_, sums, averages)] = stats.by_database().try_into().expect("one database");
        assert_eq!((sums.counts[2], sums.times[1]), (121, 36_300));
        assert_eq!(averages, Sums::default(), "no minute is over");
        stats.tick(begin + PERIOD);
        observe("a", 240);
        stats.tick(begin + PERIOD * 3 / 2);
        let averages = |stats: &Stats| stats.by_database()[0].2;
        assert_eq!(averages(&stats).counts, [0, 0, 2, 12_100, 0]);
        assert_eq!(averages(&stats).times, [0, 300, 0]);
        stats.tick(begin + PERIOD * 2);
        assert_eq!(averages(&stats).counts[2], 4);
    }
}
