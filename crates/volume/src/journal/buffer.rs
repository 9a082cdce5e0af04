//! The writer's pure half: collects operations, makes records and blocks of them, and remembers
//! which inode needs the journal durable up to where.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use dax::ids::{BlockIndex, FileId};

use super::{Chained, JournalPos, frame};
use crate::error::{Error, Result};
use crate::namespace::op::{self, Op};

/// A batch is closed when it has so many operations, so that its record is far below what is read as one
/// ([`frame::MAX_PAYLOAD_BYTES`]): an operation has a few KiB at most.
const BATCH_OPS_MAX: usize = 16 << 10;

/// Journal bytes not yet handed to the storage, and the batch being collected.
///
/// ```text
///   synced <= written <= end   |  open batch (no position yet)
/// ```
#[derive(Debug)]
pub struct JournalBuffer {
    block_size_bytes: usize,
    end: Chained,
    /// Whole and partial blocks from `stream_block` on; ends at `end`.
    stream: Vec<u8>,
    stream_block: u64,
    written: JournalPos,
    open: Vec<Op>,
    /// Where in `open` the last operation on a file's size is, if it may still be replaced.
    sizes: HashMap<FileId, usize>,
    open_touched: HashSet<FileId>,
    touched: HashMap<FileId, JournalPos>,
}

/// Blocks to write, and the position that is durable once they are.
#[derive(Debug)]
pub struct Blocks {
    /// The end of the last record in them.
    pub end: JournalPos,
    /// Whole blocks, the last one filled up with zeros.
    pub blocks: Vec<(BlockIndex, Bytes)>,
}

impl JournalBuffer {
    /// Continues a stream at `end`; `tail` is what the block of `end` holds before it.
    pub fn new(block_size_bytes: usize, end: Chained, tail: Vec<u8>) -> JournalBuffer {
        let (block, offset) = end.at.block(block_size_bytes as u64);
        assert_eq!(tail.len(), offset, "the tail block is known up to the end");
        JournalBuffer {
            block_size_bytes,
            end,
            stream: tail,
            stream_block: block,
            written: end.at,
            open: Vec::new(),
            sizes: HashMap::new(),
            open_touched: HashSet::new(),
            touched: HashMap::new(),
        }
    }

    /// Adds one operation to the open batch. `also` is an inode besides those the operation names
    /// whose fsync must cover it.
    pub fn append(&mut self, op: Op, also: Option<FileId>) {
        if self.open.len() >= BATCH_OPS_MAX {
            self.frame();
        }
        self.push(op, also);
    }

    /// Adds operations that must happen together, as one record of their own, and returns its end.
    ///
    /// # Errors
    /// `Invalid` if they are too long for one; nothing is added then.
    pub fn append_record(&mut self, ops: Vec<Op>) -> Result<JournalPos> {
        self.frame();
        for op in ops {
            self.push(op, None);
        }
        let payload = op::encode(&self.open);
        if payload.len() > frame::MAX_PAYLOAD_BYTES {
            self.open.clear();
            self.sizes.clear();
            self.open_touched.clear();
            return Err(Error::Invalid(
                "more in one step than a journal record holds",
            ));
        }
        self.close(&payload);
        Ok(self.end.at)
    }

    fn push(&mut self, op: Op, also: Option<FileId>) {
        let touched = op.touched();
        if let Op::SetSize { id, .. } = op {
            if let Some(at) = self.sizes.get(&id) {
                self.open[*at] = op;
                return;
            }
            self.sizes.insert(id, self.open.len());
        } else {
            for id in touched.iter().flatten().chain(&also) {
                self.sizes.remove(id);
            }
        }
        self.open_touched
            .extend(touched.into_iter().flatten().chain(also));
        self.open.push(op);
    }

    /// Closes the open batch into a record, if it holds anything. Returns the end of the stream.
    pub fn frame(&mut self) -> Chained {
        if !self.open.is_empty() {
            self.close(&op::encode(&self.open));
        }
        self.end
    }

    /// The open batch, encoded, becomes a record.
    fn close(&mut self, payload: &[u8]) {
        frame::write(&mut self.stream, &mut self.end, payload);
        self.open.clear();
        self.sizes.clear();
        let at = self.end.at;
        self.touched
            .extend(self.open_touched.drain().map(|id| (id, at)));
    }

    /// The end of the last closed record.
    pub fn framed_end(&self) -> JournalPos {
        self.end.at
    }

    /// How far the journal must be durable for everything that touched `file`; `None` if it is.
    pub fn target(&mut self, file: FileId) -> Option<JournalPos> {
        if self.open_touched.contains(&file) {
            self.frame();
        }
        self.touched.get(&file).copied()
    }

    /// Bytes and operations that wait for a flush, about.
    pub fn backlog_bytes(&self) -> u64 {
        self.end.at.0 - self.written.0 + 64 * self.open.len() as u64
    }

    /// Takes what has to be written so that everything so far is stored.
    pub fn take_blocks(&mut self) -> Blocks {
        let end = self.frame().at;
        if end == self.written {
            return Blocks {
                end,
                blocks: Vec::new(),
            };
        }
        let block_size = self.block_size_bytes;
        let chunks = self.stream.chunks(block_size).zip(self.stream_block..);
        let blocks = chunks.map(|(chunk, block)| {
            let mut data = chunk.to_vec();
            data.resize(block_size, 0);
            (BlockIndex(block), Bytes::from(data))
        });
        let blocks = blocks.collect();
        let whole = self.stream.len() / block_size;
        self.stream.drain(..whole * block_size);
        self.stream_block += whole as u64;
        self.written = end;
        Blocks { end, blocks }
    }

    /// Everything up to `at` is durable.
    pub fn synced(&mut self, at: JournalPos) {
        self.touched.retain(|_, needed| *needed > at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::frame::Front;
    use crate::view::Timestamp;

    /// A longer record is written, and the journal ends before it for whoever reads it.
    // hazard: PAGE-11
    #[test]
    fn a_batch_that_nobody_flushes_becomes_several_records() {
        let mut buffer = JournalBuffer::new(4096, Chained::START, Vec::new());
        let ops = (0..BATCH_OPS_MAX as u64 + 1).map(|id| Op::SetSize {
            id: FileId(id),
            size: 1,
            at: Timestamp(1),
        });
        ops.for_each(|op| buffer.append(op, None));
        let end = buffer.take_blocks();
        let blocks = end.blocks.iter().flat_map(|(_, data)| data.iter().copied());
        let stream: Vec<u8> = blocks.collect();
        let (mut place, mut counts) = (Chained::START, Vec::new());
        while let Front::Record(payload) = frame::read(&stream[place.at.0 as usize..], &mut place) {
            counts.push(op::decode(payload).unwrap().len());
        }
        assert_eq!(counts, [BATCH_OPS_MAX, 1]);
    }
}
