//! The active's view: the latest state of the volume, written by the epoch's owner.
//!
//! One lock, `core`, orders block writes, size changes and namespace operations: versions and
//! generations are given inside it, so a cut is one point of all three (hazard N10). It is
//! never held while waiting. What must wait (room for a write, the old contents of a block that is
//! written in part) is done before it, under the file's own lock.
//!
//! ```text
//!   request -> ticket -> room -> file lock -> old contents -> core -> observer -> ticket back
//!   cut     -> overlay written back -> all earlier tickets back -> core: g becomes g+1
//! ```

mod core;
mod inherited;
mod kept;
mod locks;
mod names;
mod observer;
mod past;
mod read;
mod reclaim;
mod scrub;
mod seal;
mod view;
mod write;
mod write_back;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dax::ids::{Epoch, FileId, Generation};
use dax::storage::{Lineage, Storage};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::core::Core;
pub use self::inherited::{Inherited, InheritedBase, InheritedBlocks};
use self::kept::Past;
pub use self::kept::{Clock, PastStatus};
use self::locks::{FileLocks, Tickets};
pub use self::observer::{NoObserver, WriteObserver};
pub use self::seal::CutImage;
use self::write_back::WriteBack;
use crate::cache::BlockCache;
use crate::error::{Error, Result};
use crate::journal::{JournalPos, JournalWriter};
use crate::latest::Latest;
use crate::layout::Layout;
use crate::lists::Writes;
use crate::namespace::Namespace;
use crate::private::PrivateDir;
use crate::seal::Seal;
use crate::view::Ino;

/// What can be chosen about an active view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long the kernel may keep names and attributes of shared files: everything that changes them comes
    /// through this mount. Nothing private is kept.
    pub metadata_cache: Duration,
    /// Bytes of blocks to cache.
    pub cache_bytes: u64,
    /// True if the kernel may keep blocks, too.
    pub kernel_cache: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            metadata_cache: Duration::from_secs(10),
            cache_bytes: 64 << 20,
            kernel_cache: true,
        }
    }
}

/// See the module. Clones are the same view.
#[derive(Clone)]
pub struct ActiveView {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    storage: Arc<dyn Storage>,
    layout: Arc<dyn Layout>,
    private: Arc<PrivateDir>,
    observer: Arc<dyn WriteObserver>,
    options: Options,
    epoch: Epoch,
    block_size: u64,
    /// The latest image: everything from here on belongs to it.
    lineage: Lineage,
    journal: JournalWriter,
    core: Mutex<Core>,
    locks: FileLocks,
    tickets: Tickets,
    cache: Arc<BlockCache>,
    write_back: Option<WriteBack>,
    inherited_base: Option<Arc<dyn InheritedBase>>,
    files_of_aliases: HashMap<Ino, FileId>,
    aliases_of_files: HashMap<FileId, Ino>,
    controlling: tokio::sync::Mutex<()>,
    sealing: tokio::sync::Mutex<()>,
    reclaiming: tokio::sync::Mutex<()>,
    past: Past,
    /// See [`Latest::log_is_fixed`].
    log_fixed: bool,
    /// The old log that was read ahead last.
    log_ahead: tokio::sync::Mutex<(FileId, Range<u64>)>,
    /// The generation of the last seal.
    sealed: watch::Sender<Generation>,
    flushing: AtomicBool,
    /// Plain operations may be called from threads outside the runtime.
    runtime: Handle,
}

