//! Strict serializability of transactions that append to lists and read them, as Elle finds it (Kingsbury and
//! Alvaro, VLDB 2020): a list shows the order of all that was appended to it, so who wrote before whom, who read
//! what, and who read before whom is known, and a cycle of that with real time is an anomaly.
//!
//! Invariant: every value is appended once in a run, so a value names its transaction.

use std::collections::{BTreeMap, HashMap};

use cluster::clients::clock::Offset;
use cluster::clients::history::Outcome;
use serde::Serialize;

use super::graph::{Cycle, Graph, Why};

/// Which list.
pub(crate) type Key = i64;
/// What is appended.
pub(crate) type Value = i64;
/// Every list as it is at the end.
pub(crate) type Lists = BTreeMap<Key, Vec<Value>>;

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// This value went to the end of this list.
    Append(Key, Value),
    /// This list was read, and had these values.
    Read(Key, Vec<Value>),
}

/// A transaction, as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Transaction {
    pub client: i32,
    pub began: Offset,
    pub ended: Offset,
    #[serde(skip)]
    pub outcome: Outcome,
    pub ops: Vec<Op>,
}

/// What cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// An acknowledged append is not there at the end.
    Lost { key: Key, value: Value },
    /// Some appends of a transaction are there, others not.
    Torn { value: Value, missing: Value },
    /// A value is in a list twice, or in two lists.
    Twice { key: Key, value: Value },
    /// A list has a value that nobody appended, or whose transaction was never committed.
    Invented { key: Key, value: Value },
    /// A committed transaction read what is no beginning of the list as it is at the end.
    Unordered { reader: usize, key: Key },
    /// One read a value of a transaction that appended more to the same list later.
    Intermediate { reader: usize, key: Key },
    /// One did not read its own appends at the end of the list.
    Forgetful { reader: usize, key: Key },
    /// Transactions that must have come before each other.
    Cycle(Vec<(usize, Why)>),
}

/// Who appended what, in which order.
struct Written<'a> {
    transactions: &'a [Transaction],
    /// The transaction of a value.
    writers: HashMap<Value, usize>,
    /// True if a transaction's appends are there at the end.
    present: Vec<bool>,
    anomalies: Vec<Anomaly>,
}

/// Everything that is wrong, by a history and the lists at its end.
pub(crate) fn check(transactions: &[Transaction], last: &Lists) -> Vec<Anomaly> {
    let mut written = Written::new(transactions, last);
    let mut graph = Graph::new(transactions.len());
    for list in last.values() {
        let writers: Vec<usize> = written.writers_of(list);
        for pair in writers.windows(2) {
            graph.add(pair[0], pair[1], Why::Overwritten);
        }
    }
    for reader in 0..transactions.len() {
        if written.committed(reader) {
            written.add_reads(reader, last, &mut graph);
        }
    }
    let committed: Vec<usize> = (0..transactions.len())
        .filter(|t| written.committed(*t))
        .collect();
    graph.add_real_time(&times(transactions, &committed));
    let cycles: Vec<Cycle> = graph.cycles();
    let mut anomalies = written.anomalies;
    anomalies.extend(cycles.into_iter().map(Anomaly::Cycle));
    anomalies
}

/// What never happened has neither begun nor ended: it begins before all, and its end is not known.
fn times(transactions: &[Transaction], committed: &[usize]) -> Vec<(i64, Option<i64>)> {
    let mut times = vec![(i64::MIN, None); transactions.len()];
    for &t in committed {
        let transaction = &transactions[t];
        let told = transaction.outcome == Outcome::Acknowledged;
        times[t] = (transaction.began.0, told.then_some(transaction.ended.0));
    }
    times
}

