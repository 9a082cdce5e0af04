//! An open transaction: what it did so far, so that it can be done again.

use bytes::Bytes;

use super::digest::Digest;
use super::unit::Unit;

/// A unit that was answered.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The client's messages.
    pub bytes: Bytes,
    /// What it was answered.
    pub answered: Digest,
    /// The transaction's status after it.
    pub status: u8,
}

/// What an open transaction did.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Unit by unit; empty if it cannot be replayed.
    pub units: Vec<Stored>,
    bytes: usize,
    /// Why it cannot be replayed, if so.
    pub obstacle: Option<&'static str>,
    /// It runs on a standby.
    pub is_on_standby: bool,
    /// It may have acted outside of the database.
    pub has_reached_out: bool,
}

impl Transaction {
    /// One that cannot be replayed from its beginning.
    pub fn obstructed(obstacle: &'static str, is_on_standby: bool) -> Transaction {
        Transaction {
            obstacle: Some(obstacle),
            is_on_standby,
            ..Transaction::default()
        }
    }

    /// Another unit was answered.
    pub fn store(&mut self, unit: &Unit, status: u8, limit_bytes: usize) {
        if self.obstacle.is_some() {
            return;
        }
        self.bytes += unit.bytes.len();
        if unit.facts.cannot_repeat {
            self.obstruct("a statement may have had effects outside of the transaction");
        } else if unit.is_streamed {
            self.obstruct("an answer was too large to be compared");
        } else if unit.is_cut || self.bytes > limit_bytes {
            self.obstruct("its statements are longer than the proxy keeps");
        } else {
            self.units.push(Stored {
                bytes: Bytes::copy_from_slice(&unit.bytes),
                answered: unit.answered,
                status,
            });
        }
    }

    fn obstruct(&mut self, obstacle: &'static str) {
        self.obstacle = Some(obstacle);
        self.units = Vec::new();
    }
}
