//! What a zone keeps its blocks and records in, as the rest of the zone knows it.
//!
//! Invariant: a batch whose [`Engine::commit`] returned is there after any crash; another is there whole or not at all.
//! A read tells three things apart: what is there, that it is damaged, and that nobody knows at present
//! ([`EngineError::Unreadable`]), which is never taken for one of the others.

mod disk;
#[cfg(test)]
pub(crate) mod memory;
mod recent;
mod trouble;

use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;
use dax::error::{Error, ErrorKind};
use dax::ids::{BlockKey, Generation};
use dax::wire::StoredBlock;

pub(crate) use disk::DiskEngine;

use crate::error::OpenError;
use crate::keys::{SLOT_BYTES, Slot, VolumeId, decode_block};
use crate::log::{Change, Kind};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// What is stored could not be read, and may be sound: too many files are open, or the disk answered with an error.
    /// Nobody knows what is there; whoever asked asks again.
    #[error("the zone could not read its files")]
    Unreadable(#[source] Cause),
    /// Its index or a record is not what was written.
    #[error(
        "the zone's files are damaged; move its directory away and start with an empty one: the other zones bring it \
         up to date"
    )]
    Damaged(#[source] Cause),
    /// The key-value store failed; nothing more can be written until the process starts anew.
    #[error("the storage engine failed")]
    Store(#[source] Cause),
    /// The same of the commit log, or of the store's journal when it was synced.
    #[error("the zone's commit log failed")]
    Log(#[from] std::io::Error),
}

impl EngineError {
    /// True if the same may succeed when it is tried again.
    pub fn may_pass(&self) -> bool {
        matches!(self, EngineError::Unreadable(_))
    }

    /// What whoever asked is told, so that he asks again.
    ///
    /// # Errors
    /// This one, if asking again is of no use: the zone has failed.
    pub fn told(self) -> Result<Error, EngineError> {
        match self {
            EngineError::Unreadable(source) => {
                let text = format!("this zone cannot read its files at present: {source}");
                Ok(Error::with_source(ErrorKind::Unavailable, text, source))
            }
            error => Err(error),
        }
    }

    /// The error of a zone that cannot be opened for this reason.
    pub fn at_open(self, dir: &Path) -> OpenError {
        let dir = dir.into();
        match self {
            EngineError::Unreadable(source) | EngineError::Store(source) => {
                OpenError::Engine { dir, source }
            }
            EngineError::Log(source) => OpenError::Directory { dir, source },
            EngineError::Damaged(source) => OpenError::Damaged { dir, source },
        }
    }
}

/// What a read found.
#[derive(Debug)]
pub(crate) enum Found {
    /// An intact block.
    Block(StoredBlock),
    /// A block is there, but its bytes are not what was written.
    Corrupt(Generation),
}

impl Found {
    /// What an engine value holds.
    pub fn new(key: BlockKey, generation: Generation, value: Bytes) -> Found {
        match decode_block(generation, value) {
            Some(block) if block.is_intact(key) => Found::Block(block),
            _ => Found::Corrupt(generation),
        }
    }
}

/// Slots from one to another, as engine keys.
pub(crate) type SlotRange = (Bound<[u8; SLOT_BYTES]>, Bound<[u8; SLOT_BYTES]>);

/// Slots in order.
pub(crate) type Slots = Box<dyn Iterator<Item = Result<Slot, EngineError>> + Send>;

/// Entries of `meta` in order.
pub(crate) type Metas = Box<dyn Iterator<Item = Result<(Bytes, Bytes), EngineError>> + Send>;

impl dyn Engine + '_ {
    /// All `meta` entries whose key starts with `prefix`, in order.
    pub fn meta_prefix(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, EngineError> {
        self.meta_after(prefix, &[]).collect()
    }
}

/// The embedded store of one zone.
pub(crate) trait Engine: Send + Sync {
    /// Makes the changes durable, and only then visible.
    fn commit(&self, batch: Batch) -> Result<(), EngineError>;

    /// Does what commits have left to be done, if it has become much: for when nobody waits.
    fn settle(&self) -> Result<(), EngineError>;

    /// The same, however little it is.
    fn settle_all(&self) -> Result<(), EngineError>;

    /// Makes durable in the engine's own files what has been committed so far, and lets the log be written
    /// over. May run beside commits.
    fn checkpoint(&self) -> Result<(), EngineError>;

    /// True if enough has been committed since the last checkpoint.
    fn wants_checkpoint(&self) -> bool;

    /// The value of exactly this slot.
    fn get(&self, slot: &Slot) -> Result<Option<Found>, EngineError>;

    /// The newest generation of a block that is not above `up_to`.
    fn newest(
        &self,
        volume: VolumeId,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>, EngineError>;

    /// Slots in order within `range` as of now, without touching their data.
    fn slots(&self, range: SlotRange) -> Slots;

    /// True if the slot holds anything.
    fn contains(&self, slot: &Slot) -> Result<bool, EngineError>;

    /// The value of a `meta` key.
    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// The `meta` entries whose key starts with `prefix` and is greater than `after`, in order.
    fn meta_after(&self, prefix: &[u8], after: &[u8]) -> Metas;

    /// The number of the last commit that was there when the engine was opened.
    fn began(&self) -> u64;

    /// The number of the last commit.
    fn last_commit(&self) -> u64;

    /// Free bytes on the file system, for processes without privileges.
    fn free_bytes(&self) -> std::io::Result<u64>;
}

/// Changes that become visible and durable together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    changes: Vec<Change>,
}

impl Batch {
    /// Sets a slot; `value` is made by [`encode_block`](crate::keys::encode_block).
    pub fn put(&mut self, slot: &Slot, value: Bytes) {
        self.push(Kind::PutBlock, &slot.encode(), value);
    }

    /// Removes a slot.
    pub fn remove(&mut self, slot: &Slot) {
        self.push(Kind::RemoveBlock, &slot.encode(), Bytes::new());
    }

    /// Sets a `meta` key.
    pub fn put_meta(&mut self, key: &[u8], value: Bytes) {
        self.push(Kind::PutMeta, key, value);
    }

    /// Removes a `meta` key.
    pub fn remove_meta(&mut self, key: &[u8]) {
        self.push(Kind::RemoveMeta, key, Bytes::new());
    }

    fn push(&mut self, kind: Kind, key: &[u8], value: Bytes) {
        let key = Bytes::copy_from_slice(key);
        self.changes.push(Change { kind, key, value });
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn into_changes(self) -> Vec<Change> {
        self.changes
    }
}