impl Written<'_> {
    fn new<'a>(transactions: &'a [Transaction], last: &Lists) -> Written<'a> {
        let mut writers = HashMap::new();
        for (t, transaction) in transactions.iter().enumerate() {
            writers.extend(transaction.appends().map(|(_, value)| (value, t)));
        }
        let mut written = Written {
            transactions,
            writers,
            present: vec![false; transactions.len()],
            anomalies: Vec::new(),
        };
        written.look_at(last);
        written
    }

    /// Compares what is there with what was appended.
    fn look_at(&mut self, last: &Lists) {
        let mut there: HashMap<Value, Key> = HashMap::new();
        for (&key, list) in last {
            for &value in list {
                if there.insert(value, key).is_some() {
                    self.anomalies.push(Anomaly::Twice { key, value });
                }
                let writer = self.writers.get(&value).copied();
                match writer.filter(|w| self.transactions[*w].may_be_there(key, value)) {
                    Some(writer) => self.present[writer] = true,
                    None => self.anomalies.push(Anomaly::Invented { key, value }),
                }
            }
        }
        for (t, transaction) in self.transactions.iter().enumerate() {
            let appends: Vec<(Key, Value)> = transaction.appends().collect();
            let missing = appends.iter().find(|(_, value)| !there.contains_key(value));
            let Some(&(key, missing)) = missing else {
                continue;
            };
            if transaction.outcome == Outcome::Acknowledged {
                self.anomalies.push(Anomaly::Lost {
                    key,
                    value: missing,
                });
            }
            let present = appends.iter().find(|(_, value)| there.contains_key(value));
            if let Some(&(_, value)) = present.filter(|_| self.present[t]) {
                self.anomalies.push(Anomaly::Torn { value, missing });
            }
        }
    }

    /// True if a transaction is part of the history: acknowledged, or seen to have happened.
    fn committed(&self, t: usize) -> bool {
        let outcome = self.transactions[t].outcome;
        outcome == Outcome::Acknowledged || (outcome == Outcome::Unknown && self.present[t])
    }

    /// The writers of a list's values, in their order.
    fn writers_of(&self, list: &[Value]) -> Vec<usize> {
        let writers = list.iter().filter_map(|value| self.writers.get(value));
        writers.copied().collect()
    }

    /// What follows from a transaction's reads.
    fn add_reads(&mut self, reader: usize, last: &Lists, graph: &mut Graph) {
        let none = Vec::new();
        let mut own: HashMap<Key, Vec<Value>> = HashMap::new();
        let transactions = self.transactions;
        for op in &transactions[reader].ops {
            let (key, list) = match op {
                Op::Append(key, value) => {
                    own.entry(*key).or_default().push(*value);
                    continue;
                }
                Op::Read(key, list) => (*key, list),
            };
            let own = own.get(&key).unwrap_or(&none);
            let Some(others) = list.strip_suffix(own.as_slice()) else {
                self.anomalies.push(Anomaly::Forgetful { reader, key });
                continue;
            };
            let order = last.get(&key).unwrap_or(&none);
            if !order.starts_with(list) {
                self.anomalies.push(Anomaly::Unordered { reader, key });
                continue;
            }
            if self.stops_within(others, order, key) {
                self.anomalies.push(Anomaly::Intermediate { reader, key });
            }
            let writer = |at: usize| order.get(at).and_then(|value| self.writers.get(value));
            if let Some(before) = others.len().checked_sub(1).and_then(writer) {
                graph.add(*before, reader, Why::Read);
            }
            if let Some(after) = writer(others.len()) {
                graph.add(reader, *after, Why::ReadBefore);
            }
        }
    }

    /// True if a read of a list ends between two values of one transaction.
    fn stops_within(&self, read: &[Value], order: &[Value], key: Key) -> bool {
        let Some(writer) = read.last().and_then(|value| self.writers.get(value)) else {
            return false;
        };
        let rest = &order[read.len()..];
        self.transactions[*writer]
            .appends()
            .any(|(k, value)| k == key && rest.contains(&value))
    }
}

impl Transaction {
    fn appends(&self) -> impl Iterator<Item = (Key, Value)> {
        self.ops.iter().filter_map(|op| match op {
            Op::Append(key, value) => Some((*key, *value)),
            Op::Read(..) => None,
        })
    }

