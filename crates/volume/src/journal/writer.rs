//! The active's side: appends in memory, writes and syncs blocks when somebody needs a position
//! durable. Callers that wait at the same time share one sync.

use std::sync::Arc;

use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Storage, SyncScope};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::buffer::JournalBuffer;
use super::{Chained, JournalPos};
use crate::error::Result;
use crate::namespace::JOURNAL;
use crate::namespace::op::Op;

/// Writes the journal of the epoch that the storage handle owns.
pub struct JournalWriter {
    storage: Arc<dyn Storage>,
    buffer: Mutex<JournalBuffer>,
    flushing: tokio::sync::Mutex<()>,
    synced: watch::Sender<JournalPos>,
}

impl JournalWriter {
    /// Continues the stream at `end`, everything before which is durable; `tail` is what the block
    /// of `end` holds before it.
    pub fn new(storage: Arc<dyn Storage>, end: Chained, tail: Vec<u8>) -> JournalWriter {
        let block_size = storage.settings().block_size_bytes as usize;
        JournalWriter {
            storage,
            buffer: Mutex::new(JournalBuffer::new(block_size, end, tail)),
            flushing: tokio::sync::Mutex::new(()),
            synced: watch::Sender::new(end.at),
        }
    }

    /// Adds an operation; see [`JournalBuffer::append`].
    pub fn append(&self, op: Op, also: Option<FileId>) {
        self.buffer.lock().append(op, also);
    }

    /// Adds operations that must happen together, as one record of their own.
    ///
    /// # Errors
    /// `Invalid` if they are too long for one; nothing is added then.
    pub fn append_record(&self, ops: Vec<Op>) -> Result<JournalPos> {
        self.buffer.lock().append_record(ops)
    }

    /// The end of everything appended so far.
    pub fn end(&self) -> Chained {
        self.buffer.lock().frame()
    }

    /// The end of the last closed record; the open batch comes behind it.
    pub fn framed_end(&self) -> JournalPos {
        self.buffer.lock().framed_end()
    }

    /// How far the journal must be durable for everything that touched `file`; `None` if it is.
    pub fn target(&self, file: FileId) -> Option<JournalPos> {
        self.buffer.lock().target(file)
    }

    /// Bytes that wait for a flush, about.
    pub fn backlog_bytes(&self) -> u64 {
        self.buffer.lock().backlog_bytes()
    }

    /// How far the journal is durable. Standbys may read up to here.
    pub fn synced(&self) -> JournalPos {
        *self.synced.borrow()
    }

    /// Tells when [`synced`](Self::synced) moves.
    pub fn watch_synced(&self) -> watch::Receiver<JournalPos> {
        self.synced.subscribe()
    }

    /// Returns when the journal is durable at least up to `at`.
    pub async fn flush_to(&self, at: JournalPos) -> Result<()> {
        if self.synced() >= at {
            return Ok(());
        }
        let _one = self.flushing.lock().await;
        if self.synced() >= at {
            return Ok(());
        }
        let block_size = self.storage.settings().block_size_bytes as usize;
        let backlog = usize::try_from(self.backlog_bytes()).unwrap_or(usize::MAX);
        self.storage
            .write_room(backlog.saturating_add(block_size))
            .await?;
        // Nothing waits between taking blocks and writing them: whoever waits here may go away, and what was taken is nowhere else.
        let taken = self.buffer.lock().take_blocks();
        for (block, data) in taken.blocks {
            let key = BlockKey {
                file: JOURNAL,
                block,
            };
            self.storage.write(key, Generation::SINGLE, data)?;
        }
        self.storage.csync(SyncScope::File(JOURNAL)).await?;
        self.buffer.lock().synced(taken.end);
        self.synced.send_replace(taken.end);
        Ok(())
    }

    /// Returns when everything appended so far is durable.
    pub async fn flush(&self) -> Result<()> {
        let end = self.end().at;
        self.flush_to(end).await
    }
}
