//! What strong reads through a proxy saw: nothing that was told to anybody before they began may be missing.
//!
//! Invariant: one read is one snapshot of several lists. It is right if each list is a beginning of the list as it is at
//! the end, has every append that was acknowledged before the read began, and is no shorter than what any read that had
//! ended by then showed. (That transactions are serializable is judged of those that append, [`super::lists`]: a
//! statement on its own is as good on a standby as on the active, and no better.)

use std::collections::HashMap;

use cluster::clients::clock::Offset;
use cluster::clients::history::Outcome;
use serde::Serialize;

use super::lists::{Key, Lists, Op, Transaction, Value};

/// One read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StrongRead {
    pub began: Offset,
    pub ended: Offset,
    pub lists: Vec<(Key, Vec<Value>)>,
}

/// What cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// A list was no beginning of what it is at the end.
    NeverWas { at: Offset, key: Key },
    /// A list had fewer values than somebody had been told of before.
    Stale {
        at: Offset,
        key: Key,
        read: usize,
        told: usize,
    },
}

/// How long a list must be for who begins after a moment.
#[derive(Default)]
struct ListLengths(Vec<(Offset, usize)>);

impl ListLengths {
    fn put_in_order(&mut self) {
        self.0.sort_unstable_by_key(|(at, _)| *at);
        let mut most = 0;
        for (_, len) in &mut self.0 {
            most = most.max(*len);
            *len = most;
        }
    }

    fn before(&self, at: Offset) -> usize {
        let count = self.0.partition_point(|(told, _)| *told < at);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

/// Everything that is wrong.
pub(crate) fn check(
    reads: &[StrongRead],
    transactions: &[Transaction],
    last: &Lists,
) -> Vec<Anomaly> {
    let places: HashMap<Value, usize> = last
        .values()
        .flat_map(|list| list.iter().enumerate().map(|(at, value)| (*value, at)))
        .collect();
    let mut told: HashMap<Key, ListLengths> = HashMap::new();
    let acknowledged = transactions
        .iter()
        .filter(|t| t.outcome == Outcome::Acknowledged);
    for transaction in acknowledged {
        for op in &transaction.ops {
            if let Op::Append(key, value) = op
                && let Some(place) = places.get(value)
            {
                let told = told.entry(*key).or_default();
                told.0.push((transaction.ended, place + 1));
            }
        }
    }
    for read in reads {
        for (key, list) in &read.lists {
            told.entry(*key)
                .or_default()
                .0
                .push((read.ended, list.len()));
        }
    }
    told.values_mut().for_each(ListLengths::put_in_order);
    let none = Vec::new();
    let mut anomalies = Vec::new();
    for read in reads {
        let at = read.began;
        for (key, list) in &read.lists {
            let key = *key;
            if !last.get(&key).unwrap_or(&none).starts_with(list) {
                anomalies.push(Anomaly::NeverWas { at, key });
            }
            let told = told.get(&key).map_or(0, |told| told.before(at));
            if list.len() < told {
                let read = list.len();
                anomalies.push(Anomaly::Stale {
                    at,
                    key,
                    read,
                    told,
                });
            }
        }
    }
    anomalies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(began: i64, ended: i64, outcome: Outcome, value: Value) -> Transaction {
        Transaction {
            client: 1,
            began: Offset(began),
            ended: Offset(ended),
            outcome,
            ops: vec![Op::Append(1, value)],
        }
    }

    fn read(began: i64, ended: i64, list: &[Value]) -> StrongRead {
        StrongRead {
            began: Offset(began),
            ended: Offset(ended),
            lists: vec![(1, list.to_vec())],
        }
    }

    fn found(transactions: &[Transaction], reads: &[StrongRead]) -> Vec<Anomaly> {
        check(reads, transactions, &Lists::from([(1, vec![10, 11])]))
    }

    #[test]
    fn acknowledged_writes_must_be_there_and_running_ones_may_be() {
        let appends = [
            append(0, 1, Outcome::Acknowledged, 10),
            append(4, 8, Outcome::Acknowledged, 11),
        ];
        assert_eq!(found(&appends, &[read(5, 6, &[10]), read(2, 3, &[10])]), []);
        assert_eq!(
            found(&appends, &[read(5, 6, &[10, 11]), read(9, 9, &[10, 11])]),
            []
        );
        let stale = |at, read, told| Anomaly::Stale {
            at: Offset(at),
            key: 1,
            read,
            told,
        };
        assert_eq!(found(&appends, &[read(2, 3, &[])]), [stale(2, 0, 1)]);
        assert_eq!(found(&appends, &[read(9, 10, &[10])]), [stale(9, 1, 2)]);
    }

    #[test]
    fn reads_never_go_back_behind_earlier_reads() {
        let unknown = [append(0, 1, Outcome::Unknown, 10)];
        let reads = [read(2, 3, &[10]), read(4, 5, &[])];
        let stale = Anomaly::Stale {
            at: Offset(4),
            key: 1,
            read: 0,
            told: 1,
        };
        assert_eq!(found(&unknown, &reads), [stale]);
        let overlapping = [read(2, 5, &[10]), read(4, 6, &[])];
        assert_eq!(found(&unknown, &overlapping), []);
    }

    #[test]
    fn invented_values_are_found() {
        let never = Anomaly::NeverWas {
            at: Offset(1),
            key: 1,
        };
        assert_eq!(found(&[], &[read(1, 2, &[11])]), [never]);
    }
}
