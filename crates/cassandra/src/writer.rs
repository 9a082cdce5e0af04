//! What a client decides about its writes and reads, without a socket, clock or task.
//!
//! Owns `sync_pending`, the version list, the epoch and the queues of what is to be sent. A write goes to
//! one place, Cassandra, which says when enough replicas have it; so there is one replica here. Invariants:
//! those of [`dax::writer`]; a write leaves `sync_pending` only when it, or a later one of the same
//! row, was acknowledged, or its file is gone; once fenced, always fenced.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, Version};
use dax::storage::{Block, StorageCounters, SyncScope, VolumeSettings};
use dax::wire::checksum;
use dax::writer::pending::{Pending, Seq};
use dax::writer::versions::{Known, VersionList};
use dax::writer::{IdMap, NodeVersions, ReplicaSet};

use crate::lane::Lane;
use crate::row::{self, SEQ_END, Stored};

/// The one place that writes go to.
const THERE: ReplicaId = ReplicaId(0);

/// A partition: a file and the number of the chunk in it.
pub type Chunk = (FileId, u64);

/// Bounds of one client.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of blocks that may wait for acknowledgements.
    pub pending_bytes_max: usize,
    /// Entries of the version list.
    pub version_list_max: usize,
    /// Requests on their way at a time, in each lane.
    pub requests_max: usize,
}

/// A row to be written.
#[derive(Debug, Clone)]
pub struct Row {
    /// Which block.
    pub key: BlockKey,
    /// In which generation.
    pub generation: Generation,
    /// Its version.
    pub version: Version,
    /// Over all of these and the contents.
    pub checksum: u32,
    /// The contents; none say that there is no block.
    pub data: Bytes,
}

/// Rows of one partition, for one request.
#[derive(Debug)]
pub struct Batch {
    lane: usize,
    /// The partition.
    pub chunk: Chunk,
    /// The rows, oldest first.
    pub rows: Vec<Row>,
    /// Nobody has noted yet that the file has this chunk.
    pub index: bool,
}

/// How a read goes on.
#[derive(Debug)]
pub enum Plan {
    /// The answer is here.
    AtOnce(Option<Block>),
    /// One replica's answer suffices if it has what is known.
    One(Known),
    /// A quorum must be asked.
    Quorum,
}

/// See the module.
#[derive(Debug)]
pub struct Writer {
    settings: VolumeSettings,
    limits: Limits,
    own: Option<Epoch>,
    first_own: Option<Epoch>,
    fenced: Option<String>,
    seq: Seq,
    pending: Pending,
    versions: VersionList,
    reading: IdMap<BlockKey, u32>,
    removed_before: IdMap<FileId, BlockIndex>,
    /// Log, journal and configuration have a lane of their own: a commit does not wait behind what a
    /// checkpoint writes.
    lanes: [Lane; 2],
    indexed: HashSet<Chunk>,
    dirty: HashMap<Chunk, Generation>,
    /// What was done so far.
    pub counters: StorageCounters,
    /// Versions of records without an epoch.
    pub node_records: NodeVersions,
}

impl Writer {
    /// A client that owns no epoch.
    pub fn new(settings: VolumeSettings, limits: Limits) -> Writer {
        Writer {
            versions: VersionList::new(limits.version_list_max),
            settings,
            limits,
            own: None,
            first_own: None,
            fenced: None,
            seq: 0,
            pending: Pending::default(),
            reading: IdMap::default(),
            removed_before: IdMap::default(),
            lanes: Default::default(),
            indexed: HashSet::new(),
            dirty: HashMap::new(),
            counters: StorageCounters::default(),
            node_records: NodeVersions::default(),
        }
    }

    // --- the epoch -------------------------------------------------------------------------------

