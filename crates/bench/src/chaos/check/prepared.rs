//! Prepared transactions: once the server said that one is prepared, it waits for its decision, whatever happens,
//! and the decision is what becomes of it, as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Which: the client, and its count.
pub(crate) type Id = (i32, i64);

/// What a client wanted in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    Commit,
    Rollback,
}

/// A prepared transaction, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prepared {
    pub id: Id,
    /// The server said that it is prepared.
    pub told: bool,
    /// What was asked for, if anything was.
    pub decision: Option<Decision>,
    /// The server knew nothing of it when it was asked for the first time.
    pub vanished: bool,
}

/// What cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// Prepared, and gone before anybody decided.
    Vanished { id: Id },
    /// Its commit was asked for, and its rows are not there.
    Lost { id: Id },
    /// Its rows are there, and nobody asked for its commit.
    Invented { id: Id },
    /// One of its two rows is there.
    Torn { id: Id },
    /// The server said that it was committed or rolled back, and it is still prepared in the end.
    Undone { id: Id },
}

/// Everything that is wrong: by what clients know, and the rows (two for each) at the end, when nothing is prepared
/// any more.
pub(crate) fn check(history: &[Prepared], rows: &[Id]) -> Vec<Anomaly> {
    let mut counts: BTreeMap<Id, usize> = BTreeMap::new();
    for &id in rows {
        *counts.entry(id).or_default() += 1;
    }
    let mut anomalies = Vec::new();
    let mut known = BTreeSet::new();
    for prepared in history {
        let id = prepared.id;
        known.insert(id);
        if prepared.vanished && prepared.told {
            anomalies.push(Anomaly::Vanished { id });
            continue;
        }
        match (counts.get(&id).copied().unwrap_or(0), prepared.decision) {
            (0, Some(Decision::Commit)) if prepared.told => anomalies.push(Anomaly::Lost { id }),
            (2, None | Some(Decision::Rollback)) => anomalies.push(Anomaly::Invented { id }),
            (0 | 2, _) => {}
            _ => anomalies.push(Anomaly::Torn { id }),
        }
    }
    let others = counts.keys().filter(|id| !known.contains(id));
    anomalies.extend(others.map(|id| Anomaly::Invented { id: *id }));
    anomalies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(n: i64, told: bool, decision: Option<Decision>, vanished: bool) -> Prepared {
        Prepared {
            id: (1, n),
            told,
            decision,
            vanished,
        }
    }

    #[test]
    fn each_decision_is_what_becomes_of_it() {
        let history = [
            prepared(1, true, Some(Decision::Commit), false),
            prepared(2, true, Some(Decision::Rollback), false),
            prepared(3, false, None, false),
            // Never told that it is prepared: there may be nothing to commit or roll back.
            prepared(4, false, Some(Decision::Rollback), true),
        ];
        assert_eq!(check(&history, &[(1, 1), (1, 1)]), []);
    }

    #[test]
    fn a_vanished_lost_invented_or_torn_one_is_found() {
        let history = [
            prepared(1, true, Some(Decision::Commit), true),
            prepared(2, true, Some(Decision::Commit), false),
            prepared(3, true, Some(Decision::Rollback), false),
            prepared(4, true, Some(Decision::Commit), false),
        ];
        let rows = [(1, 3), (1, 3), (1, 4), (1, 9), (1, 9)];
        let expected = [
            Anomaly::Vanished { id: (1, 1) },
            Anomaly::Lost { id: (1, 2) },
            Anomaly::Invented { id: (1, 3) },
            Anomaly::Torn { id: (1, 4) },
            Anomaly::Invented { id: (1, 9) },
        ];
        assert_eq!(check(&history, &rows), expected);
    }
}
