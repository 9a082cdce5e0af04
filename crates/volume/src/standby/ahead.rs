//! Which blocks are on their way before redo asks for them, and what came of it.
//!
//! Invariant: redo waits for a block that is being fetched ahead instead of reading it a second time, and for nothing
//! else here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dax::ids::{BlockKey, Generation};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::lsn::Lsn;

/// Blocks fetched ahead whose first use is waited for, to count it; some tens of bytes each.
const UNREAD_BLOCKS: usize = 1 << 16;

/// What came of fetching ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchStats {
    /// Blocks fetched ahead of redo.
    pub fetched: u64,
    /// Those of them that were read since.
    pub used: u64,
    /// Reads that found their block on its way.
    pub joined: u64,
    /// Blocks that were not read yet, or not as long as that was watched.
    pub unread: u64,
}

pub(super) struct Ahead {
    underway: Mutex<HashMap<(BlockKey, Generation), watch::Receiver<()>>>,
    unread: Cache<BlockKey, ()>,
    fetched: AtomicU64,
    used: AtomicU64,
    joined: AtomicU64,
    /// Where the log was read last, and where that read ended.
    redo: watch::Sender<(Lsn, Lsn)>,
}

/// A block that is on its way; dropped, it is not.
pub(super) struct Mark {
    ahead: Arc<Ahead>,
    key: (BlockKey, Generation),
    /// Dropped after the entry: whoever waits then finds the block in the cache.
    _arrived: watch::Sender<()>,
}

impl Mark {
    /// The block is in the cache, and redo is expected to come to it.
    pub fn fetched_for_redo(&self) {
        self.ahead.fetched.fetch_add(1, Ordering::Relaxed);
        self.ahead.unread.insert(self.key.0, ());
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.ahead.underway.lock().remove(&self.key);
    }
}

impl Ahead {
    pub fn new() -> Ahead {
        Ahead {
            underway: Mutex::default(),
            unread: Cache::new(UNREAD_BLOCKS),
            fetched: AtomicU64::new(0),
            used: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            redo: watch::Sender::new((Lsn::ZERO, Lsn::ZERO)),
        }
    }

    /// Begins to fetch a block, unless that is under way.
    pub fn begin(self: &Arc<Ahead>, key: BlockKey, image: Generation) -> Option<Mark> {
        let (arrived, arrives) = watch::channel(());
        let key = (key, image);
        let mut underway = self.underway.lock();
        if underway.contains_key(&key) {
            return None;
        }
        underway.insert(key, arrives);
        Some(Mark {
            ahead: Arc::clone(self),
            key,
            _arrived: arrived,
        })
    }

    /// Waits for a block that is on its way; whether one was.
    pub async fn wait(&self, key: BlockKey, image: Generation) -> bool {
        let underway = self.underway.lock().get(&(key, image)).cloned();
        let Some(mut arrives) = underway else {
            return false;
        };
        self.joined.fetch_add(1, Ordering::Relaxed);
        // Nothing is ever sent; the end of the channel is the arrival.
        let _ = arrives.changed().await;
        true
    }

    /// A block was read by somebody else than a fetch ahead; whether it had been fetched for that.
    pub fn read(&self, key: BlockKey) -> bool {
        let fetched = self.unread.remove(&key).is_some();
        if fetched {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
        fetched
    }

    /// PostgreSQL read `bytes` of the log at `at`. At the start of a segment it also looks when it goes
    /// on elsewhere in it, which says nothing of redo.
    pub fn log_read(&self, at: Lsn, segment_start: Lsn, bytes: u64) {
        let end = Lsn(at.0 + bytes);
        self.redo.send_if_modified(|(last, last_end)| {
            if at == segment_start && at != *last_end {
                return false;
            }
            let moved = at != *last;
            (*last, *last_end) = (at, end);
            moved
        });
    }

    /// Where the log was read last, and where that read ended.
    pub fn watch_redo(&self) -> watch::Receiver<(Lsn, Lsn)> {
        self.redo.subscribe()
    }

    /// What came of fetching ahead so far.
    pub fn stats(&self) -> PrefetchStats {
        PrefetchStats {
            fetched: self.fetched.load(Ordering::Relaxed),
            used: self.used.load(Ordering::Relaxed),
            joined: self.joined.load(Ordering::Relaxed),
            unread: self.unread.len() as u64,
        }
    }
}
