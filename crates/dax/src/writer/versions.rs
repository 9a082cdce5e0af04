//! The version list: which version a read must return (DAX 3.1).
//!
//! Each entry says: "the newest version in a generation not above `as_of` is `version`, of
//! `generation`" (or that there is none). So it answers for every `up_to` from `generation` to
//! `as_of`, and for nothing else. Invariants: an entry never goes back to an older version; an entry
//! of a block with pending writes is never evicted (DAX 4).
//!
//! Least recently used entries go first, in two halves: whatever was used since the younger half
//! last filled up is kept.

use crate::ids::{BlockKey, Generation, Version};

use super::hash::IdMap;

/// What the list knows about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The version; [`Version::ZERO`] if there is none.
    pub version: Version,
    /// Its generation.
    pub generation: Generation,
    /// The last generation for which this is the newest.
    pub as_of: Generation,
    /// A quorum holds it for good: written by this handle, or promoted. What was only read once may
    /// have been an unsynced write that disappears with its replica.
    pub settled: bool,
}

impl Known {
    fn answers(&self, up_to: Generation) -> bool {
        self.generation <= up_to && up_to <= self.as_of
    }
}

/// Newest known versions of blocks. The least recently used ones are evicted.
#[derive(Debug)]
pub struct VersionList {
    half: usize,
    young: IdMap<BlockKey, Known>,
    old: IdMap<BlockKey, Known>,
}

impl VersionList {
    /// Keeps about `max` entries.
    pub fn new(max: usize) -> VersionList {
        VersionList {
            half: (max / 2).max(1),
            young: IdMap::default(),
            old: IdMap::default(),
        }
    }

    /// What a read as of `up_to` must return, if that is known.
    pub fn get(&mut self, key: BlockKey, up_to: Generation) -> Option<Known> {
        self.entry(key).filter(|known| known.answers(up_to))
    }

    /// The newest version known of a block.
    pub fn entry(&mut self, key: BlockKey) -> Option<Known> {
        if let Some(known) = self.young.get(&key) {
            return Some(*known);
        }
        let known = self.old.remove(&key)?;
        self.young.insert(key, known);
        Some(known)
    }

    /// This handle wrote the block.
    pub fn written(&mut self, key: BlockKey, generation: Generation, version: Version) {
        self.old.remove(&key);
        self.young.insert(
            key,
            Known {
                version,
                generation,
                as_of: Generation::MAX,
                settled: true,
            },
        );
    }

    /// A quorum answered a read as of `up_to`. Changes nothing if something newer is known.
    pub fn learned(
        &mut self,
        key: BlockKey,
        up_to: Generation,
        found: Option<(Generation, Version)>,
        settled: bool,
    ) {
        let (generation, version) = found.unwrap_or((Generation::SINGLE, Version::ZERO));
        let new = Known {
            version,
            generation,
            as_of: up_to,
            settled,
        };
        let keep = self.entry(key).is_some_and(|known| {
            known.version > version
                || known.as_of > up_to
                || (known.version == version && known.settled)
        });
        if !keep {
            self.young.insert(key, new);
        }
    }

    /// Forgets what an evicted or lost version made wrong.
    pub fn forget(&mut self, key: BlockKey) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Makes room if there is need; `pinned` names the blocks with pending writes.
    pub fn evict(&mut self, pinned: impl Iterator<Item = BlockKey>) {
        if self.young.len() < self.half {
            return;
        }
        std::mem::swap(&mut self.young, &mut self.old);
        for key in pinned {
            if let Some(known) = self.young.remove(&key) {
                self.old.insert(key, known);
            }
        }
        self.young.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, FileId};

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(1), block)
    }

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(1),
            number,
        }
    }

    fn v(seq: u64) -> Version {
        Version {
            epoch: Epoch(1),
            seq,
        }
    }

    #[test]
    fn an_entry_answers_only_for_its_generations() {
        let mut list = VersionList::new(100);
        list.learned(key(1), g(5), Some((g(3), v(7))), false);
        assert_eq!(list.get(key(1), g(2)), None);
        assert_eq!(list.get(key(1), g(3)).unwrap().version, v(7));
        assert_eq!(list.get(key(1), g(5)).unwrap().version, v(7));
        assert_eq!(list.get(key(1), g(6)), None);
    }

    #[test]
    fn a_late_answer_does_not_undo_a_write() {
        let mut list = VersionList::new(100);
        list.written(key(1), g(4), v(9));
        list.learned(key(1), Generation::MAX, Some((g(3), v(7))), false);
        list.learned(key(1), g(3), Some((g(3), v(7))), false);
        list.learned(key(1), Generation::MAX, None, false);
        assert_eq!(list.get(key(1), Generation::MAX).unwrap().version, v(9));
        assert_eq!(list.get(key(1), g(3)), None, "older images are not known");
    }

    #[test]
    fn known_absence_ends_with_the_first_write() {
        let mut list = VersionList::new(100);
        list.learned(key(1), Generation::MAX, None, false);
        assert_eq!(list.get(key(1), g(3)).unwrap().version, Version::ZERO);
        list.written(key(1), g(4), v(1));
        assert_eq!(list.get(key(1), g(3)), None);
        assert_eq!(list.get(key(1), g(4)).unwrap().version, v(1));
    }

    #[test]
    fn the_least_recently_used_go_and_the_pinned_stay() {
        let mut list = VersionList::new(20);
        list.written(key(1000), g(1), v(1));
        list.written(key(1001), g(1), v(2));
        for block in 0..200 {
            list.evict([key(1000)].into_iter());
            list.written(key(block), g(1), v(10 + block));
            assert!(list.len() <= 22);
        }
        assert!(list.get(key(1000), g(1)).is_some(), "pinned");
        assert!(list.get(key(1001), g(1)).is_none(), "unused");
        assert!(list.get(key(199), g(1)).is_some(), "fresh");
    }
}
