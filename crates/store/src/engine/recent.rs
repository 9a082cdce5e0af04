//! What is durable in the commit log and was not handed to the key-value store yet.
//!
//! A flush is a commit, and the store takes time for each: its journal, the commit's number in both keyspaces, a version
//! more of the same pages of PostgreSQL's log. So it is handed many commits at once, of which only the last value of a
//! key counts, when nobody waits for it; reads look here first.
//!
//! Invariant: what is here is newer than what the store has under the same key.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use dax::ids::Generation;

use crate::keys::Slot;
use crate::log::{Change, Kind};

/// So many commits, or so many bytes of them, are worth handing over.
const COMMITS: usize = 32;
const BYTES: usize = 512 << 10;

/// The last value of each key; none where it was removed.
#[derive(Debug, Default)]
pub(super) struct Recent {
    blocks: BTreeMap<Bytes, Option<Bytes>>,
    meta: BTreeMap<Bytes, Option<Bytes>>,
    commits: usize,
    bytes: usize,
}

impl Recent {
    /// Takes a commit.
    pub fn add(&mut self, changes: Vec<Change>) {
        self.commits += 1;
        for Change { kind, key, value } in changes {
            self.bytes += key.len() + value.len();
            match kind {
                Kind::PutBlock => self.blocks.insert(key, Some(value)),
                Kind::RemoveBlock => self.blocks.insert(key, None),
                Kind::PutMeta => self.meta.insert(key, Some(value)),
                Kind::RemoveMeta => self.meta.insert(key, None),
            };
        }
    }

    /// True if it holds no commit.
    pub fn is_empty(&self) -> bool {
        self.commits == 0
    }

    /// True if enough has come together.
    pub fn is_enough(&self) -> bool {
        self.commits >= COMMITS || self.bytes >= BYTES
    }

    /// Changes that make the same of the store as all commits in turn.
    pub fn changes(&self) -> Vec<Change> {
        let change = |put: Kind, removed: Kind| {
            move |(key, value): (&Bytes, &Option<Bytes>)| Change {
                kind: if value.is_some() { put } else { removed },
                key: key.clone(),
                value: value.clone().unwrap_or_default(),
            }
        };
        let blocks = self.blocks.iter();
        let blocks = blocks.map(change(Kind::PutBlock, Kind::RemoveBlock));
        let meta = self.meta.iter();
        let meta = meta.map(change(Kind::PutMeta, Kind::RemoveMeta));
        blocks.chain(meta).collect()
    }

    /// Forgets everything: the store has it.
    pub fn clear(&mut self) {
        *self = Recent::default();
    }

    /// What it knows of a slot: its value, or that it holds nothing.
    pub fn block(&self, slot: &Slot) -> Option<Option<Bytes>> {
        self.blocks.get(&slot.encode()[..]).cloned()
    }

    /// What it knows of a block's slots up to `last`, in order.
    pub fn generations(&self, last: &Slot) -> Vec<(Slot, Option<Bytes>)> {
        let first = Slot {
            generation: Generation::SINGLE,
            ..*last
        };
        let (first, last) = (first.encode(), last.encode());
        let range = (Bound::Included(&first[..]), Bound::Included(&last[..]));
        let known = self.blocks.range::<[u8], _>(range);
        let known = known.filter_map(|(name, value)| Some((Slot::decode(name)?, value.clone())));
        known.collect()
    }

    /// What it knows of a `meta` key.
    pub fn meta(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.meta.get(key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::VolumeId;
    use dax::ids::{BlockIndex, BlockKey, Epoch, FileId};

    fn slot(block: u64, number: u32) -> Slot {
        Slot {
            volume: VolumeId(1),
            key: BlockKey {
                file: FileId(1),
                block: BlockIndex(block),
            },
            generation: Generation {
                epoch: Epoch(1),
                number,
            },
        }
    }

    fn change(kind: Kind, key: &[u8], value: &'static [u8]) -> Change {
        Change {
            kind,
            key: Bytes::copy_from_slice(key),
            value: Bytes::from_static(value),
        }
    }

    #[test]
    fn of_several_commits_the_last_value_counts() {
        let mut recent = Recent::default();
        let (a, b) = (slot(1, 1), slot(1, 3));
        recent.add(vec![
            change(Kind::PutBlock, &a.encode(), b"old"),
            change(Kind::PutMeta, b"m", b"old"),
        ]);
        recent.add(vec![
            change(Kind::PutBlock, &a.encode(), b"new"),
            change(Kind::RemoveBlock, &b.encode(), b""),
            change(Kind::RemoveMeta, b"m", b""),
        ]);
        assert_eq!(recent.block(&a), Some(Some(Bytes::from_static(b"new"))));
        assert_eq!(recent.block(&b), Some(None));
        assert_eq!(recent.block(&slot(2, 1)), None);
        assert_eq!(recent.meta(b"m"), Some(None));
        assert_eq!(recent.meta(b"n"), None);
        let expected = [
            change(Kind::PutBlock, &a.encode(), b"new"),
            change(Kind::RemoveBlock, &b.encode(), b""),
            change(Kind::RemoveMeta, b"m", b""),
        ];
        assert_eq!(recent.changes(), expected);
        recent.clear();
        assert!(recent.is_empty() && recent.changes().is_empty());
    }

    #[test]
    fn generations_of_a_block_are_found_up_to_one_of_them() {
        let mut recent = Recent::default();
        for (block, number) in [(0, 9), (1, 5), (1, 2), (1, 7), (2, 1)] {
            let slot = slot(block, number);
            recent.add(vec![change(Kind::PutBlock, &slot.encode(), b"x")]);
        }
        let found = recent.generations(&slot(1, 6));
        let found: Vec<Slot> = found.into_iter().map(|(slot, _)| slot).collect();
        assert_eq!(found, [slot(1, 2), slot(1, 5)]);
    }

    #[test]
    fn many_commits_or_many_bytes_are_enough() {
        let mut recent = Recent::default();
        for _ in 1..COMMITS {
            recent.add(vec![change(Kind::PutMeta, b"m", b"v")]);
        }
        assert!(!recent.is_enough());
        recent.add(vec![]);
        assert!(recent.is_enough());
        recent.clear();
        let large = Change {
            kind: Kind::PutMeta,
            key: Bytes::new(),
            value: vec![0; BYTES].into(),
        };
        recent.add(vec![large]);
        assert!(recent.is_enough());
    }
}
