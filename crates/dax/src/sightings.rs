//! How far stores were seen to be, by which one whose directory was put back to an earlier state is noticed.
//!
//! Plain data and one rule. A store numbers its commits, and draws a number for each run of its process; who owns
//! an epoch notes both, and tells every store what it knows of the others. A run that began before a commit that an
//! earlier run had acknowledged begins without it: the directory is a copy from before. docs/PROTOCOL.md, *Stores
//! that went back*, says what follows, and what cannot be noticed.

use serde::{Deserialize, Serialize};

use crate::ids::{StoreId, Version};

/// How far a store is, as it says itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Tells this run of its process from all others; random.
    pub run: u64,
    /// The number of the last commit that it found when it started.
    pub began: u64,
    /// The number of its last commit.
    pub commit: u64,
}

/// How far a store was once seen to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Which store.
    pub store: StoreId,
    /// In which run of its process.
    pub run: u64,
    /// The number of a commit that it had made durable.
    pub commit: u64,
}

/// How far the stores of a volume were seen to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sightings {
    /// Grows with each telling, in the order of epochs.
    pub version: Version,
    /// One of each store at most.
    pub stores: Vec<Sighting>,
}

/// What a store says of itself and of others when it is met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// How far it is.
    pub position: Position,
    /// What it was told of others last.
    pub sightings: Sightings,
}

impl Sighting {
    /// Whether a store that is as far as it says cannot have been where it was seen.
    pub fn denies(&self, position: &Position) -> bool {
        self.run != position.run && position.began < self.commit
    }
}

impl Sightings {
    /// How far a store was seen to be.
    pub fn of(&self, store: StoreId) -> Option<&Sighting> {
        self.stores.iter().find(|seen| seen.store == store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_begins_before_what_was_acknowledged_is_denied() {
        let seen = Sighting {
            store: StoreId::new(1).unwrap(),
            run: 7,
            commit: 100,
        };
        let at = |run, began| Position {
            run,
            began,
            commit: 1000,
        };
        assert!(!seen.denies(&at(7, 50)), "the same run");
        assert!(!seen.denies(&at(8, 100)), "it has what was acknowledged");
        assert!(!seen.denies(&at(8, 120)), "and what nobody saw");
        assert!(seen.denies(&at(8, 99)), "one commit is missing");
    }
}
