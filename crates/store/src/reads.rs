//! Serves reads: of blocks on the connection's own thread or, when several arrive at once, on a pool;
//! of records always at once. Reads see what is durable, and what
//! their own connection wrote before, for which they wait. On the pool volumes take turns, and none
//! has all of it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use dax::error::ErrorKind;
use dax::ids::{BlockKey, Generation};
use dax::storage::Traffic;
use dax::wire::{RECORDS_PAGE_BYTES, RecordEntry, Response};
use parking_lot::{Condvar, Mutex};

use crate::connection::Conn;
use crate::decide;
use crate::engine::{EngineError, Found};
use crate::fair_queue::FairQueue;
use crate::keys::{Slot, VolumeId, decode_record};
use crate::layers;
use crate::meta::{RECORD_KEY_HEAD, record_key};
use crate::shared::{Shared, Work};
use crate::volume::Volume;

/// Reads of a volume waiting for the pool beyond which its connections serve their own.
const MAX_WAITING: usize = 256;

/// A block read that somebody still has to serve.
pub(crate) struct ReadJob {
    pub conn: Arc<Conn>,
    pub volume: Arc<Volume>,
    pub id: u64,
    pub key: BlockKey,
    pub up_to: Generation,
    /// The number of the connection's write that must be visible first.
    pub after: u64,
}

impl ReadJob {
    /// Reads and answers on the connection's own thread, which may wait for the client.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn serve(self, shared: &Shared, scratch: &mut BytesMut) -> io::Result<()> {
        match self.read(shared) {
            Ok(answer) => self.conn.answer(self.id, &answer, scratch),
            Err(e) => {
                shared.fail(&e);
                Ok(())
            }
        }
    }

    /// Reads and answers, or leaves the answer to the connection's sender, so that no client holds up others.
    pub fn serve_for_others(self, shared: &Shared, scratch: &mut BytesMut) {
        match self.read(shared) {
            Ok(answer) => self.conn.send_quickly(self.id, answer, scratch),
            Err(e) => shared.fail(&e),
        }
    }

    fn read(&self, shared: &Shared) -> Result<Response, EngineError> {
        if !self.conn.is_applied(self.after) {
            shared.queue.put(self.volume.id, Work::Flush, 0);
            self.conn.wait_applied(self.after);
        }
        let found = read_block(shared, &self.volume, self.key, self.up_to);
        found.or_else(|error| unanswered(shared, error))
    }
}

/// What is answered where files could not be read: the client asks again, here or elsewhere.
///
/// # Errors
/// The zone has failed.
pub(crate) fn unanswered(shared: &Shared, error: EngineError) -> Result<Response, EngineError> {
    let told = error.told()?;
    shared.report_unreadable(&told);
    Ok(decide::error(&told))
}

pub(crate) fn read_block(
    shared: &Shared,
    volume: &Volume,
    key: BlockKey,
    up_to: Generation,
) -> Result<Response, EngineError> {
    // What the fill puts in the meantime is either found, or looked for below.
    let layer = volume.layer();
    let found = if up_to == Generation::SINGLE {
        let slot = Slot {
            volume: volume.id,
            key,
            generation: up_to,
        };
        shared.engine.get(&slot)?
    } else {
        shared.engine.newest(volume.id, key, up_to)?
    };
    let looks = |layer| layers::may_be_below(&shared.volumes, layer, found.as_ref(), up_to);
    let (found, below) = match layer.is_some_and(looks) {
        false => (found, None),
        true => match layers::newest((&shared.volumes, &*shared.engine), volume, key, up_to)? {
            Ok(below) => layers::newer(found, below),
            Err(error) => return Ok(decide::error(&error)),
        },
    };
    let bytes = match &found {
        Some(Found::Block(block)) => block.data.len(),
        Some(Found::Corrupt(_)) | None => 0,
    };
    volume.count(&Traffic {
        reads: 1,
        read_bytes: bytes as u64,
        ..Traffic::default()
    });
    Ok(match found {
        None => Response::Block(None),
        Some(Found::Block(block)) => Response::Block(Some(block)),
        Some(Found::Corrupt(generation)) => {
            shared.report_damage(below.as_deref().unwrap_or(volume), key, generation);
            Response::Error {
                kind: ErrorKind::Corrupt,
                message: format!("block {key} of generation {generation} fails its checksum here"),
            }
        }
    })
}

/// One record.
pub(crate) fn read_record(
    shared: &Shared,
    volume: &Volume,
    name: &str,
) -> Result<Response, EngineError> {
    match shared.engine.meta(&record_key(volume.id, name)) {
        Ok(value) => Ok(Response::Record(value.and_then(decode_record))),
        Err(error) => unanswered(shared, error),
    }
}

