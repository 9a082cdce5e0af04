//! Remembers the versions of slots written lately, so that the put rule rarely reads a block.
//!
//! Invariant: an entry is exactly what the engine holds (or will hold with the batch being built);
//! a missing entry says nothing.

use std::collections::HashMap;

use dax::ids::Version;

use crate::keys::Slot;

/// Two halves: when the young one is full it becomes the old one, and the old one is forgotten.
pub(crate) struct Versions {
    young: HashMap<Slot, Version>,
    old: HashMap<Slot, Version>,
    half: usize,
}

impl Versions {
    /// Remembers at least the last `half` slots, at most twice as many.
    pub fn new(half: usize) -> Versions {
        Versions {
            young: HashMap::new(),
            old: HashMap::new(),
            half,
        }
    }

    /// The version in the slot, if it is remembered.
    pub fn get(&self, slot: &Slot) -> Option<Version> {
        self.young.get(slot).or_else(|| self.old.get(slot)).copied()
    }

    /// What the slot holds from now on.
    pub fn set(&mut self, slot: Slot, version: Version) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(slot, version);
    }

    /// The slot was emptied.
    pub fn forget(&mut self, slot: &Slot) {
        self.young.remove(slot);
        self.old.remove(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::VolumeId;
    use dax::ids::{BlockKey, Epoch, FileId, Generation};

    #[test]
    fn remembers_the_last_and_never_an_older_version() {
        let slot = |block| Slot {
            volume: VolumeId(1),
            key: BlockKey::new(FileId(1), block),
            generation: Generation::SINGLE,
        };
        let version = |seq| Version {
            epoch: Epoch(1),
            seq,
        };
        let mut versions = Versions::new(10);
        for seq in 0..1000u64 {
            versions.set(slot(seq % 30), version(seq));
            for back in 0..10.min(seq + 1) {
                let at = seq - back;
                assert_eq!(versions.get(&slot(at % 30)), Some(version(at)));
            }
        }
        assert!(versions.young.len() + versions.old.len() <= 20);
        versions.forget(&slot(999 % 30));
        assert_eq!(versions.get(&slot(999 % 30)), None);
    }
}
