//! What clients have in common: where things are in the tables, what bytes mean, what a reply is for.

use dax::ids::{BlockKey, Epoch, FileId, Generation, Version};
use dax::simulation::history::{Content, NOTHING, OpNumber, RecordId};

use dax::writer::pending::Seq;

use super::model::{Cell, Place, Query, Timestamp};

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

/// What a request was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A serial read to see whether the owner is alive.
    Watch,
    Claim,
    ClaimLook,
    Renewal,
    Release,
    /// A batch of the writer, by its first row.
    Write(Seq),
    /// A record of this version.
    Put(Seq),
    /// Read(1).
    ReadOne(OpNumber),
    /// A quorum read.
    Read(OpNumber),
    /// A delete, which nobody waits for.
    Delete,
}

pub fn version(epoch: Epoch, seq: u64) -> Timestamp {
    // Epochs stay below 2^23.
    (i64::from(epoch.0) << 40) | seq as i64
}

pub fn epoch_of(timestamp: Timestamp) -> Epoch {
    Epoch((timestamp >> 40) as u32)
}

/// The version that a timestamp stands for.
pub fn version_of(timestamp: Timestamp) -> Version {
    let seq = timestamp as u64 & ((1 << 40) - 1);
    Version {
        epoch: epoch_of(timestamp),
        seq,
    }
}

fn row_of(generation: Generation) -> u64 {
    let epoch = u64::from(generation.epoch.0.min(u32::MAX >> 1));
    epoch << 32 | u64::from(generation.number)
}

fn generation_of(row: u64) -> Generation {
    Generation {
        epoch: Epoch((row >> 32) as u32),
        number: row as u32,
    }
}

/// The row of a block in a generation.
pub fn place_of(key: BlockKey, generation: Generation) -> Place {
    Place {
        partition: key.file.0 << 32 | key.block.0,
        row: row_of(generation),
    }
}

/// The block and generation of a row, if it is one of a block.
pub fn block_of(place: Place) -> Option<(BlockKey, Generation)> {
    if place.partition & RECORDS != 0 {
        return None;
    }
    let key = BlockKey::new(FileId(place.partition >> 32), place.partition & 0xffff_ffff);
    Some((key, generation_of(place.row)))
}

pub fn place_of_record(record: RecordId) -> Place {
    Place {
        partition: RECORDS | u64::from(record),
        row: 0,
    }
}

/// One row only.
pub fn exactly(place: Place) -> Query {
    Query {
        partition: place.partition,
        from: place.row,
        to: place.row,
    }
}

/// The last row of a block in these generations.
pub fn between(key: BlockKey, from: Generation, to: Generation) -> Query {
    Query {
        partition: place_of(key, from).partition,
        from: row_of(from),
        to: row_of(to),
    }
}

/// What is stored of contents; nothing is a row without bytes.
pub fn bytes(content: Content) -> Vec<u8> {
    match content {
        NOTHING => Vec::new(),
        content => content.to_be_bytes().to_vec(),
    }
}

/// What a row's bytes are.
pub fn content(cell: Option<&Cell>) -> Content {
    of_bytes(cell.and_then(|cell| cell.value.as_deref()))
}

/// What a block's bytes are.
pub fn of_bytes(value: Option<&[u8]>) -> Content {
    let bytes = value.and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(NOTHING, Content::from_be_bytes)
}

/// The generation that a reply's row is in.
pub fn found_in(row: Option<&(u64, Cell)>) -> Generation {
    row.map_or(Generation::SINGLE, |(row, _)| generation_of(*row))
}
