//! Where things are in the model's tables, and what bytes mean.
//!
//! Partitions are the client's own: a chunk of a file, the notes of a file's chunks, a record. Numbers are small, so a
//! row's block and generation fit into one.

use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::simulation::history::{Content, NOTHING, RecordId};

use super::model::{Cell, Place, Query, Timestamp};
use crate::row::{self, Chunk};

/// Bytes of a block: one number.
pub const BLOCK_BYTES: u32 = 8;
/// Blocks of a chunk then.
const CHUNK_BLOCKS: u64 = 1 << 17;

/// Blocks that keep one version, and blocks with generations: few, so that operations meet.
pub const SINGLES: FileId = FileId(2);
pub const DATA: FileId = FileId(9);
pub const KEYS: u64 = 3;
/// The log of commits, a block for each.
pub const LOG: FileId = FileId(3);

/// The record that names the last seal, and another one.
pub const SEALS: RecordId = 0;
pub const OTHER: RecordId = 1;

const RECORDS: u64 = 1 << 63;
const NOTES: u64 = 1 << 62;
/// Volumes below, by how many there are above.
const LEVEL_SHIFT: u32 = 56;
const LEVELS: u64 = 3 << LEVEL_SHIFT;
const CHUNK_BITS: u32 = 40;
const EPOCH_BITS: u32 = 16;
const NUMBER_BITS: u32 = 16;
const BLOCK_SHIFT: u32 = EPOCH_BITS + NUMBER_BITS;

/// A block of a file, a few of them in each chunk.
pub fn key(file: FileId, number: u64) -> BlockKey {
    BlockKey::new(file, number * (CHUNK_BLOCKS / 4))
}

pub fn epoch_of(timestamp: Timestamp) -> Epoch {
    row::version(timestamp).epoch
}

pub fn partition_of((file, chunk): Chunk) -> u64 {
    file.0 << CHUNK_BITS | chunk
}

fn number_of(generation: Generation) -> u64 {
    let epoch = u64::from(generation.epoch.0).min((1 << EPOCH_BITS) - 1);
    let number = u64::from(generation.number).min((1 << NUMBER_BITS) - 1);
    epoch << NUMBER_BITS | number
}

/// The row of a block in a generation.
pub fn row_of(block: u64, generation: Generation) -> u64 {
    (block % CHUNK_BLOCKS) << BLOCK_SHIFT | number_of(generation)
}

/// Block and generation of a row of a chunk.
pub fn of_row(chunk: u64, row: u64) -> (u64, Generation) {
    let block = chunk * CHUNK_BLOCKS + (row >> BLOCK_SHIFT);
    let generation = Generation {
        epoch: Epoch((row >> NUMBER_BITS) as u32 & ((1 << EPOCH_BITS) - 1)),
        number: row as u32 & ((1 << NUMBER_BITS) - 1),
    };
    (block, generation)
}

/// The row of a block in a generation.
pub fn place_of(key: BlockKey, generation: Generation) -> Place {
    let chunk = row::chunk_of(key.block.0, BLOCK_BYTES);
    Place {
        partition: partition_of((key.file, chunk)),
        row: row_of(key.block.0, generation),
    }
}

/// The same of the volume below with this place among them.
pub fn place_below(level: usize, key: BlockKey, generation: Generation) -> Place {
    let chunk = row::chunk_of(key.block.0, BLOCK_BYTES);
    Place {
        partition: partition_below(level, (key.file, chunk)),
        row: row_of(key.block.0, generation),
    }
}

pub fn partition_below(level: usize, chunk: Chunk) -> u64 {
    partition_of(chunk) | (level as u64 + 1) << LEVEL_SHIFT
}

/// The block and generation of a row, if it is one of a block of the volume itself.
pub fn block_of(place: Place) -> Option<(BlockKey, Generation)> {
    if place.partition & (RECORDS | NOTES | LEVELS) != 0 {
        return None;
    }
    let chunk = place.partition & ((1 << CHUNK_BITS) - 1);
    let (block, generation) = of_row(chunk, place.row);
    let file = FileId(place.partition >> CHUNK_BITS);
    Some((BlockKey::new(file, block), generation))
}

/// The row that notes that a file has a chunk.
pub fn place_of_note((file, chunk): Chunk) -> Place {
    Place {
        partition: NOTES | file.0,
        row: chunk,
    }
}

pub fn place_of_record(record: RecordId) -> Place {
    Place {
        partition: RECORDS | u64::from(record),
        row: 0,
    }
}

/// A record's name, and back.
pub fn name_of(record: RecordId) -> String {
    record.to_string()
}

pub fn record_of(name: &str) -> RecordId {
    name.parse().expect("records are named by number")
}

/// One row only.
pub fn exactly(place: Place) -> Query {
    Query {
        partition: place.partition,
        from: place.row,
        to: place.row,
        all: false,
    }
}

/// The last row of a block up to this one.
pub fn up_to(last: Place) -> Query {
    Query {
        from: last.row >> BLOCK_SHIFT << BLOCK_SHIFT,
        ..exactly(last)
    }
}

/// All rows of a partition.
pub fn whole(partition: u64) -> Query {
    Query {
        partition,
        from: 0,
        to: u64::MAX,
        all: true,
    }
}

/// A block's bytes.
pub fn bytes(content: Content) -> Vec<u8> {
    content.to_be_bytes().to_vec()
}

/// What a row's bytes are.
pub fn content(cell: Option<&Cell>) -> Content {
    of_bytes(cell.and_then(|cell| cell.value.as_deref()))
}

/// What a block's bytes are; none are nothing.
pub fn of_bytes(value: Option<&[u8]>) -> Content {
    let bytes = value.and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(NOTHING, Content::from_be_bytes)
}
