//! The mountable standby view: the pure state in a cell, the storage and local disk behind it.
//!
//! Invariants: the state is replaced at once and an operation takes it once (N3); changes of one
//! file's contents happen one after the other; nothing written here reaches shared storage before
//! [`StandbyView::become_active`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dax::ids::Generation;
use dax::storage::Storage;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::blocks::BlockStore;
use super::fetch::{Fetcher, Residence};
use super::gate::Gate;
use super::known::ReadStats;
use super::overlay::is_private;
use super::standing::ClaimWatch;
use super::state::{Found, State};
use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::lists::Lists;
use crate::log_history::LogHistory;
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::private::PrivateDir;
use crate::recent_log::RecentLog;
use crate::seal::{Base, Seal};
use crate::view::{Ino, View};

/// How many groups of files take turns in changing contents.
const TURNS: usize = 64;

/// What a standby view may use of this machine.
#[derive(Clone)]
pub struct StandbyOptions {
    /// Directory on local disk for overlay blocks that exceed memory. Nothing is left there.
    pub spill_dir: PathBuf,
    /// Bytes of overlay blocks kept in memory.
    pub memory_bytes_max: u64,
    /// Bytes of shared blocks cached.
    pub cache_bytes: u64,
    /// The claim on what is read, which was registered before the base was chosen. Without one nothing may ever
    /// be given back.
    pub claim: Option<ClaimWatch>,
}

/// How large an overlay is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayStats {
    /// Names, inodes and blocks.
    pub items: u64,
    /// Bytes of blocks in memory.
    pub memory_bytes: u64,
    /// Bytes of blocks on local disk.
    pub spill_bytes: u64,
}

/// A file of configuration that is open: the active may put another one in its place at any time, and who has
/// opened this one reads it as it was.
#[derive(Clone)]
pub(super) enum Configuration {
    /// Nobody has read it yet; the names when it was opened.
    Unread(Namespace),
    /// All of it, when it was read first.
    Read(Bytes),
}

/// The file system that a standby's PostgreSQL sees: the base, the overlay and private files.
pub struct StandbyView {
    pub(super) layout: Arc<dyn Layout>,
    pub(super) private: Arc<PrivateDir>,
    pub(super) fetcher: Fetcher,
    pub(super) store: Arc<BlockStore>,
    pub(super) gate: Gate<dyn View>,
    state: RwLock<Arc<State>>,
    pub(super) opens: Mutex<HashMap<Ino, u64>>,
    pub(super) configuration: Mutex<HashMap<Ino, Configuration>>,
    pub(super) bases: Mutex<Vec<Weak<Base>>>,
    /// One move at a time, with all that follows from it.
    pub(super) moving: Mutex<()>,
    turns: [tokio::sync::Mutex<()>; TURNS],
}

impl StandbyView {
    /// Stands on `base`, with names of log and configuration from `live`. The replay limit is the base's
    /// end until [`show_log`](Self::show_log) moves it. `private` was prepared for a standby.
    ///
    /// # Errors
    /// `Local` if the spill file cannot be made.
    pub fn attach(
        storage: Arc<dyn Storage>,
        layout: Arc<dyn Layout>,
        base: Base,
        live: Namespace,
        private: Arc<PrivateDir>,
        options: StandbyOptions,
    ) -> Result<Arc<StandbyView>> {
        let block_bytes = storage.settings().block_size_bytes;
        let store = BlockStore::new(
            &options.spill_dir,
            block_bytes as usize,
            options.memory_bytes_max,
        )?;
        let cache = Arc::new(BlockCache::new(options.cache_bytes, block_bytes));
        let fetcher = Fetcher::new(storage, cache, &base, options.claim);
        let state = State::new(Arc::clone(&layout), block_bytes, base, live);
        Ok(Arc::new(StandbyView {
            layout,
            private,
            fetcher,
            store: Arc::new(store),
            gate: Gate::new(),
            opens: Mutex::default(),
            configuration: Mutex::default(),
            bases: Mutex::new(vec![Arc::downgrade(&state.base)]),
            state: RwLock::new(Arc::new(state)),
            moving: Mutex::default(),
            turns: std::array::from_fn(|_| tokio::sync::Mutex::new(())),
        }))
    }

    /// Shows more of the log: its names as in `live`, and its bytes up to `replay_limit`, as one change.
    /// The replay limit never goes back; the names are the caller's, who must not show older ones later. Both
    /// must be durable, and `live` read no later than `replay_limit`.
    pub fn show_log(&self, live: Namespace, replay_limit: Lsn) {
        self.change_in_place(|state| state.show_log(live, replay_limit));
    }

    /// The same of a log whose timelines are these: as one change with the names, because a server that finds the
    /// name of a new timeline's file looks there for the log. What is shown reaches at least to where the newest one
    /// begins.
    pub fn show_history(&self, live: Namespace, replay_limit: Lsn, history: LogHistory) {
        self.change_in_place(|state| state.show_history(live, replay_limit, history));
    }

    /// Reads a whole file of the log that is not shown yet and has no positions (a timeline's history), as `live`
    /// has it; at most `len` bytes.
    ///
    /// # Errors
    /// `NotFound` if `live` has no such file.
    pub async fn read_coming_log_file(
        &self,
        live: Namespace,
        path: &str,
        len: u32,
    ) -> Result<Bytes> {
        let mut state = State::clone(&self.state());
        state.live = live;
        self.read_log(&Arc::new(state), path, 0, len).await
    }

    /// Takes the log from what the present active sends of it, as far as that is there; from the zones only, if
    /// `None`. To be taken back before the epoch is over: what a dead epoch sent last may be cut off.
    pub fn read_recent_log(&self, recent: Option<Arc<RecentLog>>) {
        self.fetcher.read_recent(recent);
    }

