//! What a client decides about its writes and reads, without a socket, clock or task.
//!
//! Owns a [`Handle`] and the queues of what is to be sent. A write goes to one place, Cassandra, which says when
//! enough replicas have it; so there is one replica here. Invariants: those of [`Handle`]; a write leaves
//! `sync_pending` only when it, or a later one of the same row, was acknowledged, or its file is gone.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, FileId, Generation, ReplicaId, Version};
use dax::storage::{Block, VolumeSettings};
use dax::writer::pending::{Pending, Seq};
use dax::writer::{Handle, Reading, ReplicaSet};

use crate::row::{self, Chunk, Row, SEQ_END};
use crate::send_queue::SendQueue;

/// The one place that writes go to.
const THERE: ReplicaId = ReplicaId(0);

/// Bounds of one client.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of blocks that may wait for acknowledgements.
    pub pending_bytes_max: usize,
    /// Entries of the version list.
    pub version_list_max: usize,
    /// Requests on their way at a time, in each queue.
    pub requests_max: usize,
}

/// Rows of one partition, for one request.
#[derive(Debug)]
pub struct Batch {
    queue: usize,
    /// The partition.
    pub chunk: Chunk,
    /// The rows, oldest first.
    pub rows: Vec<Row>,
    /// Nobody has noted yet that the file has this chunk.
    pub index: bool,
}

/// Queues of an owner's writes, by partition: at most one batch of a partition is under way.
#[derive(Debug)]
pub struct Writer {
    /// What it knows without asking.
    pub handle: Handle,
    settings: VolumeSettings,
    limits: Limits,
    /// Log, journal and configuration have a queue of their own: a commit does not wait behind what a
    /// checkpoint writes.
    queues: [SendQueue; 2],
    indexed: HashSet<Chunk>,
    /// Chunks that may hold superseded generations, and the ends of the images that need all of these, if that is known.
    dirty: HashMap<Chunk, BTreeSet<Generation>>,
}

impl Writer {
    /// A client that owns no epoch.
    pub fn new(settings: VolumeSettings, limits: Limits) -> Writer {
        Writer {
            handle: Handle::new(&settings, limits.version_list_max),
            settings,
            limits,
            queues: Default::default(),
            indexed: HashSet::new(),
            dirty: HashMap::new(),
        }
    }

    /// A higher epoch exists: nothing that is pending will ever be acknowledged. Says whether that is news.
    pub fn fence(&mut self, why: String) -> bool {
        let news = self.handle.fence(why);
        if news {
            self.handle.pending.clear();
            self.queues.iter_mut().for_each(SendQueue::clear);
        }
        news
    }

    // --- writes ----------------------------------------------------------------------------------

    /// A version above all that this client gave.
    ///
    /// # Errors
    /// As [`Handle::check_writer`]; `Invalid` when there are no versions left.
    pub fn next_version(&mut self) -> Result<Version> {
        self.handle.check_writer()?;
        if self.handle.last_seq() + 1 >= SEQ_END {
            let why = "this client has no versions left: start the node again";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(self.handle.next_version())
    }

    /// See [`dax::storage::Storage::write`]; `data` is packed ([`dax::writer::packing`]).
    ///
    /// # Errors
    /// As [`next_version`](Self::next_version).
    pub fn write(&mut self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.handle.check_writer()?;
        self.handle.counters.writes += 1;
        self.store(key, generation, data)
    }

    /// Writes what a promotion chose again, in this epoch; also that there is no such block (C2).
    ///
    /// # Errors
    /// As [`next_version`](Self::next_version).
    pub fn promote(&mut self, key: BlockKey, chosen: Option<&Block>) -> Result<Version> {
        self.handle.counters.reads_promoted += 1;
        let data = chosen.map_or_else(Bytes::new, |block| block.data.clone());
        self.store(key, Generation::SINGLE, data)
    }

    fn store(&mut self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        let version = self.next_version()?;
        let replicas = ReplicaSet::first(1);
        self.handle.store(version, key, generation, data, replicas);
        let chunk = self.chunk_of(key);
        if generation > Generation::SINGLE {
            self.note_dirty(chunk);
        }
        self.queues[queue_of(generation)].push(chunk, version.seq);
        Ok(version)
    }

    fn chunk_of(&self, key: BlockKey) -> Chunk {
        let chunk = row::chunk_of(key.block.0, self.settings.block_size_bytes);
        (key.file, chunk)
    }

    /// True if [`next_batch`](Self::next_batch) may have something.
    pub fn may_send(&self) -> bool {
        let max = self.limits.requests_max;
        self.queues.iter().any(|queue| queue.may_send(max))
    }

    /// What to send next; none while enough is on its way.
    pub fn next_batch(&mut self) -> Option<Batch> {
        let (pending, max) = (&self.handle.pending, self.limits.requests_max);
        let queues = self.queues.iter_mut().enumerate();
        let next = queues.map(|(n, queue)| Some((n, queue.next(max, |seq| wanted(pending, seq))?)));
        let (queue, (chunk, rows)) = next.flatten().next()?;
        Some(Batch {
            queue,
            chunk,
            rows,
            index: !self.indexed.contains(&chunk),
        })
    }

    /// Takes out of a batch that failed what nobody waits for any more.
    pub fn still_wanted(&self, batch: &mut Batch) -> bool {
        let wanted = |row: &Row| self.handle.pending.get(row.version.seq).is_some();
        batch.rows.retain(wanted);
        !batch.rows.is_empty()
    }

    /// Enough replicas have a batch, or nobody wants it any more.
    pub fn sent(&mut self, batch: &Batch, acknowledged: bool) {
        self.queues[batch.queue].done(batch.chunk);
        if !acknowledged {
            return;
        }
        if batch.index && !self.handle.is_fenced() {
            self.indexed.insert(batch.chunk);
        }
        for row in &batch.rows {
            let seq = row.version.seq;
            self.handle.acked(seq, THERE, |_| true, |_, _| {});
        }
        self.handle.pending.tidy();
    }

    /// True if so many more bytes may be pending.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.has_room_beside(0, bytes)
    }

