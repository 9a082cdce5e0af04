//! What one handle of a volume knows without asking anybody: its epoch, its pending writes, the version list.
//!
//! Invariants: versions grow, and each is given once; once fenced, always fenced; what is learned of a block that
//! is being read is not forgotten meanwhile, or an answer from before a write would pass as the newest.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, Version};
use crate::storage::{Block, StorageCounters, SyncScope, VolumeSettings};
use crate::wire::checksum;

use super::differences::Contents;
use super::hash::IdMap;
use super::node_versions::NodeVersions;
use super::pending::{Dropped, Pending, Seq};
use super::replica_set::ReplicaSet;
use super::versions::{Known, VersionList};

/// State of a storage handle: its epoch and its writes. A handle without an epoch only reads.
#[derive(Debug)]
pub struct Handle {
    /// Reads ask one replica where the version is known.
    optimistic: bool,
    own: Option<Epoch>,
    /// The first epoch that it ever owned: versions of lower ones are not its own.
    first_own: Option<Epoch>,
    /// Why it must stop, once it must.
    fenced: Option<String>,
    seq: Seq,
    /// What some replica has not acknowledged.
    pub pending: Pending,
    /// What reads must return.
    pub versions: VersionList,
    /// Blocks that are being read or promoted.
    reading: IdMap<BlockKey, u32>,
    removed_before: IdMap<FileId, BlockIndex>,
    /// Versions of records that it alone writes, without an epoch.
    pub node_records: NodeVersions,
    /// What was done so far.
    pub counters: StorageCounters,
    /// Blocks with pending writes leave the version list: one of the simulation's flaws.
    #[cfg(test)]
    pub pending_evicted: bool,
}

impl Handle {
    /// A handle that owns no epoch.
    pub fn new(settings: &VolumeSettings, version_list_max: usize) -> Handle {
        Handle {
            optimistic: settings.protocol.is_optimistic(),
            own: None,
            first_own: None,
            fenced: None,
            seq: 0,
            pending: Pending::default(),
            versions: VersionList::new(version_list_max),
            reading: IdMap::default(),
            removed_before: IdMap::default(),
            node_records: NodeVersions::default(),
            counters: StorageCounters::default(),
            #[cfg(test)]
            pending_evicted: false,
        }
    }

    // --- the epoch -------------------------------------------------------------------------------

    /// The epoch that it owns.
    pub fn epoch(&self) -> Option<Epoch> {
        self.own
    }

    /// True if it has to stop.
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// # Errors
    /// `Fenced`.
    pub fn check_fence(&self) -> Result<()> {
        match &self.fenced {
            Some(why) => Err(Error::new(ErrorKind::Fenced, why.clone())),
            None => Ok(()),
        }
    }

    /// The epoch to write under.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` without an epoch.
    pub fn check_writer(&self) -> Result<Epoch> {
        self.check_fence()?;
        let none = || Error::new(ErrorKind::Invalid, "this handle owns no epoch");
        self.own.ok_or_else(none)
    }

    /// It owns `epoch` from now on.
    pub fn adopt(&mut self, epoch: Epoch) {
        self.own = Some(epoch);
        self.first_own.get_or_insert(epoch);
    }

    /// A higher epoch exists. Says whether that is news: who owns nothing is not fenced.
    pub fn fence(&mut self, why: String) -> bool {
        let news = self.fenced.is_none() && self.own.is_some();
        if news {
            self.fenced = Some(why);
        }
        news
    }

    /// Only the owner of an epoch makes versions of it: says whether this one tells of a higher epoch.
    pub fn is_overtaken_by(&self, version: Version) -> bool {
        self.own.is_some_and(|own| version.epoch > own)
    }

    /// True if this handle made the version.
    pub fn is_own(&self, version: Version) -> bool {
        let epochs = self.first_own.zip(self.own);
        epochs.is_some_and(|(first, last)| (first..=last).contains(&version.epoch))
    }

    // --- writes ----------------------------------------------------------------------------------

    /// A version above all that it gave.
    pub fn next_version(&mut self) -> Version {
        self.seq += 1;
        Version {
            epoch: self.own.unwrap_or_default(),
            seq: self.seq,
        }
    }

    /// The last version given.
    pub fn last_seq(&self) -> Seq {
        self.seq
    }

