//! The journal: how the namespace becomes durable.
//!
//! One byte stream in the blocks of [`crate::namespace::JOURNAL`], of records `length, chained
//! CRC-32C, batch of operations` ([`frame`]). The checksum of each record is seeded with that of
//! the record before it, so whatever a dead epoch left beyond the end does not read as a record.
//! A crash loses a suffix, never a part of a batch.
//!
//! [`writer`] is the active's side, [`tail`] the readers': a standby follows the positions the
//! active announces, a successor reads with ReadPromote (DAX 5) until the chain breaks.

pub mod buffer;
pub mod frame;
pub mod tail;
pub mod writer;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::tail::JournalTail;
pub use self::writer::JournalWriter;

/// A byte offset in the journal, at the end of a record.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct JournalPos(pub u64);

impl JournalPos {
    /// Before every record.
    pub const START: JournalPos = JournalPos(0);

    /// The block this position is in, and the offset there.
    pub fn block(self, block_size_bytes: u64) -> (u64, usize) {
        (
            self.0 / block_size_bytes,
            (self.0 % block_size_bytes) as usize,
        )
    }
}

impl fmt::Display for JournalPos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "j{}", self.0)
    }
}

/// Where a reader or writer of the stream stands: a position and the checksum it continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chained {
    /// The end of the last record.
    pub at: JournalPos,
    /// The checksum of that record.
    pub chain: u32,
}

impl Chained {
    /// Before the first record.
    pub const START: Chained = Chained {
        at: JournalPos::START,
        chain: 0x5544_5354,
    };
}