/// One page of the records whose names start with `prefix` and are greater than `after`.
pub(crate) fn list_records(
    shared: &Shared,
    volume: &Volume,
    prefix: &str,
    after: Option<&str>,
) -> Result<Response, EngineError> {
    let (mut entries, mut bytes, mut more) = (Vec::new(), 0, false);
    let after = after.map_or(Vec::new(), |after| record_key(volume.id, after));
    let prefix = record_key(volume.id, prefix);
    for record in shared.engine.meta_after(&prefix, &after) {
        let (key, value) = match record {
            Ok(record) => record,
            Err(error) => return unanswered(shared, error),
        };
        if bytes >= RECORDS_PAGE_BYTES {
            more = true;
            break;
        }
        let name = String::from_utf8_lossy(&key[RECORD_KEY_HEAD..]).into_owned();
        bytes += name.len() + value.len();
        let record = decode_record(value);
        entries.extend(record.map(|record| RecordEntry { name, record }));
    }
    Ok(Response::Records { entries, more })
}

/// Threads that serve reads beside the connections' own.
pub(crate) struct ReadPool {
    jobs: Mutex<Jobs<ReadJob>>,
    filled: Condvar,
}

/// Waiting reads. Invariant: where there is more than one thread, one is left for other volumes.
struct Jobs<T> {
    waiting: FairQueue<T>,
    /// Threads that serve each volume now.
    serving: HashMap<VolumeId, usize>,
    /// The most of them.
    serving_max: usize,
    closed: bool,
}

impl<T> Jobs<T> {
    fn new(threads: usize) -> Jobs<T> {
        Jobs {
            waiting: FairQueue::default(),
            serving: HashMap::new(),
            serving_max: threads.saturating_sub(1).max(1),
            closed: false,
        }
    }

    /// Takes the next read that may be served.
    fn begin(&mut self) -> Option<T> {
        let (serving, max) = (&self.serving, self.serving_max);
        let may = |volume| serving.get(&volume).is_none_or(|now| *now < max);
        let (volume, job) = self.waiting.take_one(may)?;
        *self.serving.entry(volume).or_default() += 1;
        Some(job)
    }

    /// A read of the volume was served.
    fn end(&mut self, volume: VolumeId) {
        if let Some(now) = self.serving.get_mut(&volume) {
            *now -= 1;
            if *now == 0 {
                self.serving.remove(&volume);
            }
        }
    }
}

impl ReadPool {
    /// A pool for so many threads.
    pub fn new(threads: usize) -> ReadPool {
        ReadPool {
            jobs: Mutex::new(Jobs::new(threads)),
            filled: Condvar::new(),
        }
    }

    /// Hands a read over; gives it back if too many are waiting.
    pub fn offer(&self, job: ReadJob) -> Option<ReadJob> {
        let mut jobs = self.jobs.lock();
        let volume = job.volume.id;
        let full = jobs.waiting.weight_of(volume) >= MAX_WAITING;
        if full || jobs.closed || !job.conn.take_place() {
            return Some(job);
        }
        jobs.waiting.push(volume, job, 1);
        self.filled.notify_one();
        None
    }

    /// Serves reads until the pool is closed. The body of each of its threads.
    pub fn run(&self, shared: &Shared) {
        let mut scratch = BytesMut::new();
        while let Some(job) = self.next() {
            let (conn, volume) = (job.conn.clone(), job.volume.id);
            job.serve_for_others(shared, &mut scratch);
            conn.free_place();
            // Whoever ends one takes the next, so nobody has to be woken.
            self.jobs.lock().end(volume);
        }
    }

    fn next(&self) -> Option<ReadJob> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.begin() {
                return Some(job);
            }
            if jobs.closed && jobs.waiting.is_empty() {
                // Threads that might not serve what was left may end as well.
                self.filled.notify_all();
                return None;
            }
            self.filled.wait(&mut jobs);
        }
    }

    /// Ends the threads once nothing waits.
    pub fn close(&self) {
        self.jobs.lock().closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_with_many_reads_leaves_a_thread_and_every_other_turn_to_others() {
        let (a, b) = (VolumeId(1), VolumeId(2));
        let mut jobs = Jobs::new(4);
        for n in 0..100 {
            jobs.waiting.push(a, n, 1);
        }
        assert_eq!(
            [(); 4].map(|()| jobs.begin()),
            [Some(0), Some(1), Some(2), None]
        );
        jobs.waiting.push(b, 1000, 1);
        jobs.waiting.push(b, 1001, 1);
        assert_eq!(jobs.begin(), Some(1000), "the thread that was left");
        jobs.end(a);
        jobs.end(b);
        let next = [jobs.begin(), jobs.begin()];
        assert!(
            next.contains(&Some(1001)) && next.contains(&Some(3)),
            "{next:?}"
        );
    }

    #[test]
    fn a_single_thread_serves_everybody() {
        let mut jobs = Jobs::new(1);
        jobs.waiting.push(VolumeId(1), 7, 1);
        assert_eq!(jobs.begin(), Some(7));
        jobs.end(VolumeId(1));
        assert!(jobs.serving.is_empty());
    }
}