    /// The epoch that this client owns.
    pub fn epoch(&self) -> Option<Epoch> {
        self.own
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

    /// This client owns `epoch` from now on.
    pub fn adopt(&mut self, epoch: Epoch) {
        self.own = Some(epoch);
        self.first_own.get_or_insert(epoch);
    }

    /// A higher epoch exists: nothing that is pending will ever be acknowledged. Says whether that is news.
    pub fn fence(&mut self, why: String) -> bool {
        if self.fenced.is_some() || self.own.is_none() {
            return false;
        }
        self.fenced = Some(why);
        self.pending.clear();
        self.lanes.iter_mut().for_each(Lane::clear);
        true
    }

    /// Only the owner of an epoch makes versions of it: says whether this one tells of a higher epoch.
    pub fn is_overtaken_by(&self, version: Version) -> bool {
        self.own.is_some_and(|own| version.epoch > own)
    }

    fn is_own(&self, version: Version) -> bool {
        let epochs = self.first_own.zip(self.own);
        epochs.is_some_and(|(first, last)| (first..=last).contains(&version.epoch))
    }

    // --- writes ----------------------------------------------------------------------------------

    /// A version above all that this client gave.
    ///
    /// # Errors
    /// As [`check_writer`](Self::check_writer); `Invalid` when there are no versions left.
    pub fn next_version(&mut self) -> Result<Version> {
        let epoch = self.check_writer()?;
        if self.seq + 1 >= SEQ_END {
            let why = "this client has no versions left: start the node again";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        self.seq += 1;
        Ok(Version {
            epoch,
            seq: self.seq,
        })
    }

    /// Makes versions from now on higher than one that was seen.
    pub fn skip_past(&mut self, version: Version) {
        if self.own == Some(version.epoch) {
            self.seq = self.seq.max(version.seq);
        }
    }

    /// See [`dax::storage::Storage::write`]; `data` is packed ([`dax::writer::packing`]).
    ///
    /// # Errors
    /// As [`next_version`](Self::next_version).
    pub fn write(&mut self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.check_writer()?;
        self.counters.writes += 1;
        self.store(key, generation, data)
    }

    /// Writes what a promotion chose again, in this epoch; also that there is no such block (C2).
    ///
    /// # Errors
    /// As [`next_version`](Self::next_version).
    pub fn promote(&mut self, key: BlockKey, chosen: Option<&Block>) -> Result<Version> {
        self.counters.reads_promoted += 1;
        let data = chosen.map_or_else(Bytes::new, |block| block.data.clone());
        self.store(key, Generation::SINGLE, data)
    }

    fn store(&mut self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        let version = self.next_version()?;
        let checksum = checksum(key, generation, version, &data);
        self.pending.add(
            key,
            generation,
            version,
            checksum,
            data,
            ReplicaSet::first(1),
        );
        self.evict();
        self.versions.written(key, generation, version);
        if generation > Generation::SINGLE {
            let dirty = self.dirty.entry(self.chunk_of(key)).or_default();
            *dirty = generation.max(*dirty);
        }
        let chunk = self.chunk_of(key);
        self.lanes[lane_of(generation)].push(chunk, version.seq);
        Ok(version)
    }

    fn chunk_of(&self, key: BlockKey) -> Chunk {
        let chunk = row::chunk_of(key.block.0, self.settings.block_size_bytes);
        (key.file, chunk)
    }

    /// Whether [`next_batch`](Self::next_batch) may have something.
    pub fn may_send(&self) -> bool {
        let max = self.limits.requests_max;
        self.lanes.iter().any(|lane| lane.may_send(max))
    }

    /// What to send next; none while enough is on its way.
    pub fn next_batch(&mut self) -> Option<Batch> {
        let (pending, max) = (&self.pending, self.limits.requests_max);
        let lanes = self.lanes.iter_mut().enumerate();
        let next = lanes.map(|(n, lane)| Some((n, lane.next(max, |seq| wanted(pending, seq))?)));
        let (lane, (chunk, rows)) = next.flatten().next()?;
        Some(Batch {
            lane,
            chunk,
            rows,
            index: !self.indexed.contains(&chunk),
        })
    }

    /// Takes out of a batch that failed what nobody waits for any more.
    pub fn still_wanted(&self, batch: &mut Batch) -> bool {
        let wanted = |row: &Row| self.pending.get(row.version.seq).is_some();
        batch.rows.retain(wanted);
        !batch.rows.is_empty()
    }

    /// Enough replicas have a batch, or nobody wants it any more.
    pub fn sent(&mut self, batch: &Batch, acknowledged: bool) {
        self.lanes[batch.lane].done(batch.chunk);
        if !acknowledged {
            return;
        }
        if batch.index && self.fenced.is_none() {
            self.indexed.insert(batch.chunk);
        }
        let all = ReplicaSet::first(1);
        for row in &batch.rows {
            let seq = row.version.seq;
            for covered in self.pending.covered_by(seq) {
                self.pending.ack(covered, THERE, all, 1);
            }
            self.pending.ack(seq, THERE, all, 1);
        }
        self.pending.tidy();
    }

    /// Whether so many more bytes may be pending.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.has_room_beside(0, bytes)
    }

    /// The same where so many bytes were promised to others.
    pub fn has_room_beside(&self, promised: usize, bytes: usize) -> bool {
        let pending = self.pending.bytes() + promised;
        (promised == 0 && self.pending.is_empty())
            || pending + bytes <= self.limits.pending_bytes_max
    }

    /// Bytes that wait for acknowledgements.
    pub fn pending_bytes(&self) -> usize {
        self.pending.bytes()
    }

    // --- sync points -----------------------------------------------------------------------------

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

    /// Whether all of that was acknowledged.
    pub fn is_synced(&mut self, file: Option<FileId>, upto: Seq) -> bool {
        self.pending.is_synced(file, upto)
    }

    // --- reads -----------------------------------------------------------------------------------

    /// Begins a read; [`end_read`](Self::end_read) ends it. What is learned of the block meanwhile is not
    /// forgotten, or an answer from before a write would pass as the newest.
    pub fn begin_read(&mut self, key: BlockKey, up_to: Generation) -> Plan {
        self.pin(key);
        if let Some(answer) = self.read_at_once(key, up_to) {
            return Plan::AtOnce(answer);
        }
        match self.known(key, up_to) {
            Some(known) => Plan::One(known),
            None => Plan::Quorum,
        }
    }

    /// Begins a read of which the caller knows what it must find.
    pub fn pin(&mut self, key: BlockKey) {
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

    fn known(&mut self, key: BlockKey, up_to: Generation) -> Option<Known> {
        let optimistic = self.own.is_some() && self.settings.protocol.is_optimistic();
        optimistic.then(|| self.versions.get(key, up_to)).flatten()
    }

    fn read_at_once(&mut self, key: BlockKey, up_to: Generation) -> Option<Option<Block>> {
        if self.own.is_none() || self.fenced.is_some() {
            return None;
        }
        let removed = self.removed_before.get(&key.file);
        if removed.is_some_and(|first| key.block < *first) {
            return Some(None);
        }
        let known = self.versions.get(key, up_to);
        if let Some(block) = self.pending.read(key, up_to)
            && known.is_none_or(|k| k.version <= block.version)
        {
            self.counters.reads_pending += 1;
            return Some(row::present(block));
        }
        let absent = known.is_some_and(|k| k.version == Version::ZERO);
        (absent && self.settings.protocol.is_optimistic()).then_some(None)
    }

    /// Whether one replica's answer is what must be found: exactly that, or a later write of this client
    /// unless the image is `sealed`.
    pub fn is_fresh(&self, known: Known, sealed: bool, found: Option<&Stored>) -> bool {
        let version = found.map_or(Version::ZERO, |stored| stored.version);
        version == known.version || (!sealed && version > known.version && self.is_own(version))
    }

    /// A quorum answered. `known` is what was expected.
    pub fn learn(
        &mut self,
        key: BlockKey,
        up_to: Generation,
        known: Option<Known>,
        found: Option<&Stored>,
    ) {
        if self.own.is_none() {
            return;
        }
        let unsettled = known.filter(|known| !known.settled);
        if unsettled.is_some() && self.versions.entry(key) == unsettled {
            self.versions.forget(key);
        }
        self.evict();
        let found = found.map(|stored| (stored.generation, stored.version));
        self.versions.learned(key, up_to, found, false);
    }

    /// Whether this client wrote or promoted the block already; what it wrote last, if that is pending.
    pub fn is_settled(&mut self, key: BlockKey) -> bool {
        self.versions.entry(key).is_some_and(|known| known.settled)
    }

    /// The pending write of a block that keeps one version.
    pub fn pending_single(&self, key: BlockKey) -> Option<Block> {
        self.pending.read(key, Generation::SINGLE)
    }

    fn evict(&mut self) {
        let pinned = self.pending.keys().chain(self.reading.keys().copied());
        self.versions.evict(pinned);
    }

    // --- removal ---------------------------------------------------------------------------------

    /// Blocks of these files need not be written any more.
    pub fn remove_files(&mut self, files: &HashSet<FileId>) {
        self.pending.drop_removed(|file, _| files.contains(&file));
        for file in files {
            self.removed_before.remove(file);
        }
        self.indexed.retain(|(file, _)| !files.contains(file));
        self.dirty.retain(|(file, _), _| !files.contains(file));
    }

    /// The blocks of a file before `first` are not read or written any more.
    pub fn remove_before(&mut self, file: FileId, first: BlockIndex) {
        self.pending.drop_removed(|f, b| f == file && b < first);
        let removed = self.removed_before.entry(file).or_default();
        *removed = first.max(*removed);
    }

    /// The chunks that may hold superseded generations, and forgets them until they are noted again.
    pub fn take_dirty(&mut self) -> Vec<(Chunk, Generation)> {
        let mut dirty: Vec<_> = self.dirty.drain().collect();
        dirty.sort_unstable();
        dirty
    }

    /// A chunk may hold superseded generations.
    pub fn note_dirty(&mut self, chunk: Chunk, generation: Generation) {
        let dirty = self.dirty.entry(chunk).or_default();
        *dirty = generation.max(*dirty);
    }
}

/// A pending write as a row, unless a later one of the same row goes out anyway.
fn wanted(pending: &Pending, seq: Seq) -> Option<Row> {
    if pending.is_superseded(seq) {
        return None;
    }
    let entry = pending.get(seq)?;
    Some(Row {
        key: entry.key,
        generation: entry.generation,
        version: entry.version,
        checksum: entry.checksum,
        data: entry.data.clone(),
    })
}

fn lane_of(generation: Generation) -> usize {
    usize::from(generation > Generation::SINGLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 8192;

    fn writer() -> Writer {
        let limits = Limits {
            pending_bytes_max: 4 * BYTES,
            version_list_max: 100,
            requests_max: 2,
        };
        let mut writer = Writer::new(VolumeSettings::default(), limits);
        writer.adopt(Epoch(3));
        writer
    }

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(9), block)
    }

    fn data(byte: u8) -> Bytes {
        Bytes::from(vec![byte; BYTES])
    }

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(3),
            number,
        }
    }

    fn blocks(batch: &Batch) -> Vec<u64> {
        batch.rows.iter().map(|row| row.key.block.0).collect()
    }

    #[test]
    fn a_lone_write_goes_out_at_once_and_a_backlog_in_batches_of_one_partition() {
        let mut w = writer();
        w.write(key(0), g(1), data(0)).unwrap();
        let first = w.next_batch().unwrap();
        w.write(key(1), g(1), data(1)).unwrap();
        let second = w.next_batch().unwrap();
        assert_eq!((blocks(&first), blocks(&second)), (vec![0], vec![1]));
        for block in [2, 3, 4, 500, 5] {
            w.write(key(block), g(1), data(1)).unwrap();
        }
        assert!(w.next_batch().is_none(), "two are on their way");
        w.sent(&first, true);
        let other = w.next_batch().unwrap();
        assert_eq!((other.chunk.1, blocks(&other)), (3, vec![500]));
        assert!(other.index);
        w.sent(&second, true);
        assert_eq!(blocks(&w.next_batch().unwrap()), [2, 3, 4, 5]);
    }

    #[test]
    fn the_log_does_not_wait_behind_data() {
        let mut w = writer();
        for block in 0..10 {
            w.write(key(block * 1000), g(1), data(0)).unwrap();
        }
        let _sent = (w.next_batch().unwrap(), w.next_batch().unwrap());
        assert!(w.next_batch().is_none());
        w.write(key(7), Generation::SINGLE, data(0)).unwrap();
        assert_eq!(blocks(&w.next_batch().unwrap()), [7]);
    }

    #[test]
    fn a_later_write_of_a_row_makes_the_earlier_ones_superfluous() {
        let mut w = writer();
        let first = w.write(key(0), g(1), data(1)).unwrap();
        let slow = w.next_batch().unwrap();
        w.write(key(0), g(1), data(2)).unwrap();
        let last = w.write(key(0), g(1), data(3)).unwrap();
        let fast = w.next_batch().unwrap();
        assert_eq!(fast.rows.len(), 1, "the second is never sent");
        assert_eq!(fast.rows[0].version, last);
        let scope = w.scope(SyncScope::FileUpTo(FileId(9), first));
        assert!(!w.is_synced(scope.0, scope.1));
        w.sent(&fast, true);
        assert!(w.is_synced(None, last.seq));
        let mut slow = slow;
        assert!(!w.still_wanted(&mut slow), "it need not be sent again");
    }

    #[test]
    fn generations_do_not_cover_each_other() {
        let mut w = writer();
        let first = w.write(key(0), g(1), data(1)).unwrap();
        let old = w.next_batch().unwrap();
        w.write(key(0), g(2), data(2)).unwrap();
        let new = w.next_batch().unwrap();
        w.sent(&new, true);
        assert!(!w.is_synced(None, first.seq));
        w.sent(&old, true);
        assert!(w.is_synced(None, first.seq));
    }

    #[test]
    fn pending_memory_is_bounded() {
        let mut w = writer();
        assert!(w.has_room(100 * BYTES), "one write always fits");
        for block in 0..4 {
            w.write(key(block), g(1), data(0)).unwrap();
        }
        assert!(!w.has_room(BYTES));
        let batch = w.next_batch().unwrap();
        w.sent(&batch, true);
        assert!(w.has_room(BYTES));
    }

    #[test]
    fn reads_are_answered_by_what_is_known() {
        let mut w = writer();
        assert!(matches!(
            w.begin_read(key(0), Generation::MAX),
            Plan::Quorum
        ));
        let version = w.write(key(0), Generation::SINGLE, data(1)).unwrap();
        let Plan::AtOnce(Some(block)) = w.begin_read(key(0), Generation::MAX) else {
            panic!("pending");
        };
        assert_eq!(block.version, version);
        let batch = w.next_batch().unwrap();
        w.sent(&batch, true);
        let Plan::One(known) = w.begin_read(key(0), Generation::MAX) else {
            panic!("in the list");
        };
        let stored = |version| Stored {
            version,
            generation: Generation::SINGLE,
            data: data(1),
        };
        assert!(w.is_fresh(known, false, Some(&stored(version))));
        assert!(!w.is_fresh(known, false, None));
        let of_dead_epoch = Version {
            epoch: Epoch(2),
            seq: 99,
        };
        assert!(!w.is_fresh(known, false, Some(&stored(of_dead_epoch))));
        let later = w.next_version().unwrap();
        assert!(w.is_fresh(known, false, Some(&stored(later))));
        assert!(!w.is_fresh(known, true, Some(&stored(later))));
    }

    #[test]
    fn absence_is_written_and_read_as_absence() {
        let mut w = writer();
        w.promote(key(0), None).unwrap();
        let plan = w.begin_read(key(0), Generation::SINGLE);
        assert!(matches!(plan, Plan::AtOnce(None)));
        let batch = w.next_batch().unwrap();
        assert!(batch.rows[0].data.is_empty());
        assert!(w.is_settled(key(0)));
    }

    #[test]
    fn fenced_is_final() {
        let mut w = writer();
        w.write(key(0), g(1), data(1)).unwrap();
        assert!(w.fence("b owns e4".into()) && !w.fence("again".into()));
        assert!(w.write(key(0), g(1), data(1)).unwrap_err().is_fenced());
        assert!(w.next_batch().is_none() && w.pending_bytes() == 0);
        let mut reader = Writer::new(VolumeSettings::default(), w.limits.clone());
        assert!(!reader.fence("who owns nothing is not fenced".into()));
    }

    #[test]
    fn versions_end_before_they_spill_into_the_epoch() {
        let mut w = writer();
        w.skip_past(Version {
            epoch: Epoch(3),
            seq: SEQ_END - 2,
        });
        let last = w.next_version().unwrap();
        assert_eq!(row::version(row::timestamp(last)), last);
        assert_eq!(w.next_version().unwrap_err().kind(), ErrorKind::Invalid);
    }
}
