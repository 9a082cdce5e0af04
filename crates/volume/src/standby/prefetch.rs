//! Reading blocks before redo asks for them (CAC-DB 4.4.1), and which blocks a standby holds.
//!
//! Invariants: what is fetched ahead goes the way of every read of an image into the cache, so it is
//! never other bytes than redo would have read; redo waits for a block that is being fetched ahead
//! instead of reading it a second time, and for nothing else here.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dax::ids::{BlockKey, Generation};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::fetch::Fetcher;
use super::overlay::Content;
use super::state::{BlockSource, State};
use super::view::StandbyView;
use crate::error::Result;
use crate::lsn::Lsn;
use crate::seal::Base;
use crate::view::Ino;

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

/// What a block is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Redo comes to it soon; counted.
    Redo,
    /// Somebody may want it.
    Warmth,
}

/// What is known of reads ahead. See the module.
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
struct Mark {
    ahead: Arc<Ahead>,
    key: (BlockKey, Generation),
    /// Dropped after the entry: whoever waits then finds the block in the cache.
    _arrived: watch::Sender<()>,
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
    fn begin(self: &Arc<Ahead>, key: BlockKey, image: Generation) -> Option<Mark> {
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
}

impl Fetcher {
    /// Begins to bring a block of a base into the cache; `None` if it is there or on its way.
    fn fetch_ahead(
        &self,
        base: Arc<Base>,
        key: BlockKey,
        purpose: Purpose,
    ) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        if self.is_cached(&base, key) {
            return None;
        }
        let mark = self.ahead.begin(key, base.seal.generation)?;
        let fetcher = self.clone();
        Some(async move {
            let found = fetcher.read_stored(&base, key).await?;
            if found.is_some() && purpose == Purpose::Redo {
                let ahead = &mark.ahead;
                ahead.fetched.fetch_add(1, Ordering::Relaxed);
                ahead.unread.insert(key, ());
            }
            Ok(())
        })
    }
}

impl StandbyView {
    /// Begins to bring a block of a data file into the cache: by its path and its place in the file.
    /// `None` if redo will not ask the storage for it: it is at hand or on its way, changed privately,
    /// or not there. What is returned must be run at once: redo waits for it.
    pub fn prefetch(
        &self,
        path: &str,
        block: u64,
    ) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let state = self.state();
        let ino = state.resolve(path).ok()?;
        self.prefetch_in(&state, ino, block, Purpose::Redo)
    }

    /// Brings a block of a data file into the cache as [`prefetch`](Self::prefetch) does, but for
    /// clients: whether it was read.
    ///
    /// # Errors
    /// Those of the storage.
    pub async fn warm(&self, path: &str, block: u64) -> Result<bool> {
        let fetch = {
            let state = self.state();
            let ino = state.resolve(path).ok();
            ino.and_then(|ino| self.prefetch_in(&state, ino, block, Purpose::Warmth))
        };
        match fetch {
            Some(fetch) => fetch.await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Begins to bring a block that [`hot_blocks`](Self::hot_blocks) named, of this view or an earlier
    /// one, into the cache.
    pub fn prefetch_hot(
        &self,
        key: BlockKey,
    ) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let state = self.state();
        let ino = state.ino_of(key.file);
        self.prefetch_in(&state, ino, key.block.0, Purpose::Warmth)
    }

    fn prefetch_in(
        &self,
        state: &State,
        ino: Ino,
        block: u64,
        purpose: Purpose,
    ) -> Option<impl Future<Output = Result<()>> + Send + use<>> {
        let BlockSource::Base { key, base } = state.block(ino, block) else {
            return None;
        };
        self.fetcher.fetch_ahead(base, key, purpose)
    }

    /// Blocks of shared files that this standby holds, changed or read; at most `max`. Files keep their
    /// ids, so a later view of the volume can fetch them.
    pub fn hot_blocks(&self, max: usize) -> Vec<BlockKey> {
        let state = self.state();
        let mut blocks = Vec::new();
        for (ino, item) in &state.overlay.inodes {
            let Some(shared) = state.shared(*ino).filter(|shared| shared.base.is_some()) else {
                continue;
            };
            let own = item.blocks.iter();
            let own = own.filter(|(_, block)| matches!(block.content, Content::Stored(_)));
            blocks.extend(own.map(|(at, _)| BlockKey::new(shared.id, *at)));
        }
        let cached = self.fetcher.cached_blocks();
        blocks.extend(cached.filter(|key| state.base.namespace.get(key.file).is_some()));
        blocks.truncate(max);
        blocks
    }

    /// How many shared blocks this standby's mount holds, changed or read.
    pub fn held_blocks(&self) -> u64 {
        let state = self.state();
        let changed = state.overlay.inodes.values();
        let changed: u64 = changed.map(|item| item.blocks.len() as u64).sum();
        changed + self.fetcher.cached_count()
    }

    /// What came of fetching ahead so far.
    pub fn prefetch_stats(&self) -> PrefetchStats {
        let ahead = &self.fetcher.ahead;
        PrefetchStats {
            fetched: ahead.fetched.load(Ordering::Relaxed),
            used: ahead.used.load(Ordering::Relaxed),
            joined: ahead.joined.load(Ordering::Relaxed),
            unread: ahead.unread.len() as u64,
        }
    }

    /// Where PostgreSQL reads the log: the start of its last read through the mount, and its end. Redo
    /// has done what ends before it.
    pub fn watch_redo(&self) -> watch::Receiver<(Lsn, Lsn)> {
        self.fetcher.ahead.redo.subscribe()
    }
}