    /// The end of the log that is shown.
    pub fn replay_limit(&self) -> Lsn {
        self.state.read().replay_limit
    }

    /// The seal of the base.
    pub fn base_seal(&self) -> Seal {
        self.state.read().base.seal.clone()
    }

    /// How large the overlay is.
    pub fn stats(&self) -> OverlayStats {
        OverlayStats {
            items: self.state().overlay.items(),
            memory_bytes: self.store.memory_bytes(),
            spill_bytes: self.store.spill_bytes(),
        }
    }

    /// How data blocks were read since the attach.
    pub fn reads(&self) -> ReadStats {
        self.fetcher.known.stats()
    }

    /// Learns which versions the blocks have that the active wrote last: reads the lists of the base's
    /// seal and of those before it. To be called once after the attach; nothing waits for it. Returns
    /// how many blocks are known then.
    pub async fn learn_versions(&self) -> Result<usize> {
        let base = Arc::clone(&self.state().base);
        let seal = &base.seal;
        let all = Generation::SINGLE;
        let lists = Lists::load(self.storage(), &seal.lists, seal.generation, all).await?;
        self.fetcher.vouch(false).await?;
        Ok(self.fetcher.known.seed(&base, &lists))
    }

    /// Reads a log file by its path from the root (`pg_wal/...`), for the feed: at most `len` bytes,
    /// none at or beyond the replay limit. Removed segments are found while they are retained.
    ///
    /// # Errors
    /// `NotFound` if the live namespace has no such file.
    pub async fn read_log_file(&self, path: &str, offset: u64, len: u32) -> Result<Bytes> {
        self.read_log(&self.state(), path, offset, len).await
    }

    /// The same as if the log were shown up to `durable`, which the active has announced: what is shown
    /// next is at hand then.
    pub async fn read_log_ahead(
        &self,
        path: &str,
        offset: u64,
        len: u32,
        durable: Lsn,
    ) -> Result<Bytes> {
        let mut state = State::clone(&self.state());
        state.replay_limit = state.replay_limit.max(durable);
        self.read_log(&Arc::new(state), path, offset, len).await
    }

    async fn read_log(
        &self,
        state: &Arc<State>,
        path: &str,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        let ino = state.resolve(path)?;
        let shared = state.shared(ino).ok_or(Error::NotFound)?;
        let shown = match self.layout.log_range(path) {
            Some(range) => {
                let end = state.log_end(path, &range).ok_or(Error::NotFound)?;
                end.bytes_since(range.start)
            }
            None => u64::MAX,
        };
        let end = state
            .size(ino)?
            .min(shown)
            .min(offset.saturating_add(u64::from(len)));
        tracing::trace!(path, offset, end, file = %shared.id, "log read");
        if offset >= end {
            return Ok(Bytes::new());
        }
        self.fetcher.range(state, ino, offset..end).await
    }

    /// Where a block of a data file would be read. Of a file that is not there, or beyond its end, nothing
    /// is missing.
    pub fn residence(&self, path: &str, block: u64) -> Residence {
        let state = self.state();
        let Ok(ino) = state.resolve(path) else {
            return Residence::Memory;
        };
        let is_inside = |size| block * u64::from(state.block_bytes) < size;
        match state.size(ino).is_ok_and(is_inside) {
            true => self.fetcher.residence(&state, ino, block),
            false => Residence::Memory,
        }
    }

    /// The names of log and configuration that are shown.
    pub fn live(&self) -> Namespace {
        self.state.read().live.clone()
    }

    /// The storage that this view reads.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.fetcher.storage
    }

    /// The claim on what is read.
    pub fn claim(&self) -> Option<&ClaimWatch> {
        self.fetcher.claim.as_ref()
    }

    /// The private files of this view.
    pub fn private(&self) -> &Arc<PrivateDir> {
        &self.private
    }

    /// The state as of now.
    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read())
    }

    /// Changes the state, or leaves it as it is where `change` fails.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let mut cell = self.state.write();
        let mut next = State::clone(&cell);
        let done = change(&mut next)?;
        *cell = Arc::new(next);
        Ok(done)
    }

    /// The same for changes that fail before they begin, or not at all; copies less.
    pub(super) fn change_in_place<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(Arc::make_mut(&mut self.state.write()))
    }

    /// Waits for the turn to change a file's contents.
    pub(super) async fn turn(&self, ino: Ino) -> tokio::sync::MutexGuard<'_, ()> {
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.turns[mixed as usize % TURNS].lock().await
    }

    /// What is at a name: a path of the local disk, or the shared tree.
    pub(super) fn place(&self, state: &State, dir: Ino, name: &[u8]) -> Result<Place> {
        if is_private(dir) {
            let path = self.private.path(dir).ok_or(Error::NotFound)?;
            return Ok(Place::Private(format!(
                "{path}/{}",
                String::from_utf8_lossy(name)
            )));
        }
        Ok(match state.find(dir, name)? {
            Found::Private(path) => Place::Private(path),
            Found::Inode(ino) => Place::Shared(Some(ino)),
            Found::Nothing => Place::Shared(None),
        })
    }

    /// Frees what an inode that lost its last name takes, unless it is open.
    pub(super) fn reap(&self, ino: Option<Ino>) {
        let Some(ino) = ino else {
            return;
        };
        let opens = self.opens.lock();
        if !opens.contains_key(&ino) {
            self.change_in_place(|state| state.reap(ino));
        }
    }
}

/// Where a name belongs.
pub(super) enum Place {
    Private(String),
    /// With the inode there, if there is one.
    Shared(Option<Ino>),
}
