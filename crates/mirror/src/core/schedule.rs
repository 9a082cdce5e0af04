//! The order in which a standby executes transactions of the log.
//!
//! ```text
//!   push (in the log's order) ──▶ waits ──(every earlier one that conflicts is done)──▶ ready ──▶ done
//! ```
//!
//! Invariant: a transaction is ready only when every transaction before it in the log with which it conflicts is done. Others run
//! at the same time.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::class::{Class, Mode};
use super::flaw::Flaw;
use super::record::{Number, Record};

/// Who claims a class and is not done, by mode, in the log's order.
#[derive(Debug, Default)]
struct Queue([VecDeque<Number>; Mode::ALL.len()]);

#[derive(Debug)]
struct Waiting {
    record: Record,
    /// How many must be done first.
    behind: usize,
}

/// Transactions of the log that are not done.
#[derive(Debug, Default)]
pub struct Schedule {
    pub(super) flaw: Option<Flaw>,
    queues: HashMap<Class, Queue>,
    waiting: BTreeMap<Number, Waiting>,
    /// Who waits for whom.
    followers: HashMap<Number, Vec<Number>>,
    /// Those that were started.
    started: HashMap<Number, Record>,
}

impl Schedule {
    /// The next one of the log; it is returned if it may be executed at once.
    pub fn push(&mut self, record: Record) -> Option<Record> {
        let number = record.number;
        let mut before: Vec<Number> = Vec::new();
        for (class, mode) in record.draft.claims.iter() {
            let queue = self.queues.entry(class.clone()).or_default();
            for other in Mode::ALL {
                if !mode.allows(other) {
                    before.extend(&queue.0[other.index()]);
                }
            }
            queue.0[mode.index()].push_back(number);
        }
        before.sort_unstable();
        before.dedup();
        if self.flaw == Some(Flaw::ConflictsInParallel) {
            before.clear();
        }
        for other in &before {
            self.followers.entry(*other).or_default().push(number);
        }
        let behind = before.len();
        if behind > 0 {
            self.waiting.insert(number, Waiting { record, behind });
            return None;
        }
        Some(self.start(record))
    }

    fn start(&mut self, record: Record) -> Record {
        self.started.insert(record.number, record.clone());
        record
    }

    /// One that was started.
    pub fn started(&self, number: Number) -> Option<&Record> {
        self.started.get(&number)
    }

    /// One that was started is done: those that may be executed now.
    pub fn done(&mut self, number: Number) -> Vec<Record> {
        let done = self.started.remove(&number);
        let claims = done.iter().flat_map(|record| record.draft.claims.iter());
        for (class, mode) in claims {
            let Some(queue) = self.queues.get_mut(class) else {
                continue;
            };
            queue.0[mode.index()].retain(|other| *other != number);
            if queue.0.iter().all(VecDeque::is_empty) {
                self.queues.remove(class);
            }
        }
        let mut ready = Vec::new();
        for follower in self.followers.remove(&number).unwrap_or_default() {
            let Some(waiting) = self.waiting.get_mut(&follower) else {
                continue;
            };
            waiting.behind -= 1;
            if waiting.behind == 0
                && let Some(waiting) = self.waiting.remove(&follower)
            {
                ready.push(self.start(waiting.record));
            }
        }
        ready
    }

    /// How many are not done.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.started.len()
    }

    /// True if all are done.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all of them: the member was lost.
    pub fn clear(&mut self) {
        *self = Schedule {
            flaw: self.flaw,
            ..Schedule::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::class::Claims;

    fn record(number: u64, claims: Claims) -> Record {
        Record::of(number, claims, 0)
    }

    fn key(number: u64, key: &str) -> Record {
        let class = Class::Key("t".into(), key.into());
        record(number, Claims::default().with(class, Mode::Exclusive))
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.number.0).collect()
    }

    #[test]
    fn one_key_is_in_order_and_others_are_beside_it() {
        let mut schedule = Schedule::default();
        assert!(schedule.push(key(1, "a")).is_some());
        assert!(schedule.push(key(2, "a")).is_none());
        assert!(schedule.push(key(3, "b")).is_some());
        let table = Claims::default().with(Class::Table("t".into()), Mode::Shared);
        assert!(schedule.push(record(4, table)).is_none());
        assert!(schedule.push(key(5, "c")).is_none());
        assert_eq!(numbers(&schedule.done(Number(1))), [2]);
        assert!(schedule.done(Number(3)).is_empty());
        assert_eq!(numbers(&schedule.done(Number(2))), [4]);
        assert_eq!(numbers(&schedule.done(Number(4))), [5]);
        assert!(schedule.done(Number(5)).is_empty());
        assert!(schedule.is_empty() && schedule.queues.is_empty());
    }
}
