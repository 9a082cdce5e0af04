//! Keeps a standby's mount ahead of its redo: log and blocks are read before redo asks for them
//! (CAC-DB 4.4.1). What is wanted is decided by [`Lookahead`], pure; this reads.
//!
//! Invariants: at most `degree` blocks are read at a time; what was fetched and is not used yet takes at
//! most an eighth of the cache; nothing waits for this task: the feed leaves a copy of what it hands over
//! only if there is room for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::ids::BlockKey;
use parking_lot::Mutex;
use pgdata::feed::SourceError;
use pgdata::lookahead::{Decoded, Limits, Lookahead};
use pgdata::segment::SegmentSize;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use volume::lsn::Lsn;
use volume::standby::{PrefetchStats, StandbyView};

use super::log::{Passing, SharedLog};

/// Log that is looked at ahead of redo, at most.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// The part of the cache that such log may take: with the blocks ([`UNUSED_PART`]) less than the cache keeps of
/// what nobody has used yet.
const WINDOW_PART: u64 = 16;
/// References that wait for their turn.
const WAITING_MAX: usize = 4096;
/// The part of the cache that blocks may take which were fetched and are not used yet: one in so many.
const UNUSED_PART: usize = 8;
/// References looked at without letting other tasks run.
const AT_ONCE: usize = 64;
/// After the log could not be read.
const PAUSE: Duration = Duration::from_millis(500);

/// What a prefetcher works with.
pub(crate) struct Setup {
    pub view: Arc<StandbyView>,
    pub log: Arc<SharedLog>,
    /// Where redo starts.
    pub redo: Lsn,
    pub segment_size: SegmentSize,
    /// Blocks in a file of a relation.
    pub blocks_per_segment: u32,
    /// PostgreSQL's, in bytes.
    pub page_bytes: u64,
    /// The volume's, in bytes.
    pub block_bytes: u64,
    /// Blocks read at the same time.
    pub degree: usize,
    /// Blocks that PostgreSQL's own buffers hold.
    pub buffers: usize,
    /// Blocks that fit the mount's cache.
    pub cache_blocks: usize,
    /// To be read when there is nothing else to do.
    pub hot: Vec<BlockKey>,
}

/// Status of the prefetcher, for the node's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PrefetchStatus {
    degree: usize,
    /// The log is decoded up to here.
    decoded_to: Lsn,
    records: u64,
    /// Blocks that records name, and those of them that redo reads.
    references: u64,
    wanted: u64,
    /// Redo came to them first.
    late: u64,
    /// Hot blocks of an earlier attach that are to be loaded yet.
    hot_left: usize,
    failed: u64,
    #[serde(flatten)]
    blocks: PrefetchStats,
}

/// A running prefetcher; dropped, it stops.
pub(crate) struct Prefetcher {
    view: Arc<StandbyView>,
    again: Arc<Notify>,
    told: Arc<Mutex<PrefetchStatus>>,
    task: JoinHandle<()>,
}

impl Prefetcher {
    /// Starts to read ahead.
    pub(crate) fn start(setup: Setup) -> Prefetcher {
        let view = Arc::clone(&setup.view);
        let told = Arc::new(Mutex::new(PrefetchStatus {
            degree: setup.degree,
            ..PrefetchStatus::default()
        }));
        let again = Arc::new(Notify::new());
        let worker = Worker::new(setup, Arc::clone(&told), Arc::clone(&again));
        Prefetcher {
            view,
            again,
            told,
            task: tokio::spawn(worker.run()),
        }
    }

    /// The base moved: blocks that the overlay held a moment ago, and that redo is about to read, may be in
    /// the zones only.
    pub(crate) fn look_again(&self) {
        self.again.notify_one();
    }

