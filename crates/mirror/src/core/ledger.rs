//! Which transactions of the log a member has.
//!
//! A member commits transactions that do not conflict in any order, and writes the number of each in the same
//! transaction. Invariant: every number up to the floor is there, and the first above it is not.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::record::Number;

/// The numbers of the transactions that a member has committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    floor: Number,
    above: BTreeSet<Number>,
}

impl Ledger {
    /// Everything up to `floor`, and these.
    pub fn new(floor: Number, above: impl IntoIterator<Item = Number>) -> Ledger {
        let mut ledger = Ledger {
            floor,
            above: BTreeSet::new(),
        };
        above.into_iter().for_each(|number| ledger.insert(number));
        ledger
    }

    /// One more.
    pub fn insert(&mut self, number: Number) {
        if number > self.floor {
            self.above.insert(number);
        }
        while self.above.remove(&self.floor.next()) {
            self.floor = self.floor.next();
        }
    }

    /// True if it is there.
    pub fn contains(&self, number: Number) -> bool {
        number <= self.floor || self.above.contains(&number)
    }

    /// Everything up to here is there.
    pub fn floor(&self) -> Number {
        self.floor
    }

    /// The last one that is there.
    pub fn last(&self) -> Number {
        self.above.last().copied().unwrap_or(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_rises_when_a_gap_is_filled() {
        let mut ledger = Ledger::new(Number(3), [Number(5), Number(2)]);
        assert_eq!(ledger.floor(), Number(3));
        assert!(ledger.contains(Number(5)) && !ledger.contains(Number(4)));
        ledger.insert(Number(4));
        assert_eq!(ledger.floor(), Number(5));
        ledger.insert(Number(7));
        assert_eq!((ledger.floor(), ledger.last()), (Number(5), Number(7)));
    }
}
