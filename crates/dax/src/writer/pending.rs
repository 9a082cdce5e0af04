//! `sync_pending` (DAX 4): every write that some replica has not acknowledged.
//!
//! Kept at the client alone (the paper keeps it at the server that coordinates, with a copy here):
//! the client speaks to all replicas itself. Invariants: an entry stays until all its replicas have
//! acknowledged it, or until k have and it is given up for the others (counted as missed); a replica that lost
//! its disk has acknowledged nothing; entries of
//! different generations of a block are never merged; an entry is read only if no newer write of its
//! block and image has been made, pending or not; per replica they are sent in the order written.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::ids::{BlockIndex, BlockKey, FileId, Generation, ReplicaId, Version};
use crate::storage::Block;
use crate::wire::{Base, checksum};

use super::differences::Contents;
use super::hash::IdMap;
use super::replica_set::ReplicaSet;

/// A write's place in the order of this handle's writes (its version's `seq`).
pub type Seq = u64;

/// A write that is waited for.
#[derive(Debug)]
pub struct Entry {
    /// Block that was written.
    pub key: BlockKey,
    /// The generation it was written in.
    pub generation: Generation,
    /// Version of the write.
    pub version: Version,
    /// Over all of these and the contents.
    pub checksum: u32,
    /// What the contents begin with, where replicas have that already.
    pub base: Option<Base>,
    /// Contents as they are sent.
    pub data: Bytes,
    /// Replicas that still have to acknowledge it.
    pub missing: ReplicaSet,
    /// Replicas that have acknowledged it, or something newer in its place.
    acked: ReplicaSet,
    /// k replicas have it.
    pub synced: bool,
    /// A newer write of the same block and generation makes this one superfluous wherever that
    /// arrives.
    superseded: bool,
    /// The pending write of the same block before this one.
    older: Option<Seq>,
    /// A newer write of the block in this generation is pending no more: this one, which some replica
    /// had refused, is not the newest of an image that contains that generation.
    outlived_in: Option<Generation>,
}

/// What an acknowledgement did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// k replicas have it now, and had not before.
    pub synced: bool,
    /// Nobody waits for it any more: its memory is free.
    pub gone: bool,
}

/// A write that is not waited for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Block whose write was given up.
    pub key: BlockKey,
    /// The generation it was written in.
    pub generation: Generation,
    /// Bytes of its contents.
    pub bytes: usize,
    /// The replicas that do not have it.
    pub replicas: ReplicaSet,
}

impl Entry {
    fn is_intact(&self) -> bool {
        checksum(self.key, self.generation, self.version, &self.data) == self.checksum
    }

    fn dropped(&self) -> Dropped {
        Dropped {
            key: self.key,
            generation: self.generation,
            bytes: self.data.len(),
            replicas: self.missing,
        }
    }
}

/// Writes that are not acknowledged yet, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Pending {
    base: Seq,
    slots: VecDeque<Option<Entry>>,
    newest: IdMap<BlockKey, Seq>,
    /// Writes in order that may not be synced yet; cleaned from the front when asked.
    unsynced: VecDeque<Seq>,
    unsynced_of: IdMap<FileId, VecDeque<Seq>>,
    /// Entries added to `unsynced_of` since it was last cleaned as a whole.
    uncleaned: usize,
    bytes: usize,
    count: usize,
}

impl Pending {
    /// Bytes of block data held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if nothing is waited for.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The write with this number, if it is waited for.
    pub fn get(&self, seq: Seq) -> Option<&Entry> {
        let index = seq.checked_sub(self.base)?;
        self.slots.get(index as usize)?.as_ref()
    }

