//! The one file that knows the embedded key-value engine (fjall; docs/kv-choice.md says why).
//!
//! Owns the files under a zone's directory. Invariant: a batch whose [`Batch::commit`] returned is
//! there after any crash; another is there whole or not at all.
//!
//! A commit is durable by the [commit log](crate::log) and then handed to the engine, which makes it
//! durable in its own time: a *checkpoint* does so for everything, and lets the log be written over. With
//! each commit the engine keeps its number, so an open knows which records it still has to take.
//!
//! ```text
//! commit ─▶ log, synced ─▶ engine's memory and journal, not synced ─▶ visible
//!                                        │ checkpoint: journal synced, log released
//! large commit ─────────────▶ engine's journal, synced: a checkpoint as well
//! open:   engine's files ─▶ the log's records behind them ─▶ checkpoint
//! ```
//!
//! Two keyspaces: `blocks` (slot to version, checksum and data; data kept apart from keys, so that
//! scans over keys are cheap and compaction does not rewrite data) and `meta` (volumes, epochs,
//! records).

use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dax::ids::{BlockKey, Generation};
use dax::wire::StoredBlock;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;

use crate::background;
use crate::error::OpenError;
use crate::journal;
use crate::keys::{SLOT_BYTES, Slot, VolumeId, decode_block};
use crate::log::{Change, CommitLog, Draft, Kind, LogError, Position, Record, Sequence};

/// What the commit log holds before it is written over.
const LOG_BYTES: u64 = 32 << 20;
/// A commit of more bytes, as when much is written without a sync, goes into the engine's journal at once:
/// written twice it would take longer, and syncing what grows costs it little.
const RECORD_BYTES_MAX: u64 = 512 << 10;
/// The key under which the engine keeps the number of the last commit that it has.
const APPLIED_KEY: &[u8] = b"log";

/// The engine failed; nothing more can be written until the process starts anew.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// The key-value store.
    #[error("the storage engine failed")]
    Store(#[from] fjall::Error),
    /// The commit log, or the store's journal when it was synced.
    #[error("the zone's commit log failed")]
    Log(#[from] std::io::Error),
}

/// What a read found.
#[derive(Debug)]
pub(crate) enum Found {
    /// An intact block.
    Block(StoredBlock),
    /// A block is there, but its bytes are not what was written.
    Corrupt(Generation),
}

/// The embedded store of one zone.
pub(crate) struct Engine {
    db: Database,
    blocks: Keyspace,
    meta: Keyspace,
    dir: PathBuf,
    /// Locked while a commit is made.
    log: Mutex<CommitLog>,
    /// A [`Position`]: the engine has everything before it.
    applied: AtomicU64,
    /// A [`Position`]: the engine has it durably.
    released: AtomicU64,
    /// A record of more bytes is not logged.
    record_bytes_max: usize,
    /// So many bytes that are not released are worth a checkpoint.
    checkpoint_bytes: u64,
    /// Held as long as the store is open.
    _lock: Flock<File>,
}

/// Changes that become visible and durable together.
pub(crate) struct Batch<'e> {
    inner: fjall::OwnedWriteBatch,
    draft: Draft,
    engine: &'e Engine,
}

