//! Remembers the versions of slots written lately, so that the put rule rarely reads a block.
//!
//! Invariant: an entry is exactly what the engine holds (or will hold with the batch being built), or held before it
//! was damaged; a missing entry says nothing.

use std::collections::HashMap;

use dax::ids::Version;
use dax::replica::replaces;

use crate::keys::Slot;

/// What is known of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub version: Version,
    /// The copy was damaged since: the same version replaces it, an older one does not.
    pub damaged: bool,
}

impl Known {
    /// True if a write of the slot takes its place.
    pub fn is_replaced_by(self, version: Version) -> bool {
        replaces(version, Some(self.version)) || self.damaged && version == self.version
    }
}

/// Two halves: when the young one is full it becomes the old one, and the old one is forgotten.
pub(crate) struct Versions {
    young: HashMap<Slot, Known>,
    old: HashMap<Slot, Known>,
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

    /// What the slot holds, if it is remembered.
    pub fn get(&self, slot: &Slot) -> Option<Known> {
        self.young.get(slot).or_else(|| self.old.get(slot)).copied()
    }

    /// What the slot holds from now on.
    pub fn set(&mut self, slot: Slot, version: Version) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        let known = Known {
            version,
            damaged: false,
        };
        self.young.insert(slot, known);
    }

    /// What the slot holds is damaged.
    pub fn damage(&mut self, slot: &Slot) {
        for half in [&mut self.young, &mut self.old] {
            if let Some(known) = half.get_mut(slot) {
                known.damaged = true;
            }
        }
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

    // A late write once replaced a damaged copy, although the zone still knew a newer version of the block.
    // hazard: ZONE-37
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
                let known = versions.get(&slot(at % 30)).unwrap();
                assert_eq!((known.version, known.damaged), (version(at), false));
            }
        }
        assert!(versions.young.len() + versions.old.len() <= 20);
        versions.damage(&slot(999 % 30));
        let damaged = versions.get(&slot(999 % 30)).unwrap();
        let mended_by = |seq| damaged.is_replaced_by(version(seq));
        assert!(mended_by(999) && mended_by(1000) && !mended_by(998));
        versions.forget(&slot(999 % 30));
        assert_eq!(versions.get(&slot(999 % 30)), None);
    }
}