    /// Makes versions from now on higher than one that was seen.
    pub fn skip_past(&mut self, version: Version) {
        if self.own == Some(version.epoch) {
            self.seq = self.seq.max(version.seq);
        }
    }

    /// Gives contents their version; they are pending until all `replicas` have acknowledged them. They may begin
    /// with what replicas have already.
    pub fn store(
        &mut self,
        version: Version,
        key: BlockKey,
        generation: Generation,
        contents: impl Into<Contents>,
        replicas: ReplicaSet,
    ) {
        let contents = contents.into();
        let checksum = checksum(key, generation, version, &contents.data);
        self.pending
            .add(key, generation, version, checksum, contents, replicas);
        self.evict();
        self.versions.written(key, generation, version);
    }

    /// A replica has acknowledged a write, and with it the earlier ones of the same block and generation, of which
    /// `covered` is told, with the bytes of each. `enough`: whether those who have acknowledged a write make it
    /// durable.
    pub fn acked(
        &mut self,
        seq: Seq,
        replica: ReplicaId,
        enough: impl Fn(ReplicaSet) -> bool + Copy,
        mut covered: impl FnMut(Seq, usize),
    ) {
        let pending = &mut self.pending;
        for earlier in pending.covered_by(seq, replica) {
            let bytes = pending.get(earlier).map_or(0, |entry| entry.data.len());
            pending.ack(earlier, replica, enough);
            covered(earlier, bytes);
        }
        pending.ack(seq, replica, enough);
    }

    /// What a sync of this scope must wait for now.
    pub fn scope(&self, scope: SyncScope) -> (Option<FileId>, Seq) {
        match scope {
            SyncScope::Volume => (None, self.seq),
            SyncScope::File(file) => (Some(file), self.seq),
            SyncScope::FileUpTo(file, version) if self.is_own(version) => {
                (Some(file), version.seq.min(self.seq))
            }
            SyncScope::FileUpTo(file, _) => (Some(file), 0),
        }
    }

    // --- reads -----------------------------------------------------------------------------------

    /// True if reads ask one replica where the version is known.
    pub fn is_optimistic(&self) -> bool {
        self.optimistic
    }

    /// Begins a read or a promotion of a block; [`end_read`](Self::end_read) ends it.
    pub fn begin_read(&mut self, key: BlockKey) {
        *self.reading.entry(key).or_default() += 1;
    }