impl Engine {
    /// Opens or creates the store in `dir`, caching at most `cache_bytes` of it.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Engine, OpenError> {
        Engine::open_with(dir, cache_bytes, LOG_BYTES)
    }

    /// The same; a log that is made has room for `log_bytes`.
    pub fn open_with(dir: &Path, cache_bytes: u64, log_bytes: u64) -> Result<Engine, OpenError> {
        let lock = lock(dir)?;
        let cut = journal::check(dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => damaged(dir, source),
            _ => unusable(dir, source),
        })?;
        let (db, blocks, meta) = open_store(dir, cache_bytes).map_err(|source| match source {
            fjall::Error::Locked => OpenError::Locked { dir: dir.into() },
            fjall::Error::Io(source) if !is_corruption(&source) => unusable(dir, source),
            source => damaged(dir, source),
        })?;
        let applied = last_applied(&meta).map_err(|source| damaged(dir, source))?;
        let opened = CommitLog::open(dir, log_bytes, applied);
        let (log, records) = opened.map_err(|error| match error {
            LogError::Io(source) => unusable(dir, source),
            error => {
                cut.keep();
                damaged(dir, error)
            }
        })?;
        let log_bytes = log.capacity();
        let engine = Engine {
            db,
            blocks,
            meta,
            dir: dir.into(),
            applied: AtomicU64::new(log.head().0),
            released: AtomicU64::new(log.head().0),
            record_bytes_max: (log_bytes / 4).min(RECORD_BYTES_MAX) as usize,
            checkpoint_bytes: log_bytes / 4,
            log: Mutex::new(log),
            _lock: lock,
        };
        engine.replay(&records)?;
        Ok(engine)
    }

    /// Takes what only the log has.
    fn replay(&self, records: &[Record]) -> Result<(), OpenError> {
        for record in records {
            let Sequence(number) = record.sequence;
            let mut batch = self.db.batch();
            for change in record.changes() {
                let nonsense = || damaged(&self.dir, LogError::Nonsense(number));
                let Change { kind, key, value } = change.ok_or_else(nonsense)?;
                match kind {
                    Kind::PutBlock => batch.insert(&self.blocks, key, value),
                    Kind::RemoveBlock => batch.remove(&self.blocks, key),
                    Kind::PutMeta => batch.insert(&self.meta, key, value),
                    Kind::RemoveMeta => batch.remove(&self.meta, key),
                }
            }
            batch.insert(&self.meta, APPLIED_KEY, number.to_be_bytes());
            batch.commit().map_err(|error| damaged(&self.dir, error))?;
        }
        if !records.is_empty() {
            tracing::info!(dir = %self.dir.display(), commits = records.len(), "took up the commit log");
        }
        self.checkpoint().map_err(|error| damaged(&self.dir, error))
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            inner: self.db.batch(),
            draft: Draft::new(),
            engine: self,
        }
    }

    /// Makes durable in the engine's own files what has been committed so far, and lets the log be written
    /// over. May run beside commits.
    pub fn checkpoint(&self) -> Result<(), EngineError> {
        let applied = self.applied.load(Ordering::Acquire);
        // First without the engine's lock, which commits need: then there is little left to sync.
        journal::sync_newest(&self.dir)?;
        self.db.persist(PersistMode::SyncData)?;
        self.released.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// Whether enough has been committed since the last checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        let applied = self.applied.load(Ordering::Acquire);
        applied.saturating_sub(self.released().0) >= self.checkpoint_bytes
    }

    /// The log may be written over before here.
    pub fn released(&self) -> Position {
        Position(self.released.load(Ordering::Acquire))
    }

    /// The value of exactly this slot.
    pub fn get(&self, slot: &Slot) -> Result<Option<Found>, EngineError> {
        let value = match self.blocks.get(slot.encode()) {
            Err(e) if is_damage(&e) => return Ok(Some(Found::Corrupt(slot.generation))),
            other => other?,
        };
        Ok(value.map(|value| found(slot.key, slot.generation, value.into())))
    }

    /// The newest generation of a block that is not above `up_to`.
    pub fn newest(
        &self,
        volume: VolumeId,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>, EngineError> {
        let at = |generation| Slot {
            volume,
            key,
            generation,
        };
        let range = at(Generation::SINGLE).encode()..=at(up_to).encode();
        let Some(guard) = self.blocks.range(range).next_back() else {
            return Ok(None);
        };
        match guard.into_inner() {
            Ok((name, value)) => {
                let generation = Slot::decode(&name).map_or(up_to, |slot| slot.generation);
                Ok(Some(found(key, generation, value.into())))
            }
            Err(e) if is_damage(&e) => Ok(Some(Found::Corrupt(up_to))),
            Err(e) => Err(e.into()),
        }
    }

    /// Slots in order within `range` as of now, without touching their data.
    pub fn slots(
        &self,
        range: (Bound<[u8; SLOT_BYTES]>, Bound<[u8; SLOT_BYTES]>),
    ) -> impl Iterator<Item = Result<Slot, EngineError>> + Send + use<> {
        self.blocks
            .range(range)
            .filter_map(|guard| match guard.key() {
                Ok(key) => Slot::decode(&key).map(Ok),
                Err(e) => Some(Err(e.into())),
            })
    }

    /// Whether the slot holds anything.
    pub fn contains(&self, slot: &Slot) -> Result<bool, EngineError> {
        Ok(self.blocks.contains_key(slot.encode())?)
    }

    /// The value of a `meta` key.
    pub fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.meta.get(key)?.map(Bytes::from))
    }

    /// All `meta` entries whose key starts with `prefix`, in order.
    pub fn meta_prefix(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, EngineError> {
        let entries = self.meta.prefix(prefix).map(|guard| {
            let (key, value) = guard.into_inner()?;
            Ok((Bytes::from(key), Bytes::from(value)))
        });
        entries.collect()
    }

    /// Free bytes on the file system, for processes without privileges.
    pub fn free_bytes(&self) -> std::io::Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.dir)?;
        Ok(stat.blocks_available() as u64 * stat.fragment_size() as u64)
    }
}

