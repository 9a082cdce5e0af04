//! The one file that knows the embedded key-value engine (fjall; docs/understand/kv-choice.md says why).
//!
//! Owns the files under a zone's directory. Invariant: a batch whose [`Engine::commit`] returned is
//! there after any crash; another is there whole or not at all.
//!
//! A commit is durable by the [commit log](crate::log), and visible from then on ([`super::recent`]). It is handed to
//! the engine later, with others, and the engine makes it durable in its own time: a *checkpoint* does so for
//! everything, and lets the log be written over. Each time both keyspaces keep the number of the last commit, so an open
//! knows which records it still has to take: all behind the smaller one. Each keyspace is flushed into tables of its own
//! when it likes, and a fault of the disk may take the journal that only the other one still needed.
//!
//! ```text
//! commit ─▶ log, synced ─▶ visible ─ many, or a checkpoint ─▶ engine's memory and journal, not synced
//!                                                                       │ checkpoint: journal synced, log released
//! large commit ─────────────────────────────────────────────▶ engine's journal, synced: a checkpoint as well
//! open:   engine's files ─▶ the log's records behind them ─▶ checkpoint
//! ```
//!
//! Two keyspaces: `blocks` (slot to version, checksum and data; data kept apart from keys, so that
//! scans over keys are cheap and compaction does not rewrite data) and `meta` (volumes, epochs,
//! records).
//!
//! What a failed read means is told in [`super::trouble`].

use std::array::TryFromSliceError;
use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dax::ids::{BlockKey, Generation};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, RwLock};

use super::recent::Recent;
use super::trouble::{damaged, failed, meaning, not_opened, not_understood, unusable};
use super::{Batch, Engine, EngineError, Found, Metas, SlotRange, Slots};
use crate::background;
use crate::error::OpenError;
use crate::journal;
use crate::keys::{Slot, VolumeId};
use crate::log::{Change, CommitLog, Draft, Kind, LogError, Position, Record, Sequence, in_all_of};
use crate::meta::{FORMAT_KEY, is_numbered_in_meta_alone};

/// What the commit log holds before it is written over.
const LOG_BYTES: u64 = 32 << 20;
/// A commit of more bytes, as when much is written without a sync, goes into the engine's journal at once:
/// written twice it would take longer, and syncing what grows costs it little.
const RECORD_BYTES_MAX: u64 = 512 << 10;
/// New blocks that a zone has in memory before the engine writes them into its files: twice as many while it does.
const BLOCKS_MEMTABLE_BYTES: u64 = 16 << 20;
/// The same of everything else: the same few keys again and again, with a version for each commit.
const META_MEMTABLE_BYTES: u64 = 2 << 20;
/// The key under which a keyspace keeps the number of the last commit that it has.
const APPLIED_KEY: &[u8] = b"log";

/// The embedded store of one zone.
pub(crate) struct DiskEngine {
    db: Database,
    blocks: Keyspace,
    meta: Keyspace,
    dir: PathBuf,
    /// Locked while a commit is made, or handed to the engine.
    log: Mutex<CommitLog>,
    /// Commits that the engine was not handed yet; changed under the log's lock only. Locked for a moment, never while
    /// the disk is waited for.
    recent: RwLock<Recent>,
    /// The number of the last commit that was found when it was opened.
    began: u64,
    /// The number of the last commit.
    last: AtomicU64,
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

impl DiskEngine {
    /// Opens or creates the store in `dir`, caching at most `cache_bytes` of it.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<DiskEngine, OpenError> {
        DiskEngine::open_with(dir, cache_bytes, LOG_BYTES)
    }