impl ActiveView {
    /// Opens the latest state for writing. Orphans that a dead epoch left are forgotten; changes made
    /// to `latest` are durable when this returns. Must be called inside a tokio runtime.
    pub async fn open(
        latest: Latest,
        layout: Arc<dyn Layout>,
        private: Arc<PrivateDir>,
        observer: Arc<dyn WriteObserver>,
        inherited: Option<Inherited>,
        options: Options,
    ) -> Result<ActiveView> {
        latest.commit().await?;
        let last = latest.seals.last().ok_or(Error::NotFound)?;
        let first = Generation {
            epoch: latest.epoch,
            number: 0,
        };
        let open = if last.generation < first {
            first
        } else {
            last.generation.next()
        };
        let last_sealed = last.generation;
        let mut lineage = last.lineage.clone();
        let mut opens = HashMap::new();
        let mut files_of_aliases = HashMap::new();
        let mut write_back = None;
        let mut log = Vec::new();
        let mut inherited_base = None;
        let mut cache = None;
        if let Some(inherited) = inherited {
            lineage = inherited.lineage;
            opens = inherited.open_counts;
            files_of_aliases = inherited.aliases;
            write_back = Some(WriteBack::new(inherited.blocks));
            log = inherited.log;
            inherited_base = inherited.base;
            cache = inherited.cache;
        }
        let after = lineage.end();
        let settings = latest.storage.settings();
        let inner = Inner {
            block_size: u64::from(settings.block_size_bytes),
            cache: cache.unwrap_or_else(|| {
                let block_bytes = settings.block_size_bytes;
                Arc::new(BlockCache::new(options.cache_bytes, block_bytes))
            }),
            layout,
            private,
            observer,
            options,
            epoch: latest.epoch,
            lineage: lineage.continued(open),
            core: Mutex::new(Core::new(
                latest.namespace,
                open,
                latest.next_file,
                opens,
                latest.seals,
                latest.buried,
                Writes::new(after, latest.written),
            )),
            journal: latest.journal,
            storage: latest.storage,
            locks: FileLocks::new(),
            tickets: Tickets::default(),
            write_back,
            inherited_base,
            aliases_of_files: files_of_aliases
                .iter()
                .map(|(ino, file)| (*file, *ino))
                .collect(),
            files_of_aliases,
            controlling: tokio::sync::Mutex::new(()),
            sealing: tokio::sync::Mutex::new(()),
            reclaiming: tokio::sync::Mutex::new(()),
            past: Past::default(),
            log_fixed: latest.log_fixed,
            log_ahead: tokio::sync::Mutex::new((FileId(0), 0..0)),
            sealed: watch::Sender::new(last_sealed),
            flushing: AtomicBool::new(false),
            runtime: Handle::current(),
        };
        inner.forget_orphans()?;
        inner.remember_log(log);
        let view = ActiveView {
            inner: Arc::new(inner),
        };
        if view.inner.write_back.is_some() {
            tokio::spawn(write_back::run(Arc::downgrade(&view.inner)));
        }
        Ok(view)
    }

    /// The namespace at this moment.
    pub fn namespace(&self) -> Namespace {
        self.inner.core.lock().namespace.clone()
    }

    /// How far the journal is durable; what the heartbeat announces to standbys.
    pub fn journal_synced(&self) -> JournalPos {
        self.inner.journal.synced()
    }

    /// Tells when [`journal_synced`](Self::journal_synced) moves.
    pub fn watch_journal_synced(&self) -> watch::Receiver<JournalPos> {
        self.inner.journal.watch_synced()
    }

    /// Tells of new seals, by their generations.
    pub fn watch_sealed(&self) -> watch::Receiver<Generation> {
        self.inner.sealed.subscribe()
    }

    /// The kept seals, newest last.
    pub fn seals(&self) -> Vec<Seal> {
        self.inner.core.lock().seals.clone()
    }

    /// The generation that data writes belong to at this moment.
    pub fn open_generation(&self) -> Generation {
        self.inner.core.lock().open
    }

    /// The epoch that this view writes in.
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// Blocks of the overlay that are not written back yet; 0 for a view that inherited none.
    pub fn inherited_left(&self) -> usize {
        self.inner
            .write_back
            .as_ref()
            .map_or(0, |write_back| write_back.blocks.len())
    }

    /// Begins to write back what was inherited, behind the database's own writes and evenly, so that it is
    /// done after about `within`. Left to the caller so that a promotion has the storage for itself; some
    /// seconds begin it as well, and a seal waits for the end and hurries it.
    pub fn write_back_inherited(&self, within: Duration) {
        if let Some(write_back) = &self.inner.write_back {
            write_back.begin(within);
        }
    }

    /// The storage below.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.storage
    }
}

impl Inner {
    /// The shared file that an inode number stands for.
    fn file_of(&self, ino: Ino) -> FileId {
        self.files_of_aliases
            .get(&ino)
            .copied()
            .unwrap_or(FileId(ino.0))
    }

    /// The inode number of a shared file.
    fn ino_of(&self, file: FileId) -> Ino {
        self.aliases_of_files
            .get(&file)
            .copied()
            .unwrap_or(Ino(file.0))
    }
}