    fn get_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        let index = seq.checked_sub(self.base)?;
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The blocks with pending writes.
    pub fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.newest.keys().copied()
    }

    /// Adds a write; its version's `seq` is above every earlier one.
    pub fn add(
        &mut self,
        key: BlockKey,
        generation: Generation,
        version: Version,
        checksum: u32,
        Contents { base, data }: Contents,
        replicas: ReplicaSet,
    ) {
        let seq = version.seq;
        if self.slots.is_empty() {
            self.base = seq;
        }
        while self.base + (self.slots.len() as u64) < seq {
            self.slots.push_back(None);
        }
        self.bytes += data.len();
        self.count += 1;
        let older = self.newest.insert(key, seq);
        self.supersede(older, generation);
        self.slots.push_back(Some(Entry {
            key,
            generation,
            version,
            checksum,
            base,
            data,
            missing: replicas,
            acked: ReplicaSet::default(),
            synced: false,
            superseded: false,
            older,
            outlived_in: None,
        }));
        self.unsynced.push_back(seq);
        let of_file = self.unsynced_of.entry(key.file).or_default();
        of_file.push_back(seq);
        self.uncleaned += 1;
    }

    fn supersede(&mut self, older: Option<Seq>, generation: Generation) {
        let Some(entry) = older.and_then(|seq| self.get_mut(seq)) else {
            return;
        };
        if entry.generation == generation {
            entry.superseded = true;
        }
    }

    /// The newest pending write of a block in a generation not above `up_to`.
    pub fn read(&self, key: BlockKey, up_to: Generation) -> Option<Block> {
        self.seen(key, up_to).map(|entry| Block {
            version: entry.version,
            generation: entry.generation,
            data: entry.data.clone(),
        })
    }

    fn seen(&self, key: BlockKey, up_to: Generation) -> Option<&Entry> {
        let mut next = self.newest.get(&key).copied();
        while let Some(entry) = next.and_then(|seq| self.get(seq)) {
            if entry.outlived_in.is_some_and(|newer| newer <= up_to) {
                return None;
            }
            if entry.generation <= up_to {
                return Some(entry);
            }
            next = entry.older;
        }
        None
    }

    /// Changes a bit of one of the writes that are pending, as memory that is broken does; false if there is none.
    #[cfg(test)]
    pub fn flip_bit(&mut self, which: u64) -> bool {
        let mut entries = self.slots.iter_mut().flatten();
        let count = self.count as u64;
        let Some(entry) = which
            .checked_rem(count)
            .and_then(|n| entries.nth(n as usize))
        else {
            return false;
        };
        let mut data = entry.data.to_vec();
        let at = which as usize % data.len();
        data[at] ^= 1 << (which % 8);
        entry.data = data.into();
        true
    }

    /// True if a write's contents are what they were when it was made.
    pub fn is_intact(&self, seq: Seq) -> bool {
        self.get(seq).is_none_or(Entry::is_intact)
    }

    /// The same of the write that [`read`](Self::read) gives.
    pub fn is_read_intact(&self, key: BlockKey, up_to: Generation) -> bool {
        self.seen(key, up_to).is_none_or(Entry::is_intact)
    }

    /// Some replica does not have what the write's contents begin with: from now on it is sent as a whole.
    pub fn send_whole(&mut self, seq: Seq) {
        if let Some(entry) = self.get_mut(seq) {
            entry.base = None;
        }
    }

    /// True if the replica has every write up to `upto` that is still held here.
    pub fn is_complete(&self, replica: ReplicaId, upto: Seq) -> bool {
        let count = (upto + 1).saturating_sub(self.base) as usize;
        let mut held = self.slots.iter().take(count).flatten();
        !held.any(|entry| entry.missing.contains(replica))
    }

    /// True if a write of the block in this generation is on its way to the replica.
    pub fn is_underway(&self, replica: ReplicaId, key: BlockKey, generation: Generation) -> bool {
        let mut next = self.newest.get(&key).copied();
        while let Some(entry) = next.and_then(|seq| self.get(seq)) {
            if entry.generation == generation && entry.missing.contains(replica) {
                return true;
            }
            next = entry.older;
        }
        false
    }

    /// A replica has the write durably; it is synced once those that have it are `enough`.
    pub fn ack(
        &mut self,
        seq: Seq,
        replica: ReplicaId,
        enough: impl FnOnce(ReplicaSet) -> bool,
    ) -> Acked {
        let Some(entry) = self.get_mut(seq) else {
            return Acked::default();
        };
        entry.missing.remove(replica);
        entry.acked.insert(replica);
        let synced = !entry.synced && enough(entry.acked);
        entry.synced |= synced;
        let gone = entry.missing.is_empty();
        if gone {
            self.remove(seq);
        }
        Acked { synced, gone }
    }

    /// What is enough has changed: writes whose acknowledgements suffice now are synced.
    pub fn judge(&mut self, enough: impl Fn(ReplicaSet) -> bool) {
        for entry in self.slots.iter_mut().flatten() {
            entry.synced |= enough(entry.acked);
        }
    }

    /// A replica has nothing of what it acknowledged: everything that is held is to reach it (again). The
    /// writes, with their sizes in bytes.
    pub fn owe(&mut self, replica: ReplicaId) -> Vec<(Seq, usize)> {
        let entries = self.slots.iter_mut().flatten().map(|entry| {
            entry.missing.insert(replica);
            entry.acked.remove(replica);
            (entry.version.seq, entry.data.len())
        });
        entries.collect()
    }

    /// A replica is gone for good: nothing is held for it, and what it has counts no more. A write that is not
    /// synced stays, for whoever comes in its place.
    pub fn forget_replica(&mut self, replica: ReplicaId) {
        let mut gone = Vec::new();
        for entry in self.slots.iter_mut().flatten() {
            entry.missing.remove(replica);
            entry.acked.remove(replica);
            if entry.missing.is_empty() && entry.synced {
                gone.push(entry.version.seq);
            }
        }
        gone.into_iter().for_each(|seq| self.remove(seq));
    }

    /// True if this replica can do without the write: it is synced, and a newer one of the same block
    /// and generation is on its way to the replica.
    pub fn is_superfluous(&self, seq: Seq, replica: ReplicaId) -> bool {
        let Some(entry) = self.get(seq).filter(|e| e.synced && e.superseded) else {
            return false;
        };
        let mut next = self.newest.get(&entry.key).copied();
        while let Some(newer) = next.filter(|n| *n > seq).and_then(|n| self.get(n)) {
            if newer.generation == entry.generation && newer.missing.contains(replica) {
                return true;
            }
            next = newer.older;
        }
        false
    }

    /// True if a newer write of the same block and generation was made.
    pub fn is_superseded(&self, seq: Seq) -> bool {
        self.get(seq).is_some_and(|entry| entry.superseded)
    }

    /// Earlier writes of the same block and generation that this replica, which has this one, has not acknowledged.
    /// It needs none of them, and must not get any that it refused: should its copy be damaged meanwhile, an
    /// earlier write would take the place of this one.
    pub fn covered_by(&self, seq: Seq, replica: ReplicaId) -> Vec<Seq> {
        let mut covered = Vec::new();
        let Some(entry) = self.get(seq) else {
            return covered;
        };
        let mut next = entry.older;
        while let Some(older) = next.and_then(|seq| self.get(seq)) {
            if older.generation == entry.generation {
                if !older.missing.contains(replica) {
                    // What is earlier still was covered by that one.
                    break;
                }
                covered.push(older.version.seq);
            }
            next = older.older;
        }
        covered
    }

    /// Gives up synced writes that only replicas in `away` lack, oldest first, until `enough` bytes
    /// are free.
    pub fn give_up(&mut self, away: ReplicaSet, enough: usize) -> Vec<Dropped> {
        let mut given_up = Vec::new();
        let mut freed = 0;
        let mut index = 0;
        while freed < enough && index < self.slots.len() {
            let seq = self.base + index as u64;
            let candidate = self.slots[index].as_ref();
            let droppable = candidate.filter(|e| e.synced && e.missing.without(away).is_empty());
            let Some(entry) = droppable else {
                index += 1;
                continue;
            };
            freed += entry.data.len();
            given_up.push(entry.dropped());
            let first = self.base;
            self.remove(seq);
            index = (index + 1).saturating_sub((self.base - first) as usize);
        }
        given_up
    }

    /// Gives up one synced write for a replica that has not acknowledged it.
    pub fn give_up_for(&mut self, seq: Seq, replica: ReplicaId) -> Option<Dropped> {
        let entry = self.get_mut(seq)?;
        if !entry.synced || !entry.missing.contains(replica) {
            return None;
        }
        let dropped = Dropped {
            replicas: ReplicaSet::from_iter([replica]),
            ..entry.dropped()
        };
        entry.missing.remove(replica);
        if entry.missing.is_empty() {
            self.remove(seq);
        }
        Some(dropped)
    }

    /// Drops writes to blocks that are being removed.
    pub fn drop_removed(&mut self, removed: impl Fn(FileId, BlockIndex) -> bool) -> Vec<Dropped> {
        let entries = self.slots.iter().flatten();
        let matching = entries.filter(|e| removed(e.key.file, e.key.block));
        let (seqs, dropped): (Vec<Seq>, Vec<Dropped>) =
            matching.map(|e| (e.version.seq, e.dropped())).unzip();
        seqs.into_iter().for_each(|seq| self.remove(seq));
        dropped
    }

    /// Forgets everything (the writer is fenced).
    pub fn clear(&mut self) {
        *self = Pending::default();
    }

    fn remove(&mut self, seq: Seq) {
        let index = (seq - self.base) as usize;
        let Some(entry) = self.slots[index].take() else {
            return;
        };
        self.bytes -= entry.data.len();
        self.count -= 1;
        self.outlive(&entry);
        self.unlink(seq, &entry);
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// The entry goes before older writes of its block do: they are not to be read for it.
    fn outlive(&mut self, gone: &Entry) {
        let mut next = gone.older;
        while let Some(older) = next.and_then(|seq| self.get_mut(seq)) {
            let newer = older.outlived_in.unwrap_or(Generation::MAX);
            older.outlived_in = Some(newer.min(gone.generation));
            next = older.older;
        }
    }

    /// Takes the entry out of the chain of its block's pending writes.
    fn unlink(&mut self, seq: Seq, entry: &Entry) {
        let older = entry.older.filter(|seq| self.get(*seq).is_some());
        let mut next = self.newest.get(&entry.key).copied();
        if next == Some(seq) {
            match older {
                Some(older) => self.newest.insert(entry.key, older),
                None => self.newest.remove(&entry.key),
            };
            return;
        }
        while let Some(newer) = next.and_then(|seq| self.get_mut(seq)) {
            next = newer.older;
            if next == Some(seq) {
                newer.older = older;
                return;
            }
        }
    }

    /// True if everything up to `upto` (of one file, or of all) is on k replicas.
    pub fn is_synced(&mut self, file: Option<FileId>, upto: Seq) -> bool {
        self.first_unsynced(file).is_none_or(|first| first > upto)
    }

    fn first_unsynced(&mut self, file: Option<FileId>) -> Option<Seq> {
        let Pending {
            base,
            slots,
            unsynced,
            unsynced_of,
            ..
        } = self;
        let synced = |seq: Seq| {
            let index = seq.checked_sub(*base);
            let slot = index.and_then(|i| slots.get(i as usize));
            slot.and_then(Option::as_ref).is_none_or(|e| e.synced)
        };
        let queue = match file {
            None => unsynced,
            Some(file) => unsynced_of.get_mut(&file)?,
        };
        while queue.front().is_some_and(|seq| synced(*seq)) {
            queue.pop_front();
        }
        let first = queue.front().copied();
        if first.is_none()
            && let Some(file) = file
        {
            unsynced_of.remove(&file);
        }
        first
    }

    /// Keeps the queues of what may be unsynced from growing where nobody asks for syncs.
    pub fn tidy(&mut self) {
        self.first_unsynced(None);
        if self.unsynced.is_empty() {
            self.unsynced_of.clear();
            self.uncleaned = 0;
        }
        if self.uncleaned > 4096 + 4 * self.count {
            let files: Vec<FileId> = self.unsynced_of.keys().copied().collect();
            for file in files {
                self.first_unsynced(Some(file));
            }
            self.uncleaned = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    const ALL: fn() -> ReplicaSet = || ReplicaSet::first(3);
    const TWO: fn(ReplicaSet) -> bool = |replicas| replicas.len() >= 2;

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(1),
            number,
        }
    }

    fn add(pending: &mut Pending, seq: Seq, block: u64, generation: Generation) {
        let version = Version {
            epoch: Epoch(1),
            seq,
        };
        let data = Bytes::from(vec![seq as u8; 10]);
        pending.add(
            BlockKey::new(FileId(1), block),
            generation,
            version,
            0,
            data.into(),
            ALL(),
        );
    }

    fn seen(pending: &Pending, up_to: Generation) -> Option<Seq> {
        let block = pending.read(BlockKey::new(FileId(1), 0), up_to);
        block.map(|b| b.version.seq)
    }

    #[test]
    fn synced_at_k_and_gone_at_n() {
        let mut p = Pending::default();
        add(&mut p, 5, 0, g(1));
        assert!(!p.is_synced(None, 5));
        assert!(p.is_synced(None, 4), "nothing that early is pending");
        assert_eq!(p.ack(5, ReplicaId(0), TWO), Acked::default());
        assert_eq!(
            p.ack(5, ReplicaId(0), TWO),
            Acked::default(),
            "counted once"
        );
        assert!(p.ack(5, ReplicaId(2), TWO).synced);
        assert!(p.is_synced(None, 5) && p.is_synced(Some(FileId(1)), 5));
        assert_eq!(p.bytes(), 10);
        assert!(p.ack(5, ReplicaId(1), TWO).gone);
        assert_eq!(p.bytes(), 0);
        assert_eq!(p.ack(5, ReplicaId(1), TWO), Acked::default());
    }

    #[test]
    fn reads_see_the_newest_pending_of_their_image() {
        let mut p = Pending::default();
        add(&mut p, 1, 0, g(1));
        add(&mut p, 2, 0, g(2));
        add(&mut p, 4, 0, g(2));
        add(&mut p, 5, 0, g(3));
        assert_eq!(seen(&p, Generation::MAX), Some(5));
        assert_eq!(seen(&p, g(2)), Some(4));
        assert_eq!(seen(&p, g(1)), Some(1));
        assert_eq!(seen(&p, g(0)), None);
        for replica in ALL().iter() {
            p.ack(4, replica, TWO);
        }
        assert_eq!(seen(&p, g(2)), None, "replicas have what is newest");
        assert_eq!(
            seen(&p, g(1)),
            Some(1),
            "the chain survives a removal inside"
        );
        assert_eq!(seen(&p, Generation::MAX), Some(5));
        for replica in ALL().iter() {
            p.ack(5, replica, TWO);
        }
        assert_eq!(seen(&p, Generation::MAX), None);
        assert_eq!(seen(&p, g(1)), Some(1));
    }

    #[test]
    fn a_write_that_a_newer_one_has_outlived_is_not_read() {
        let mut p = Pending::default();
        add(&mut p, 1, 0, g(1));
        add(&mut p, 2, 0, g(2));
        add(&mut p, 3, 0, g(4));
        // A replica has refused the first, and takes those after it.
        ALL().iter().for_each(|replica| {
            p.ack(2, replica, TWO);
        });
        assert_eq!(seen(&p, g(1)), Some(1), "still the newest of its image");
        assert_eq!(seen(&p, g(2)), None);
        assert_eq!(seen(&p, g(3)), None);
        assert_eq!(seen(&p, g(4)), Some(3));
    }

    #[test]
    fn synced_writes_alone_are_given_up_and_for_replicas_away() {
        let mut p = Pending::default();
        let mut away = ReplicaSet::default();
        away.insert(ReplicaId(2));
        (1..=3).for_each(|seq| add(&mut p, seq, seq, g(1)));
        for (seq, replica) in [(1, 0), (1, 1), (2, 0), (3, 0), (3, 2)] {
            p.ack(seq, ReplicaId(replica), TWO);
        }
        let dropped = Dropped {
            key: BlockKey::new(FileId(1), 1),
            generation: g(1),
            bytes: 10,
            replicas: away,
        };
        assert_eq!(p.give_up(away, 1000), vec![dropped]);
        assert!(p.get(1).is_none() && p.get(2).is_some() && p.get(3).is_some());
        assert!(!p.is_synced(None, 3));
    }

    #[test]
    fn a_replica_needs_no_synced_write_that_a_newer_one_replaces_there() {
        let mut p = Pending::default();
        add(&mut p, 1, 0, g(1));
        add(&mut p, 2, 0, g(1));
        assert!(
            !p.is_superfluous(1, ReplicaId(2)),
            "not synced: it must go out"
        );
        p.ack(1, ReplicaId(0), TWO);
        p.ack(1, ReplicaId(1), TWO);
        assert!(p.is_superfluous(1, ReplicaId(2)));
        p.ack(2, ReplicaId(2), TWO);
        assert!(!p.is_superfluous(1, ReplicaId(2)));
        add(&mut p, 3, 0, g(2));
        assert!(!p.is_superfluous(2, ReplicaId(2)), "generations are apart");
    }

    #[test]
    fn a_write_covers_the_earlier_ones_of_its_row() {
        let mut p = Pending::default();
        add(&mut p, 1, 0, g(1));
        add(&mut p, 2, 0, g(2));
        add(&mut p, 3, 0, g(2));
        add(&mut p, 4, 1, g(2));
        add(&mut p, 5, 0, g(2));
        let covered_by = |seq| p.covered_by(seq, ReplicaId(0));
        assert_eq!(covered_by(5), [3, 2], "neither generation 1 nor block 1");
        assert_eq!(covered_by(3), [2]);
        assert!(covered_by(1).is_empty() && covered_by(9).is_empty());
        assert!(p.is_superseded(3) && !p.is_superseded(5) && !p.is_superseded(1));
    }

    #[test]
    fn gaps_in_the_order_are_no_writes() {
        let mut p = Pending::default();
        add(&mut p, 3, 0, g(1));
        add(&mut p, 9, 1, g(1));
        assert!(p.get(5).is_none());
        for replica in ALL().iter() {
            p.ack(3, replica, TWO);
        }
        assert!(p.get(9).is_some());
        assert!(p.is_synced(None, 8));
        assert!(!p.is_synced(None, 9));
    }

    // hazard: ZONE-6
    #[test]
    fn of_a_write_that_only_those_who_leave_were_to_have_nothing_is_synced() {
        let mut pending = Pending::default();
        add(&mut pending, 1, 7, g(1));
        for replica in ALL().iter() {
            pending.forget_replica(replica);
        }
        assert!(pending.read(BlockKey::new(FileId(1), 7), g(1)).is_some());
    }
}