    /// The same; a log that is made has room for `log_bytes`.
    pub fn open_with(
        dir: &Path,
        cache_bytes: u64,
        log_bytes: u64,
    ) -> Result<DiskEngine, OpenError> {
        let lock = lock(dir)?;
        journal::forget_cached(dir).map_err(|source| unusable(dir, source))?;
        let cut = journal::check(dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => damaged(dir, source),
            _ => unusable(dir, source),
        })?;
        let (db, blocks, meta) = open_store(dir, cache_bytes).map_err(|source| match source {
            fjall::Error::Locked => OpenError::Locked { dir: dir.into() },
            source => not_opened(dir, source),
        })?;
        let applied = last_applied(&blocks, &meta).map_err(|error| match error {
            NotNumbered::Engine(source) => not_opened(dir, source),
            NotNumbered::Nonsense(source) => not_understood(dir, source),
        })?;
        let opened = CommitLog::open(dir, log_bytes, applied);
        let (log, records) = opened.map_err(|error| match error {
            LogError::Io(source) => unusable(dir, source),
            error @ LogError::Version(_) => not_understood(dir, error),
            error => {
                cut.keep();
                damaged(dir, error)
            }
        })?;
        let log_bytes = log.capacity();
        let engine = DiskEngine {
            db,
            blocks,
            meta,
            dir: dir.into(),
            began: log.next().0.saturating_sub(1),
            last: AtomicU64::new(log.next().0.saturating_sub(1)),
            applied: AtomicU64::new(log.head().0),
            released: AtomicU64::new(log.head().0),
            record_bytes_max: (log_bytes / 4).min(RECORD_BYTES_MAX) as usize,
            checkpoint_bytes: log_bytes / 4,
            log: Mutex::new(log),
            recent: RwLock::default(),
            _lock: lock,
        };
        engine.replay(&records)?;
        Ok(engine)
    }

    /// Takes what only the log has.
    fn replay(&self, records: &[Record]) -> Result<(), OpenError> {
        for record in records {
            let Sequence(number) = record.sequence;
            let mut changes = Vec::new();
            for change in record.changes() {
                let nonsense = || not_understood(&self.dir, LogError::Nonsense(number));
                changes.push(change.ok_or_else(nonsense)?);
            }
            let batch = self.filled(changes, record.sequence);
            batch
                .commit()
                .map_err(|error| not_opened(&self.dir, error))?;
        }
        if !records.is_empty() {
            tracing::info!(dir = %self.dir.display(), commits = records.len(), "replayed the commit log");
        }
        let done = self.checkpoint();
        done.map_err(|error| error.at_open(&self.dir))
    }

    /// A batch of the store with these changes, and the number of their commit.
    fn filled(
        &self,
        changes: impl IntoIterator<Item = Change>,
        Sequence(number): Sequence,
    ) -> fjall::OwnedWriteBatch {
        let mut batch = self.db.batch();
        for Change { kind, key, value } in changes {
            match kind {
                Kind::PutBlock => batch.insert(&self.blocks, key, value),
                Kind::RemoveBlock => batch.remove(&self.blocks, key),
                Kind::PutMeta => batch.insert(&self.meta, key, value),
                Kind::RemoveMeta => batch.remove(&self.meta, key),
            }
        }
        // In `blocks` it is shorter than any slot, and so in no range of them.
        for keyspace in [&self.blocks, &self.meta] {
            batch.insert(keyspace, APPLIED_KEY, number.to_be_bytes());
        }
        batch
    }

    /// Hands to the engine what it was not handed yet; nobody commits meanwhile.
    fn hand_over(&self, log: &CommitLog) -> Result<(), EngineError> {
        let changes = {
            let recent = self.recent.read();
            match recent.is_empty() {
                true => return Ok(()),
                false => recent.changes(),
            }
        };
        let last = Sequence(self.last.load(Ordering::Acquire));
        self.filled(changes, last).commit().map_err(failed)?;
        self.applied.store(log.head().0, Ordering::Release);
        // Last: whoever does not find it there any more finds it in the engine.
        self.recent.write().clear();
        Ok(())
    }

    /// The newest slot of a block up to `last` that the engine alone knows of.
    fn newest_stored(
        &self,
        last: &Slot,
        recent: &[(Slot, Option<Bytes>)],
    ) -> Result<Option<(Slot, Bytes)>, EngineError> {
        let first = Slot {
            generation: Generation::SINGLE,
            ..*last
        };
        for guard in self.blocks.range(first.encode()..=last.encode()).rev() {
            let (name, value) = guard.into_inner().map_err(meaning)?;
            let slot = Slot::decode(&name).unwrap_or(*last);
            if recent.iter().all(|(known, _)| *known != slot) {
                return Ok(Some((slot, value.into())));
            }
        }
        Ok(None)
    }

    /// Makes durable what the engine has, and releases the log up to there.
    fn sync(&self) -> Result<(), EngineError> {
        let applied = self.applied.load(Ordering::Acquire);
        // First without the engine's lock, which commits need: then there is little left to sync.
        journal::sync_newest(&self.dir)?;
        self.db.persist(PersistMode::SyncData).map_err(failed)?;
        self.released.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// A commit too large for the log.
    fn commit_large(&self, log: &mut CommitLog, changes: Vec<Change>) -> Result<(), EngineError> {
        self.hand_over(log)?;
        let Sequence(number) = log.next();
        let batch = self.filled(changes, log.next());
        let batch = batch.durability(Some(PersistMode::SyncData));
        batch.commit().map_err(failed)?;
        self.released.store(log.head().0, Ordering::Release);
        log.append(Draft::new(), self.released())?;
        self.applied.store(log.head().0, Ordering::Release);
        self.last.store(number, Ordering::Release);
        Ok(())
    }

    /// Moves what is in memory of records and volumes into a table, and leaves the blocks where they are.
    #[cfg(test)]
    pub fn flush_meta(&self) {
        self.settle_all().unwrap();
        self.meta.rotate_memtable_and_wait().unwrap();
    }

    /// True if there are commits that it was not handed.
    #[cfg(test)]
    pub fn is_behind(&self) -> bool {
        !self.recent.read().is_empty()
    }

    /// Leaves `blocks` as a version before did.
    #[cfg(test)]
    pub fn forget_number_in_blocks(&self) {
        self.settle_all().unwrap();
        self.blocks.remove(APPLIED_KEY).unwrap();
        self.checkpoint().unwrap();
    }

    /// The log may be written over before here.
    pub fn released(&self) -> Position {
        Position(self.released.load(Ordering::Acquire))
    }
}

