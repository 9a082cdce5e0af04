//! What sessions on standbys read: the past, but one that was, and never further back than before.
//!
//! Invariant: a snapshot is one read of several lists at once. It is right if each list is a beginning of the list
//! as it is at the end (what a standby shows is never lost), no list is shorter than it was in the same session
//! before, and whatever had been acknowledged before a transaction began that is shown, is shown as well.

use std::collections::HashMap;

use cluster::clients::clock::Offset;
use cluster::clients::history::Outcome;
use serde::Serialize;

use super::lists::{Key, Lists, Op, Transaction, Value};

/// One read of some lists, by one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// A connection; never used twice.
    pub session: u64,
    pub node: String,
    pub at: Offset,
    pub lists: Vec<(Key, Vec<Value>)>,
    /// The money in all accounts.
    pub sum: i64,
}

/// What cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// A list was no beginning of what it is at the end.
    NeverWas { node: String, at: Offset, key: Key },
    /// A list was shorter than before in the same session.
    WentBack { node: String, at: Offset, key: Key },
    /// A transaction was shown, and not one that was acknowledged before it began.
    Hole {
        node: String,
        at: Offset,
        shown: Value,
        missing: Value,
    },
    /// Money came out of nothing, or vanished.
    Sum { node: String, at: Offset, sum: i64 },
}

/// Everything that is wrong with snapshots in the order in which they were taken.
pub(crate) fn check(
    snapshots: &[Snapshot],
    transactions: &[Transaction],
    last: &Lists,
    money: i64,
) -> Vec<Anomaly> {
    let times = Times::new(transactions, last);
    let mut seen: HashMap<(u64, Key), usize> = HashMap::new();
    let mut anomalies = Vec::new();
    for snapshot in snapshots {
        let (node, at) = (&snapshot.node, snapshot.at);
        let mut sound = true;
        for (key, list) in &snapshot.lists {
            let key = *key;
            let node = node.clone();
            if !last
                .get(&key)
                .map_or(&[][..], Vec::as_slice)
                .starts_with(list)
            {
                sound = false;
                anomalies.push(Anomaly::NeverWas { node, at, key });
                continue;
            }
            let before = seen.insert((snapshot.session, key), list.len());
            if before.is_some_and(|before| before > list.len()) {
                anomalies.push(Anomaly::WentBack { node, at, key });
            }
        }
        if let Some((shown, missing)) = times.hole(snapshot).filter(|_| sound) {
            let node = node.clone();
            anomalies.push(Anomaly::Hole {
                node,
                at,
                shown,
                missing,
            });
        }
        if snapshot.sum != money {
            let (node, sum) = (node.clone(), snapshot.sum);
            anomalies.push(Anomaly::Sum { node, at, sum });
        }
    }
    anomalies
}

/// Of every value when its transaction began, and the latest end that is known of it.
struct Times {
    began: HashMap<Value, Offset>,
    /// By list: for each place the earliest acknowledged end of the values from there on, and whose.
    ended_from: HashMap<Key, Vec<Option<(Offset, Value)>>>,
}

impl Times {
    fn new(transactions: &[Transaction], last: &Lists) -> Times {
        let mut began = HashMap::new();
        let mut ended = HashMap::new();
        for transaction in transactions {
            for op in &transaction.ops {
                let Op::Append(_, value) = op else { continue };
                began.insert(*value, transaction.began);
                if transaction.outcome == Outcome::Acknowledged {
                    ended.insert(*value, transaction.ended);
                }
            }
        }
        let ended_from = last.iter().map(|(key, list)| {
            let mut earliest: Option<(Offset, Value)> = None;
            let mut from: Vec<_> = list
                .iter()
                .rev()
                .map(|value| {
                    let own = ended.get(value).map(|end| (*end, *value));
                    earliest = [earliest, own].into_iter().flatten().min();
                    earliest
                })
                .collect();
            from.reverse();
            (*key, from)
        });
        Times {
            ended_from: ended_from.collect(),
            began,
        }
    }

    /// A value that is shown, and one that had to be shown then.
    fn hole(&self, snapshot: &Snapshot) -> Option<(Value, Value)> {
        let values = snapshot.lists.iter().flat_map(|(_, list)| list);
        let latest = values.filter_map(|value| Some((*self.began.get(value)?, *value)));
        let (began, shown) = latest.max()?;
        let missing = snapshot.lists.iter().filter_map(|(key, list)| {
            let (ended, value) = (*self.ended_from.get(key)?.get(list.len())?)?;
            (ended < began).then_some(value)
        });
        missing.min().map(|missing| (shown, missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(key: Key, value: Value, began: i64, ended: i64) -> Transaction {
        Transaction {
            client: 1,
            began: Offset(began),
            ended: Offset(ended),
            outcome: Outcome::Acknowledged,
            ops: vec![Op::Append(key, value)],
        }
    }

    fn snapshot(session: u64, at: i64, lists: &[(Key, &[Value])]) -> Snapshot {
        Snapshot {
            session,
            node: "south".into(),
            at: Offset(at),
            lists: lists.iter().map(|(k, l)| (*k, l.to_vec())).collect(),
            sum: 100,
        }
    }

    fn found(snapshots: &[Snapshot]) -> Vec<Anomaly> {
        let history = [
            append(1, 10, 0, 1),
            append(2, 20, 2, 3),
            append(1, 11, 4, 5),
        ];
        let last = Lists::from([(1, vec![10, 11]), (2, vec![20])]);
        check(snapshots, &history, &last, 100)
    }

    #[test]
    fn the_past_may_be_shown_as_long_as_it_goes_forward() {
        let good = [
            snapshot(1, 20, &[(1, &[]), (2, &[])]),
            snapshot(1, 21, &[(1, &[10]), (2, &[])]),
            snapshot(1, 22, &[(1, &[10, 11]), (2, &[20])]),
            // Another session may begin further back.
            snapshot(2, 23, &[(1, &[10]), (2, &[20])]),
        ];
        assert_eq!(found(&good), []);
    }

    #[test]
    fn a_session_that_goes_back_is_found() {
        let back = [snapshot(1, 1, &[(1, &[10])]), snapshot(1, 2, &[(1, &[])])];
        assert!(matches!(
            found(&back)[..],
            [Anomaly::WentBack { key: 1, .. }]
        ));
    }

    #[test]
    fn rows_that_are_gone_at_the_end_must_not_have_been_shown() {
        let lost = [snapshot(1, 1, &[(1, &[10, 12])])];
        assert!(matches!(
            found(&lost)[..],
            [Anomaly::NeverWas { key: 1, .. }]
        ));
    }

    #[test]
    fn a_hole_in_the_past_is_found() {
        let hole = [snapshot(1, 9, &[(1, &[10, 11]), (2, &[])])];
        assert!(matches!(
            found(&hole)[..],
            [Anomaly::Hole {
                shown: 11,
                missing: 20,
                ..
            }]
        ));
    }

    #[test]
    fn money_out_of_nothing_is_found() {
        let mut rich = snapshot(1, 1, &[]);
        rich.sum = 101;
        assert!(matches!(
            found(&[rich])[..],
            [Anomaly::Sum { sum: 101, .. }]
        ));
    }
}