    fn may_be_there(&self, key: Key, value: Value) -> bool {
        self.outcome != Outcome::Refused && self.appends().any(|append| append == (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(outcome: Outcome, began: i64, ended: i64, ops: Vec<Op>) -> Transaction {
        Transaction {
            client: 1,
            began: Offset(began),
            ended: Offset(ended),
            outcome,
            ops,
        }
    }

    fn told(began: i64, ended: i64, ops: Vec<Op>) -> Transaction {
        transaction(Outcome::Acknowledged, began, ended, ops)
    }

    fn read(key: Key, list: &[Value]) -> Op {
        Op::Read(key, list.to_vec())
    }

    fn lists(lists: &[(Key, &[Value])]) -> Lists {
        lists.iter().map(|(k, list)| (*k, list.to_vec())).collect()
    }

    use Op::Append;

    #[test]
    fn a_correct_history_has_no_anomaly() {
        let history = [
            told(0, 1, vec![Append(1, 10), read(1, &[10])]),
            told(2, 9, vec![read(1, &[10]), Append(2, 20), Append(2, 21)]),
            // Beside the one before, which did not see it.
            told(3, 4, vec![read(3, &[]), Append(1, 11)]),
            transaction(Outcome::Unknown, 5, 6, vec![Append(1, 12)]),
            transaction(Outcome::Unknown, 5, 6, vec![Append(1, 13)]),
            transaction(Outcome::Refused, 5, 6, vec![Append(1, 14)]),
            told(10, 11, vec![read(1, &[10, 11]), read(2, &[20, 21])]),
            told(12, 13, vec![read(1, &[10, 11, 13])]),
        ];
        let last = lists(&[(1, &[10, 11, 13]), (2, &[20, 21])]);
        assert_eq!(check(&history, &last), []);
    }

    #[test]
    fn lost_torn_invented_and_doubled_values_are_found() {
        let history = [
            told(0, 1, vec![Append(1, 10)]),
            transaction(Outcome::Unknown, 0, 1, vec![Append(1, 11), Append(2, 20)]),
            transaction(Outcome::Refused, 0, 1, vec![Append(3, 30)]),
            told(0, 1, vec![Append(4, 40)]),
        ];
        let last = lists(&[(1, &[11]), (3, &[30]), (4, &[40, 40]), (5, &[50])]);
        let found = check(&history, &last);
        for expected in [
            Anomaly::Lost { key: 1, value: 10 },
            Anomaly::Torn {
                value: 11,
                missing: 20,
            },
            Anomaly::Invented { key: 3, value: 30 },
            Anomaly::Invented { key: 5, value: 50 },
            Anomaly::Twice { key: 4, value: 40 },
        ] {
            assert!(found.contains(&expected), "{expected:?} not in {found:?}");
        }
        assert_eq!(found.len(), 5, "{found:?}");
    }

    #[test]
    fn a_read_that_is_no_beginning_of_the_list_is_found() {
        let history = [
            told(0, 1, vec![Append(1, 10)]),
            told(2, 3, vec![Append(1, 11)]),
            told(2, 9, vec![read(1, &[11])]),
        ];
        let last = lists(&[(1, &[10, 11])]);
        let unordered = Anomaly::Unordered { reader: 2, key: 1 };
        assert_eq!(check(&history, &last), [unordered]);
    }

    #[test]
    fn reading_between_two_appends_of_a_transaction_is_found() {
        let history = [
            told(0, 5, vec![Append(1, 10), Append(1, 11)]),
            told(1, 3, vec![read(1, &[10])]),
        ];
        let last = lists(&[(1, &[10, 11])]);
        let found = check(&history, &last);
        let intermediate = Anomaly::Intermediate { reader: 1, key: 1 };
        assert!(found.contains(&intermediate), "{found:?}");
    }

    #[test]
    fn not_reading_ones_own_append_is_found() {
        let history = [told(0, 5, vec![Append(1, 10), read(1, &[])])];
        let forgetful = Anomaly::Forgetful { reader: 0, key: 1 };
        assert_eq!(check(&history, &lists(&[(1, &[10])])), [forgetful]);
    }

    fn only_cycle(found: &[Anomaly]) -> &Cycle {
        match found {
            [Anomaly::Cycle(cycle)] => cycle,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stale_read_is_found_by_real_time_alone() {
        let history = [
            told(0, 1, vec![Append(1, 10)]),
            told(2, 3, vec![read(1, &[])]),
        ];
        let found = check(&history, &lists(&[(1, &[10])]));
        let mut cycle = only_cycle(&found).clone();
        cycle.sort_by_key(|(t, _)| *t);
        assert_eq!(cycle, [(0, Why::RealTime), (1, Why::ReadBefore)]);
    }

    #[test]
    fn the_same_read_beside_the_append_is_none() {
        let history = [
            told(0, 4, vec![Append(1, 10)]),
            told(2, 3, vec![read(1, &[])]),
        ];
        assert_eq!(check(&history, &lists(&[(1, &[10])])), []);
    }

    #[test]
    fn write_skew_is_found_without_real_time() {
        let history = [
            told(0, 9, vec![read(1, &[]), Append(2, 20)]),
            told(0, 9, vec![read(2, &[]), Append(1, 10)]),
        ];
        let found = check(&history, &lists(&[(1, &[10]), (2, &[20])]));
        let cycle = only_cycle(&found);
        assert!(cycle.iter().all(|(_, why)| *why == Why::ReadBefore));
    }

    #[test]
    fn two_readers_that_saw_two_orders_are_found() {
        let history = [
            told(0, 9, vec![Append(1, 10)]),
            told(0, 9, vec![Append(2, 20)]),
            told(0, 9, vec![read(1, &[10]), read(2, &[])]),
            told(0, 9, vec![read(1, &[]), read(2, &[20])]),
        ];
        let found = check(&history, &lists(&[(1, &[10]), (2, &[20])]));
        assert_eq!(only_cycle(&found).len(), 4, "{found:?}");
    }

    #[test]
    fn an_append_that_nobody_was_told_of_may_come_late_but_not_go_again() {
        let unknown = transaction(Outcome::Unknown, 0, 1, vec![Append(1, 10)]);
        let late = [
            unknown.clone(),
            told(5, 6, vec![read(1, &[])]),
            told(7, 8, vec![read(1, &[10])]),
        ];
        let last = lists(&[(1, &[10])]);
        assert_eq!(check(&late, &last), []);
        let gone = [
            unknown,
            told(5, 6, vec![read(1, &[10])]),
            told(7, 8, vec![read(1, &[])]),
        ];
        assert_eq!(only_cycle(&check(&gone, &last)).len(), 3);
    }
}
