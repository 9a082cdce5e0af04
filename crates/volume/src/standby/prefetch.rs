//! Reading blocks before redo asks for them (CAC-DB 4.4.1), and which blocks a standby holds.
//!
//! Invariants: what is fetched ahead goes the way of every read of an image into the cache, so it is
//! never other bytes than redo would have read; [`super::ahead`] knows what is on its way.

use std::future::Future;
use std::sync::Arc;

use dax::ids::BlockKey;
use tokio::sync::watch;

use super::ahead::PrefetchStats;
use super::fetch::Fetcher;
use super::overlay::Content;
use super::state::{BlockSource, State};
use super::view::StandbyView;
use crate::error::Result;
use crate::lsn::Lsn;
use crate::seal::Base;
use crate::view::Ino;

/// What a block is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Redo comes to it soon; counted.
    Redo,
    /// Somebody may want it.
    Warmth,
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
                mark.fetched_for_redo();
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
        self.fetcher.ahead.stats()
    }

    /// Where PostgreSQL reads the log: the start of its last read through the mount, and its end. Redo
    /// has done what ends before it.
    pub fn watch_redo(&self) -> watch::Receiver<(Lsn, Lsn)> {
        self.fetcher.ahead.watch_redo()
    }
}