impl Engine for DiskEngine {
    fn commit(&self, batch: Batch) -> Result<(), EngineError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut log = self.log.lock();
        let changes = batch.into_changes();
        let Some(draft) = Draft::of(&changes, self.record_bytes_max) else {
            return self.commit_large(&mut log, changes);
        };
        let Sequence(number) = log.next();
        if !log.has_room(draft.bytes(), self.released()) {
            self.hand_over(&log)?;
            self.sync()?;
        }
        log.append(draft, self.released())?;
        self.recent.write().add(changes);
        self.last.store(number, Ordering::Release);
        Ok(())
    }

    fn settle(&self) -> Result<(), EngineError> {
        let enough = self.recent.read().is_enough();
        match enough {
            true => self.hand_over(&self.log.lock()),
            false => Ok(()),
        }
    }

    fn settle_all(&self) -> Result<(), EngineError> {
        let empty = self.recent.read().is_empty();
        match empty {
            true => Ok(()),
            false => self.hand_over(&self.log.lock()),
        }
    }

    fn began(&self) -> u64 {
        self.began
    }

    fn last_commit(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    fn checkpoint(&self) -> Result<(), EngineError> {
        self.settle_all()?;
        self.sync()
    }

    fn wants_checkpoint(&self) -> bool {
        let applied = self.applied.load(Ordering::Acquire);
        applied.saturating_sub(self.released().0) >= self.checkpoint_bytes
    }

    fn get(&self, slot: &Slot) -> Result<Option<Found>, EngineError> {
        if let Some(known) = self.recent.read().block(slot) {
            return Ok(known.map(|value| Found::new(slot.key, slot.generation, value)));
        }
        let value = match self.blocks.get(slot.encode()).map_err(meaning) {
            Err(EngineError::Damaged(_)) => return Ok(Some(Found::Corrupt(slot.generation))),
            other => other?,
        };
        Ok(value.map(|value| Found::new(slot.key, slot.generation, value.into())))
    }

    fn newest(
        &self,
        volume: VolumeId,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>, EngineError> {
        let last = Slot {
            volume,
            key,
            generation: up_to,
        };
        // Before the engine is looked at, because things go from here to there.
        let recent = self.recent.read().generations(&last);
        let stored = match self.newest_stored(&last, &recent) {
            Err(EngineError::Damaged(_)) => return Ok(Some(Found::Corrupt(up_to))),
            other => other?,
        };
        let put = |(slot, value): (Slot, Option<Bytes>)| Some((slot, value?));
        let newest = recent.into_iter().filter_map(put).chain(stored);
        let newest = newest.max_by_key(|(slot, _)| *slot);
        Ok(newest.map(|(slot, value)| Found::new(key, slot.generation, value)))
    }

    fn slots(&self, range: SlotRange) -> Slots {
        if let Err(error) = self.settle_all() {
            return Box::new(std::iter::once(Err(error)));
        }
        let slots = self.blocks.range(range);
        Box::new(slots.filter_map(|guard| match guard.key() {
            Ok(key) => Slot::decode(&key).map(Ok),
            Err(error) => Some(Err(meaning(error))),
        }))
    }

    fn contains(&self, slot: &Slot) -> Result<bool, EngineError> {
        if let Some(known) = self.recent.read().block(slot) {
            return Ok(known.is_some());
        }
        self.blocks.contains_key(slot.encode()).map_err(meaning)
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        if let Some(known) = self.recent.read().meta(key) {
            return Ok(known);
        }
        let value = self.meta.get(key).map_err(meaning)?;
        Ok(value.map(Bytes::from))
    }

    fn meta_after(&self, prefix: &[u8], after: &[u8]) -> Metas {
        if let Err(error) = self.settle_all() {
            return Box::new(std::iter::once(Err(error)));
        }
        let prefix = prefix.to_vec();
        let from = match after > prefix.as_slice() {
            true => Bound::Excluded(after.to_vec()),
            false => Bound::Included(prefix.clone()),
        };
        let entries = self.meta.range((from, Bound::Unbounded)).map(|guard| {
            let (key, value) = guard.into_inner().map_err(meaning)?;
            Ok((Bytes::from(key), Bytes::from(value)))
        });
        let wanted = move |entry: &Result<(Bytes, Bytes), EngineError>| !matches!(entry, Ok((key, _)) if !key.starts_with(&prefix));
        Box::new(entries.take_while(wanted))
    }

    fn free_bytes(&self) -> std::io::Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.dir)?;
        Ok(stat.blocks_available() as u64 * stat.fragment_size() as u64)
    }
}