impl Batch<'_> {
    /// Sets a slot; `value` is made by [`encode_block`](crate::keys::encode_block).
    pub fn put(&mut self, slot: &Slot, value: Bytes) {
        let key = slot.encode();
        self.log(Kind::PutBlock, &key, &value);
        self.inner
            .insert(&self.engine.blocks, key.as_slice(), value);
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: &Slot) {
        let key = slot.encode();
        self.log(Kind::RemoveBlock, &key, &[]);
        self.inner.remove(&self.engine.blocks, key.as_slice());
    }

    /// Sets a `meta` key.
    pub fn put_meta(&mut self, key: &[u8], value: Bytes) {
        self.log(Kind::PutMeta, key, &value);
        self.inner.insert(&self.engine.meta, key, value);
    }

    /// Removes a `meta` key.
    pub fn remove_meta(&mut self, key: &[u8]) {
        self.log(Kind::RemoveMeta, key, &[]);
        self.inner.remove(&self.engine.meta, key);
    }

    fn log(&mut self, kind: Kind, key: &[u8], value: &[u8]) {
        // What is too large already is not logged.
        if self.draft.bytes() <= self.engine.record_bytes_max {
            self.draft.push(kind, key, value);
        }
    }

    /// Makes the changes durable, and only then visible.
    pub fn commit(self) -> Result<(), EngineError> {
        let Batch {
            mut inner,
            draft,
            engine,
        } = self;
        if draft.is_empty() {
            return Ok(());
        }
        let mut log = engine.log.lock();
        let Sequence(number) = log.next();
        inner.insert(&engine.meta, APPLIED_KEY, number.to_be_bytes());
        if draft.bytes() > engine.record_bytes_max {
            inner.durability(Some(PersistMode::SyncData)).commit()?;
            engine.released.store(log.head().0, Ordering::Release);
            log.append(Draft::new(), engine.released())?;
            engine.applied.store(log.head().0, Ordering::Release);
            return Ok(());
        }
        if !log.has_room(draft.bytes(), engine.released()) {
            engine.checkpoint()?;
        }
        log.append(draft, engine.released())?;
        inner.commit()?;
        engine.applied.store(log.head().0, Ordering::Release);
        Ok(())
    }
}

/// The key-value store in `dir`, with its keyspaces for blocks and for everything else.
fn open_store(dir: &Path, cache_bytes: u64) -> fjall::Result<(Database, Keyspace, Keyspace)> {
    let builder = Database::builder(dir)
        .cache_size(cache_bytes)
        .worker_threads(2)
        .journal_compression(CompressionType::None)
        .manual_journal_persist(true);
    // Its workers compact, seconds at a time.
    let db = background::started_by(|| builder.open())?;
    // Blocks come packed: to pack them again takes time and gains nothing.
    let apart_from_keys = KvSeparationOptions::default().compression(CompressionType::None);
    let apart = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(32 << 20)
            .with_kv_separation(Some(apart_from_keys))
    };
    let blocks = db.keyspace("blocks", apart)?;
    let meta = db.keyspace("meta", KeyspaceCreateOptions::default)?;
    Ok((db, blocks, meta))
}

/// The last commit that the store has.
fn last_applied(meta: &Keyspace) -> Result<Sequence, Box<dyn std::error::Error + Send + Sync>> {
    match meta.get(APPLIED_KEY)? {
        Some(value) => Ok(Sequence(u64::from_be_bytes(value.as_ref().try_into()?))),
        None => Ok(Sequence::default()),
    }
}

fn unusable(dir: &Path, source: std::io::Error) -> OpenError {
    OpenError::Directory {
        dir: dir.into(),
        source,
    }
}

fn damaged(dir: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
    OpenError::Damaged {
        dir: dir.into(),
        source: source.into(),
    }
}

/// Locks the directory against other processes, before any of its files is touched.
fn lock(dir: &Path) -> Result<Flock<File>, OpenError> {
    let mut options = File::options();
    let file = options.create(true).write(true).truncate(false);
    let file = file.open(dir.join("zone.lock"));
    let file = file.map_err(|source| unusable(dir, source))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::Locked { dir: dir.into() },
        other => unusable(dir, other.into()),
    })
}

fn found(key: BlockKey, generation: Generation, value: Bytes) -> Found {
    match decode_block(generation, value) {
        Some(block) if block.is_intact(key) => Found::Block(block),
        _ => Found::Corrupt(generation),
    }
}

/// Whether a failed read concerns what was read only, so that the rest may go on: wrong contents, or
/// a device that cannot read that place.
fn is_damage(error: &fjall::Error) -> bool {
    !matches!(
        error,
        fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted | fjall::Error::Unrecoverable
    )
}

/// Input errors that mean wrong contents rather than a file that cannot be used.
fn is_corruption(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::InvalidInput
    )
}
