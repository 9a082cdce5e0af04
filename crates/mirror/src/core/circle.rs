//! Circles of transactions that wait for each other, some of them here and some of them at the member.
//!
//! ```text
//!   one ── waits here for a lock of ──▶ the other
//!    ▲                                      │
//!    └──── waits at the member for ─────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::locks::Tx;

/// True if a transaction waits, over however many others, for one that waits for it. `here` says whom each waits for in the manager,
/// `waits` which process of the member waits for which, and `processes` which transaction each process executes.
pub fn is_in_circle(
    tx: Tx,
    here: impl Fn(Tx) -> Vec<Tx>,
    processes: &[(Tx, i32)],
    waits: &BTreeMap<i32, Vec<i32>>,
) -> bool {
    let process_of: BTreeMap<Tx, i32> = processes.iter().copied().collect();
    let mut tx_of: BTreeMap<i32, Tx> = BTreeMap::new();
    tx_of.extend(processes.iter().map(|(tx, process)| (*process, *tx)));
    let (mut seen, mut passed) = (BTreeSet::new(), BTreeSet::new());
    let mut next = here(tx);
    while let Some(one) = next.pop() {
        if one == tx {
            return true;
        }
        if !seen.insert(one) {
            continue;
        }
        next.extend(here(one));
        // Some of those that are waited for there are nobody's here: somebody has logged in at the member.
        let mut there: Vec<i32> = process_of.get(&one).copied().into_iter().collect();
        while let Some(process) = there.pop() {
            for other in waits.get(&process).into_iter().flatten() {
                match tx_of.get(other) {
                    Some(tx) => next.push(*tx),
                    None if passed.insert(*other) => there.push(*other),
                    None => {}
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESSES: [(Tx, i32); 4] = [(Tx(1), 101), (Tx(2), 102), (Tx(3), 103), (Tx(4), 104)];

    fn is_found(tx: u64, here: &[(u64, u64)], there: &[(i32, &[i32])]) -> bool {
        let of = |tx: Tx| -> Vec<Tx> {
            let waits = here.iter().filter(|(one, _)| Tx(*one) == tx);
            waits.map(|(_, other)| Tx(*other)).collect()
        };
        let waits = there.iter().map(|(one, others)| (*one, others.to_vec()));
        is_in_circle(Tx(tx), of, &PROCESSES, &waits.collect())
    }

    /// Each saw its own half, and both waited until the lock's timeout.
    #[test]
    fn a_circle_over_both_is_found() {
        assert!(is_found(1, &[(1, 2)], &[(102, &[101])]));
        // Who waits for those in a circle is in none himself.
        assert!(!is_found(3, &[(3, 1), (1, 2)], &[(102, &[101])]));
        assert!(!is_found(1, &[(1, 2)], &[(102, &[103])]));
        assert!(!is_found(1, &[(1, 2)], &[]));
    }

    #[test]
    fn a_circle_may_go_to_and_fro_and_over_those_that_nobody_knows() {
        let here = [(1, 2), (3, 4)];
        assert!(is_found(1, &here, &[(102, &[103]), (104, &[101])]));
        assert!(is_found(3, &here, &[(102, &[103]), (104, &[101])]));
        assert!(is_found(
            1,
            &[(1, 2)],
            &[(102, &[7, 8]), (7, &[8]), (8, &[101])]
        ));
        assert!(!is_found(
            1,
            &[(1, 2)],
            &[(102, &[7]), (7, &[8]), (8, &[7])]
        ));
    }
}