    /// For the node's status.
    pub(crate) fn report(&self) -> PrefetchStatus {
        let mut told = self.told.lock().clone();
        told.blocks = self.view.prefetch_stats();
        told
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Worker {
    setup: Setup,
    ahead: Lookahead,
    passing: mpsc::Receiver<Passing>,
    fetches: JoinSet<volume::error::Result<()>>,
    told: Arc<Mutex<PrefetchStatus>>,
    again: Arc<Notify>,
    failed: u64,
}

type Reading = JoinHandle<(Lsn, Result<Bytes, SourceError>)>;

impl Worker {
    fn new(setup: Setup, told: Arc<Mutex<PrefetchStatus>>, again: Arc<Notify>) -> Worker {
        let cache_bytes = setup.cache_blocks as u64 * setup.block_bytes;
        let limits = Limits {
            // The log goes through the cache as well, and must be there yet when redo comes to it.
            window_bytes: WINDOW_BYTES_MAX.min(cache_bytes / WINDOW_PART),
            waiting_max: WAITING_MAX,
            // The cache gives up first what came first, which is what redo asks for next, so there must be room for them
            // beside all else that is read meanwhile.
            unused_max: (setup.cache_blocks / UNUSED_PART).max(setup.degree),
            // What queries and other processes use is not redo's.
            recent_blocks: setup.buffers / 2,
        };
        Worker {
            ahead: Lookahead::new(setup.segment_size, setup.redo, limits),
            passing: setup.log.pass_by(),
            setup,
            fetches: JoinSet::new(),
            told,
            again,
            failed: 0,
        }
    }

    async fn run(mut self) {
        let mut redo = self.setup.view.watch_redo();
        let mut replay_limit = self.setup.log.watch_replay_limit();
        let mut reading: Option<Reading> = None;
        let again = Arc::clone(&self.again);
        loop {
            let (redo_at, _) = *redo.borrow_and_update();
            if redo_at > Lsn::ZERO {
                self.ahead.redo_at(redo_at);
            }
            let end = replay_limit.borrow_and_update().end;
            if reading.is_none() {
                reading = self.ahead.wants(end).map(|range| self.read(range));
            }
            if self.fetch() {
                tokio::task::yield_now().await;
                continue;
            }
            self.tell();
            tokio::select! {
                changed = redo.changed() => if changed.is_err() { return },
                changed = replay_limit.changed() => if changed.is_err() { return },
                Some((at, log)) = self.passing.recv() => self.ahead.pass(at, &log),
                Some(done) = self.fetches.join_next() => {
                    self.fetched(done);
                    while let Some(done) = self.fetches.try_join_next() {
                        self.fetched(done);
                    }
                }
                () = again.notified() => self.ahead.look_again(),
                (at, log) = read(&mut reading) => match log {
                    Ok(log) if !log.is_empty() => self.ahead.give(at, &log),
                    failed => {
                        let error = failed.err().map(|e| e.to_string());
                        tracing::debug!(%at, error, "log not read ahead");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    /// Reads a stretch of log: it is decoded, and redo finds it in the cache.
    fn read(&self, range: std::ops::Range<Lsn>) -> Reading {
        let log = Arc::clone(&self.setup.log);
        tokio::spawn(async move {
            let timeline = log.replay_limit().timeline;
            let bytes = range.end.bytes_since(range.start) as usize;
            let read = log.read_shared(timeline, range.start, bytes).await;
            (range.start, read)
        })
    }

    /// Begins as many fetches as there may be; whether it left off before all was looked at.
    ///
    /// They are begun together, half of all that may be under way at least if so many wait: requests that are
    /// made at the same time go to the zones, and their answers come back, in one piece.
    fn fetch(&mut self) -> bool {
        if self.fetches.len() > self.setup.degree / 2 {
            return false;
        }
        for _ in 0..AT_ONCE {
            if self.fetches.len() >= self.setup.degree {
                return false;
            }
            if let Some(wanted) = self.ahead.pop() {
                let place = wanted.block.location(self.setup.blocks_per_segment);
                let Some((path, page)) = place else {
                    continue;
                };
                let block = page * self.setup.page_bytes / self.setup.block_bytes;
                if let Some(fetch) = self.setup.view.prefetch(&path, block) {
                    self.ahead.fetching(&wanted);
                    self.fetches.spawn(fetch);
                }
            } else if let Some(key) = self.setup.hot.pop() {
                if let Some(fetch) = self.setup.view.prefetch_hot(key) {
                    self.fetches.spawn(fetch);
                }
            } else {
                return false;
            }
        }
        true
    }

    fn fetched(&mut self, done: Result<volume::error::Result<()>, tokio::task::JoinError>) {
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.failed += 1;
                tracing::debug!(%error, "a block was not fetched ahead");
            }
            Err(error) => tracing::debug!(%error, "a fetch was cancelled"),
        }
    }

    fn tell(&self) {
        let Decoded {
            records,
            references,
            wanted,
            late,
        } = self.ahead.decoded();
        *self.told.lock() = PrefetchStatus {
            degree: self.setup.degree,
            decoded_to: self.ahead.decoded_to(),
            records,
            references,
            wanted,
            late,
            hot_left: self.setup.hot.len(),
            failed: self.failed,
            blocks: PrefetchStats::default(),
        };
    }
}

/// Waits for log that is being read; for ever if none is.
async fn read(reading: &mut Option<Reading>) -> (Lsn, Result<Bytes, SourceError>) {
    let Some(read) = reading else {
        return std::future::pending().await;
    };
    let done = read
        .await
        .expect("reading log neither panics nor is cancelled");
    *reading = None;
    done
}
