//! What was written and read since the last checkpoint, in memory; and how long whoever writes waits for room.
//!
//! ```text
//!   room ── so many bytes ──▶ full: writes wait ── a checkpoint is begun, or nobody needs the journal any more ──▶ room
//! ```
//!
//! A standby that is slow, or a copy that takes long, thus slows the machine's disk down rather than fill the host's memory. Nobody waits
//! for ever: an active host gives a standby up that confirms nothing.
//!
//! Invariant: once a checkpoint is begun, writes do not wait until it has taken the journal: QEMU stops only after what was begun is done.

use super::{Contents, Reads, Write};

/// What a write takes beside its contents.
const WRITE_BYTES: u64 = 64;

/// What happened to the disk between two checkpoints.
#[derive(Debug, Default)]
pub struct Cut {
    /// In order.
    pub writes: Vec<Write>,
    /// What was read, and not written since.
    pub reads: Reads,
}

#[derive(Debug, Default)]
pub(super) struct Journal {
    records: bool,
    is_closed: bool,
    is_begun: bool,
    cut: Cut,
    bytes: u64,
    most: u64,
    waits: u64,
}

impl Journal {
    /// From now on, what happens is remembered; when it takes `most` bytes, whoever writes waits.
    pub(super) fn record(&mut self, most: u64) {
        let (is_closed, waits) = (self.is_closed, self.waits);
        *self = Journal {
            records: true,
            is_closed,
            most,
            waits,
            ..Journal::default()
        };
    }

    /// Nothing is remembered any more.
    pub(super) fn forget(&mut self) {
        self.record(0);
        self.records = false;
    }

    /// Nobody writes any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// A checkpoint is about to be made.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// Takes what there is.
    pub(super) fn cut(&mut self) -> Cut {
        self.is_begun = false;
        self.bytes = 0;
        std::mem::take(&mut self.cut)
    }

    /// Bytes that wait for the next checkpoint.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if whoever writes has to wait.
    pub(super) fn is_full(&self) -> bool {
        self.records && !self.is_closed && !self.is_begun && self.bytes >= self.most
    }

    /// Somebody waits.
    pub(super) fn waits(&mut self) {
        self.waits += 1;
    }

    /// How often somebody waited since this was asked last.
    pub(super) fn take_waits(&mut self) -> u64 {
        std::mem::take(&mut self.waits)
    }

    /// The machine has read this.
    pub(super) fn read(&mut self, offset: u64, bytes: &[u8]) {
        if self.records {
            self.cut.reads.read(offset, bytes);
        }
    }

    /// The machine has written this.
    pub(super) fn written(&mut self, write: Write) {
        if !self.records {
            return;
        }
        self.cut.reads.written(write.offset, write.len());
        self.bytes += WRITE_BYTES
            + match &write.contents {
                Contents::Bytes(bytes) | Contents::Blocks(bytes) => bytes.len() as u64,
                Contents::Zeros(_) => 0,
            };
        self.cut.writes.push(write);
    }
}
