//! Serves reads: of blocks on the connection's own thread or, when several arrive at once, on a pool;
//! of records always at once. Reads see what is durable, and what
//! their own connection wrote before, for which they wait.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use dax::error::ErrorKind;
use dax::ids::{BlockKey, Generation};
use dax::wire::{RECORDS_PAGE_BYTES, RecordEntry, Response};
use parking_lot::{Condvar, Mutex};

use crate::connection::Conn;
use crate::engine::{EngineError, Found};
use crate::keys::{Slot, decode_record};
use crate::meta::{RECORD_KEY_HEAD, record_key};
use crate::shared::{Shared, Work};
use crate::volume::Volume;

/// Reads waiting for the pool beyond which a connection serves its own.
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

    /// Reads and leaves the answer to the connection's sender, so that no client holds up others.
    pub fn serve_for_others(self, shared: &Shared) {
        match self.read(shared) {
            Ok(answer) => self.conn.send(self.id, answer),
            Err(e) => shared.fail(&e),
        }
    }

    fn read(&self, shared: &Shared) -> Result<Response, EngineError> {
        if !self.conn.is_applied(self.after) {
            shared.queue.put(Work::Flush, 0);
            self.conn.wait_applied(self.after);
        }
        read_block(shared, &self.volume, self.key, self.up_to)
    }
}

fn read_block(
    shared: &Shared,
    volume: &Volume,
    key: BlockKey,
    up_to: Generation,
) -> Result<Response, EngineError> {
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
    Ok(match found {
        None => Response::Block(None),
        Some(Found::Block(block)) => Response::Block(Some(block)),
        Some(Found::Corrupt(generation)) => {
            shared.report_damage(volume, key, generation);
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
    let value = shared.engine.meta(&record_key(volume.id, name))?;
    Ok(Response::Record(value.and_then(decode_record)))
}

/// One page of the records whose names start with `prefix` and are greater than `after`.
pub(crate) fn list_records(
    shared: &Shared,
    volume: &Volume,
    prefix: &str,
    after: Option<&str>,
) -> Result<Response, EngineError> {
    let (mut entries, mut bytes, mut more) = (Vec::new(), 0, false);
    for (key, value) in shared.engine.meta_prefix(&record_key(volume.id, prefix))? {
        let name = String::from_utf8_lossy(&key[RECORD_KEY_HEAD..]).into_owned();
        if after.is_some_and(|after| name.as_str() <= after) {
            continue;
        }
        if bytes >= RECORDS_PAGE_BYTES {
            more = true;
            break;
        }
        bytes += name.len() + value.len();
        let record = decode_record(value);
        entries.extend(record.map(|record| RecordEntry { name, record }));
    }
    Ok(Response::Records { entries, more })
}

/// Threads that serve reads beside the connections' own.
#[derive(Default)]
pub(crate) struct ReadPool {
    jobs: Mutex<Jobs>,
    filled: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<ReadJob>,
    closed: bool,
}

impl ReadPool {
    /// Hands a read over; gives it back if too many are waiting.
    pub fn offer(&self, job: ReadJob) -> Option<ReadJob> {
        let mut jobs = self.jobs.lock();
        if jobs.waiting.len() >= MAX_WAITING || jobs.closed || !job.conn.take_place() {
            return Some(job);
        }
        jobs.waiting.push_back(job);
        self.filled.notify_one();
        None
    }

    /// Serves reads until the pool is closed. The body of each of its threads.
    pub fn run(&self, shared: &Shared) {
        loop {
            let job = {
                let mut jobs = self.jobs.lock();
                while jobs.waiting.is_empty() && !jobs.closed {
                    self.filled.wait(&mut jobs);
                }
                jobs.waiting.pop_front()
            };
            let Some(job) = job else { return };
            let conn = job.conn.clone();
            job.serve_for_others(shared);
            conn.free_place();
        }
    }

    /// Ends the threads once nothing waits.
    pub fn close(&self) {
        self.jobs.lock().closed = true;
        self.filled.notify_all();
    }
}