    /// See [`begin_read`](Self::begin_read).
    pub fn end_read(&mut self, key: BlockKey) {
        if let Some(count) = self.reading.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.reading.remove(&key);
            }
        }
    }

    /// Answers from `sync_pending`, and from the list where it knows that there is nothing.
    pub fn read_at_once(&mut self, key: BlockKey, up_to: Generation) -> Option<Option<Block>> {
        if self.own.is_none() || self.fenced.is_some() {
            return None;
        }
        if self.is_removed(key) {
            return Some(None);
        }
        let known = self.versions.get(key, up_to);
        if let Some(block) = self.pending.read(key, up_to)
            && known.is_none_or(|k| k.version <= block.version)
        {
            self.counters.reads_pending += 1;
            return Some(Some(block));
        }
        let absent = known.is_some_and(|k| k.version == Version::ZERO);
        (absent && self.optimistic).then_some(None)
    }

    /// What one replica's answer must be, if one suffices.
    pub fn expected(&mut self, key: BlockKey, up_to: Generation) -> Option<Known> {
        let optimistic = self.own.is_some() && self.optimistic;
        optimistic.then(|| self.versions.get(key, up_to)).flatten()
    }

    /// True if one replica's answer is what must be found: exactly that, or a later write of this handle
    /// unless the image is `sealed`.
    pub fn is_fresh(&self, known: Known, sealed: bool, found: Version) -> bool {
        found == known.version || (!sealed && found > known.version && self.is_own(found))
    }

    /// A quorum has answered a read as of `up_to` of which `known` was expected.
    pub fn learn(
        &mut self,
        key: BlockKey,
        up_to: Generation,
        known: Option<Known>,
        found: Option<(Generation, Version)>,
    ) {
        if self.own.is_none() {
            return;
        }
        let unsettled = known.filter(|known| !known.settled);
        if unsettled.is_some() && self.versions.entry(key) == unsettled {
            self.versions.forget(key);
        }
        self.evict();
        self.versions.learned(key, up_to, found, false);
    }

    /// True if it wrote or promoted the block already.
    pub fn is_settled(&mut self, key: BlockKey) -> bool {
        self.versions.entry(key).is_some_and(|known| known.settled)
    }

    fn evict(&mut self) {
        let pinned = self.pending.keys().chain(self.reading.keys().copied());
        #[cfg(test)]
        let pinned = pinned.filter(|_| !self.pending_evicted);
        self.versions.evict(pinned);
    }

    // --- removal ---------------------------------------------------------------------------------

    /// True if the block is in front of what its file still has.
    pub fn is_removed(&self, key: BlockKey) -> bool {
        let removed = self.removed_before.get(&key.file);
        removed.is_some_and(|first| key.block < *first)
    }

    /// Blocks of these files need not be written any more. Returns what was pending of them.
    pub fn remove_files(&mut self, files: &HashSet<FileId>) -> Vec<Dropped> {
        for file in files {
            self.removed_before.remove(file);
        }
        self.pending.drop_removed(|file, _| files.contains(&file))
    }

    /// The blocks of a file before `first` are not read or written any more. Returns what was pending of them.
    pub fn remove_before(&mut self, file: FileId, first: BlockIndex) -> Vec<Dropped> {
        let removed = self.removed_before.entry(file).or_default();
        *removed = first.max(*removed);
        self.pending.drop_removed(|f, b| f == file && b < first)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const FILE: FileId = FileId(9);

    fn handle() -> Handle {
        let mut handle = Handle::new(&VolumeSettings::default(), 100);
        handle.adopt(Epoch(3));
        handle
    }

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FILE, block)
    }

    fn write(handle: &mut Handle, block: u64) -> Version {
        let version = handle.next_version();
        let data = Bytes::from_static(b"contents");
        let replicas = ReplicaSet::first(3);
        handle.store(version, key(block), Generation::SINGLE, data, replicas);
        version
    }

    #[test]
    fn a_handle_that_owned_several_epochs_knows_its_versions() {
        let mut handle = handle();
        handle.adopt(Epoch(5));
        let of = |epoch| Version {
            epoch: Epoch(epoch),
            seq: 1,
        };
        let own: Vec<u32> = (1..8).filter(|e| handle.is_own(of(*e))).collect();
        assert_eq!(own, [3, 4, 5]);
        assert!(handle.is_overtaken_by(of(6)) && !handle.is_overtaken_by(of(5)));
    }

    #[test]
    fn owners_alone_are_fenced_and_for_good() {
        let mut reader = Handle::new(&VolumeSettings::default(), 100);
        assert!(!reader.fence("somebody writes".into()) && !reader.is_fenced());
        assert_eq!(
            reader.check_writer().unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let mut handle = handle();
        assert!(handle.fence("b owns e4".into()) && !handle.fence("again".into()));
        assert!(handle.check_writer().unwrap_err().is_fenced());
        assert_eq!(handle.read_at_once(key(0), Generation::MAX), None);
    }

    #[test]
    fn an_answer_of_one_replica_is_what_is_known_or_a_later_own_write() {
        let mut handle = handle();
        let version = write(&mut handle, 0);
        let known = handle.expected(key(0), Generation::MAX).unwrap();
        let later = handle.next_version();
        let foreign = Version {
            epoch: Epoch(2),
            seq: 99,
        };
        assert!(handle.is_fresh(known, false, version) && handle.is_fresh(known, true, version));
        assert!(handle.is_fresh(known, false, later) && !handle.is_fresh(known, true, later));
        assert!(!handle.is_fresh(known, false, foreign));
        assert!(!handle.is_fresh(known, false, Version::ZERO));
    }

    #[test]
    fn blocks_in_front_of_a_file_are_absent_and_no_longer_pending() {
        let mut handle = handle();
        for block in 0..3 {
            write(&mut handle, block);
        }
        let dropped = handle.remove_before(FILE, BlockIndex(2));
        assert_eq!(dropped.len(), 2);
        assert_eq!(handle.read_at_once(key(1), Generation::SINGLE), Some(None));
        let pending = handle.read_at_once(key(2), Generation::SINGLE);
        assert!(matches!(pending, Some(Some(_))));
        assert_eq!(handle.remove_files(&HashSet::from([FILE])).len(), 1);
        assert!(!handle.is_removed(key(1)) && handle.pending.is_empty());
    }
}