    /// The same where so many bytes were promised to others.
    pub fn has_room_beside(&self, promised: usize, bytes: usize) -> bool {
        let pending = &self.handle.pending;
        (promised == 0 && pending.is_empty())
            || pending.bytes() + promised + bytes <= self.limits.pending_bytes_max
    }

    // --- reads -----------------------------------------------------------------------------------

    /// Begins a read and answers it, if the answer is here; [`Handle::end_read`] ends it.
    pub fn begin_read(&mut self, read: &mut Reading) -> Option<Option<Block>> {
        self.handle.begin_read(read.key);
        let answer = read.begin(&mut self.handle);
        answer.map(|block| block.and_then(row::present))
    }

    /// The pending write of a block that keeps one version.
    pub fn pending_single(&self, key: BlockKey) -> Option<Block> {
        self.handle.pending.read(key, Generation::SINGLE)
    }

    // --- removal ---------------------------------------------------------------------------------

    /// Blocks of these files need not be written any more.
    pub fn remove_files(&mut self, files: &HashSet<FileId>) {
        self.handle.remove_files(files);
        self.indexed.retain(|(file, _)| !files.contains(file));
        self.dirty.retain(|(file, _), _| !files.contains(file));
    }

    /// The chunks that may hold generations that no image needs while there are images with these ends; forgets them until they are
    /// noted again.
    pub fn take_dirty(&mut self, ends: &BTreeSet<Generation>) -> Vec<Chunk> {
        let is_due = |needed: &BTreeSet<Generation>| needed.is_empty() || !needed.is_subset(ends);
        let due = self.dirty.extract_if(|_, needed| is_due(needed));
        let mut due: Vec<Chunk> = due.map(|(chunk, _)| chunk).collect();
        due.sort_unstable();
        due
    }

    /// A chunk may hold superseded generations.
    pub fn note_dirty(&mut self, chunk: Chunk) {
        self.dirty.insert(chunk, BTreeSet::new());
    }

    /// All that a chunk holds of them is needed as long as there are images with these ends, unless it was noted meanwhile.
    pub fn note_needed(&mut self, chunk: Chunk, ends: BTreeSet<Generation>) {
        self.dirty.entry(chunk).or_insert(ends);
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

fn queue_of(generation: Generation) -> usize {
    usize::from(generation > Generation::SINGLE)
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;
    use dax::storage::SyncScope;

    use super::*;

    const BYTES: usize = 8192;

    fn writer() -> Writer {
        let limits = Limits {
            pending_bytes_max: 4 * BYTES,
            version_list_max: 100,
            requests_max: 2,
        };
        let mut writer = Writer::new(VolumeSettings::default(), limits);
        writer.handle.adopt(Epoch(3));
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
        let scope = w.handle.scope(SyncScope::FileUpTo(FileId(9), first));
        assert!(!w.handle.pending.is_synced(scope.0, scope.1));
        w.sent(&fast, true);
        assert!(w.handle.pending.is_synced(None, last.seq));
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
        assert!(!w.handle.pending.is_synced(None, first.seq));
        w.sent(&old, true);
        assert!(w.handle.pending.is_synced(None, first.seq));
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
        let read = || Reading::new(key(0), Generation::MAX);
        assert!(w.begin_read(&mut read()).is_none());
        let version = w.write(key(0), Generation::SINGLE, data(1)).unwrap();
        let pending = w.begin_read(&mut read());
        assert_eq!(pending.flatten().map(|block| block.version), Some(version));
        let batch = w.next_batch().unwrap();
        w.sent(&batch, true);
        let mut listed = read();
        assert!(w.begin_read(&mut listed).is_none());
        assert_eq!(listed.known().map(|known| known.version), Some(version));
    }

    #[test]
    fn absence_is_written_and_read_as_absence() {
        let mut w = writer();
        w.promote(key(0), None).unwrap();
        let answer = w.begin_read(&mut Reading::new(key(0), Generation::SINGLE));
        assert!(matches!(answer, Some(None)));
        let batch = w.next_batch().unwrap();
        assert!(batch.rows[0].data.is_empty());
        assert!(w.handle.is_settled(key(0)));
    }

    #[test]
    fn fenced_is_final() {
        let mut w = writer();
        w.write(key(0), g(1), data(1)).unwrap();
        assert!(w.fence("b owns e4".into()) && !w.fence("again".into()));
        assert!(w.write(key(0), g(1), data(1)).unwrap_err().is_fenced());
        assert!(w.next_batch().is_none() && w.handle.pending.bytes() == 0);
        let mut reader = Writer::new(VolumeSettings::default(), w.limits.clone());
        assert!(!reader.fence("who owns nothing is not fenced".into()));
    }

    #[test]
    fn versions_end_before_they_spill_into_the_epoch() {
        let mut w = writer();
        w.handle.skip_past(Version {
            epoch: Epoch(3),
            seq: SEQ_END - 2,
        });
        let last = w.next_version().unwrap();
        assert_eq!(row::version(row::timestamp(last)), last);
        assert_eq!(w.next_version().unwrap_err().kind(), ErrorKind::Invalid);
    }
}
