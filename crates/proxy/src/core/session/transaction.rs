//! An open transaction: what it did so far, so that it can be done again.

use bytes::Bytes;

use super::batch::RequestBatch;
use super::digest::Digest;
use super::kept::Rows;
use super::reason::Reason;

/// A batch that was answered.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The client's messages.
    pub bytes: Bytes,
    /// What it was answered.
    pub answered: Digest,
    /// Rows of the answer whose values it has again when it is run once more.
    pub rows: Rows,
    /// The transaction's status after it.
    pub status: u8,
}

/// What an open transaction did.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Batch by batch; empty if it cannot be replayed.
    pub batches: Vec<Stored>,
    bytes: usize,
    /// Why it cannot be replayed, if so.
    pub obstacle: Option<Reason>,
    /// It runs on a standby.
    pub is_on_standby: bool,
    /// It may have acted outside of the database.
    pub has_reached_out: bool,
}

impl Transaction {
    /// One that cannot be replayed from its beginning.
    pub fn obstructed(obstacle: Reason, is_on_standby: bool) -> Transaction {
        Transaction {
            obstacle: Some(obstacle),
            is_on_standby,
            ..Transaction::default()
        }
    }

    /// Another batch was answered.
    pub fn store(&mut self, batch: &RequestBatch, status: u8, limit_bytes: usize) {
        if self.obstacle.is_some() {
            return;
        }
        self.bytes += batch.bytes.len() + batch.rows.bytes();
        if batch.facts.cannot_repeat {
            self.obstruct(Reason::Effects);
        } else if batch.is_streamed {
            self.obstruct(Reason::LargeAnswer);
        } else if batch.is_cut || self.bytes > limit_bytes {
            self.obstruct(Reason::LongStatements);
        } else {
            self.batches.push(Stored {
                bytes: Bytes::copy_from_slice(&batch.bytes),
                answered: batch.answered,
                rows: batch.rows.clone(),
                status,
            });
        }
    }

    fn obstruct(&mut self, obstacle: Reason) {
        self.obstacle = Some(obstacle);
        self.batches = Vec::new();
    }
}
