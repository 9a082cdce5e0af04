//! The one file that knows the embedded key-value engine (fjall; docs/kv-choice.md says why).
//!
//! Owns the files under a zone's directory. Invariant: a batch whose [`Batch::commit`] returned is
//! there after any crash; another is there whole or not at all.
//!
//! Two keyspaces: `blocks` (slot to version, checksum and data; data kept apart from keys, so that
//! scans over keys are cheap and compaction does not rewrite data) and `meta` (volumes, epochs,
//! records).

use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use dax::ids::{BlockKey, Generation};
use dax::wire::StoredBlock;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::OpenError;
use crate::journal;
use crate::keys::{SLOT_BYTES, Slot, VolumeId, decode_block};

/// The engine failed; nothing more can be written until the process starts anew.
#[derive(Debug, thiserror::Error)]
#[error("the storage engine failed")]
pub(crate) struct EngineError(#[from] fjall::Error);

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
    /// Held as long as the store is open.
    _lock: Flock<File>,
}

/// Changes that become visible and durable together.
pub(crate) struct Batch<'e> {
    inner: fjall::OwnedWriteBatch,
    engine: &'e Engine,
}

impl Engine {
    /// Opens or creates the store in `dir`, caching at most `cache_bytes` of it.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Engine, OpenError> {
        let broken = |source: fjall::Error| match source {
            fjall::Error::Locked => OpenError::Locked { dir: dir.into() },
            fjall::Error::Io(source) if !is_corruption(&source) => OpenError::Directory {
                dir: dir.into(),
                source,
            },
            source => OpenError::Damaged {
                dir: dir.into(),
                source: Box::new(source),
            },
        };
        let lock = lock(dir)?;
        journal::check(dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::InvalidData => OpenError::Damaged {
                dir: dir.into(),
                source: Box::new(source),
            },
            _ => OpenError::Directory {
                dir: dir.into(),
                source,
            },
        })?;
        let db = Database::builder(dir)
            .cache_size(cache_bytes)
            .worker_threads(2)
            .journal_compression(CompressionType::None)
            .open()
            .map_err(broken)?;
        // Blocks come packed: to pack them again takes time and gains nothing.
        let apart_from_keys = KvSeparationOptions::default().compression(CompressionType::None);
        let apart = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(32 << 20)
                .with_kv_separation(Some(apart_from_keys))
        };
        let blocks = db.keyspace("blocks", apart).map_err(broken)?;
        let meta = db
            .keyspace("meta", KeyspaceCreateOptions::default)
            .map_err(broken)?;
        Ok(Engine {
            db,
            blocks,
            meta,
            dir: dir.into(),
            _lock: lock,
        })
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            inner: self.db.batch(),
            engine: self,
        }
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
        self.inner
            .insert(&self.engine.blocks, slot.encode().as_slice(), value);
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: &Slot) {
        self.inner
            .remove(&self.engine.blocks, slot.encode().as_slice());
    }

    /// Sets a `meta` key.
    pub fn put_meta(&mut self, key: &[u8], value: Bytes) {
        self.inner.insert(&self.engine.meta, key, value);
    }

    /// Removes a `meta` key.
    pub fn remove_meta(&mut self, key: &[u8]) {
        self.inner.remove(&self.engine.meta, key);
    }

    /// Makes the changes durable, and only then visible.
    pub fn commit(self) -> Result<(), EngineError> {
        Ok(self
            .inner
            .durability(Some(PersistMode::SyncData))
            .commit()?)
    }
}

/// Locks the directory against other processes, before any of its files is touched.
fn lock(dir: &Path) -> Result<Flock<File>, OpenError> {
    let unusable = |source| OpenError::Directory {
        dir: dir.into(),
        source,
    };
    let mut options = File::options();
    let file = options.create(true).write(true).truncate(false);
    let file = file.open(dir.join("zone.lock")).map_err(unusable)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => OpenError::Locked { dir: dir.into() },
        other => unusable(other.into()),
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