/// The key-value store in `dir`, with its keyspaces for blocks and for everything else.
fn open_store(dir: &Path, cache_bytes: u64) -> fjall::Result<(Database, Keyspace, Keyspace)> {
    let builder = Database::builder(dir)
        .cache_size(cache_bytes)
        // A second one would try again and again to begin what the first one is busy with, and take a processor for it.
        .worker_threads(1)
        .journal_compression(CompressionType::None)
        .manual_journal_persist(true);
    // Its workers compact, seconds at a time.
    let db = background::started_by(|| builder.open())?;
    // Blocks come packed: to pack them again takes time and gains nothing.
    let apart_from_keys = KvSeparationOptions::default().compression(CompressionType::None);
    let apart = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(BLOCKS_MEMTABLE_BYTES)
            .with_kv_separation(Some(apart_from_keys))
    };
    let blocks = db.keyspace("blocks", apart)?;
    let small = || KeyspaceCreateOptions::default().max_memtable_size(META_MEMTABLE_BYTES);
    let meta = db.keyspace("meta", small)?;
    Ok((db, blocks, meta))
}

/// Why nobody can tell which commits the store has.
enum NotNumbered {
    Engine(fjall::Error),
    Nonsense(TryFromSliceError),
}

impl From<fjall::Error> for NotNumbered {
    fn from(error: fjall::Error) -> NotNumbered {
        NotNumbered::Engine(error)
    }
}

impl From<TryFromSliceError> for NotNumbered {
    fn from(error: TryFromSliceError) -> NotNumbered {
        NotNumbered::Nonsense(error)
    }
}

/// The last commit that the whole store has.
fn last_applied(blocks: &Keyspace, meta: &Keyspace) -> Result<Sequence, NotNumbered> {
    let number = |keyspace: &Keyspace| -> Result<Option<Sequence>, NotNumbered> {
        let Some(value) = keyspace.get(APPLIED_KEY)? else {
            return Ok(None);
        };
        let number = u64::from_be_bytes(value.as_ref().try_into()?);
        Ok(Some(Sequence(number)))
    };
    let numbers = [number(blocks)?, number(meta)?];
    let format = meta.get(FORMAT_KEY)?;
    Ok(in_all_of(
        numbers,
        is_numbered_in_meta_alone(format.as_deref()),
    ))
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
