//! Form of blocks, versions and generations in rows (C1, C2 of docs/understand/protocol-cassandra.md).
//!
//! Pure. Invariant: the order of timestamps is the order of versions, the order of the generation column
//! that of generations.

use bytes::{Bytes, BytesMut};
use dax::ids::{BlockKey, Epoch, FileId, Generation, Version};
use dax::storage::Block;
use dax::wire::checksum;

/// Bits of a timestamp below the epoch.
const SEQ_BITS: u32 = 40;
/// The first `seq` that does not fit any more.
pub const SEQ_END: u64 = 1 << SEQ_BITS;
/// Bytes of blocks in one partition.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes in front of the contents in a cell: their checksum.
const HEAD_BYTES: usize = 4;

/// The timestamp of a version.
pub fn timestamp(version: Version) -> i64 {
    debug_assert!(version.seq < SEQ_END && version.epoch <= Epoch::MAX);
    // An epoch has 23 bits, so this is never negative.
    (i64::from(version.epoch.0) << SEQ_BITS) | version.seq as i64
}

/// The version of a timestamp.
pub fn version(timestamp: i64) -> Version {
    let bits = timestamp.max(0) as u64;
    Version {
        epoch: Epoch((bits >> SEQ_BITS) as u32),
        seq: bits & (SEQ_END - 1),
    }
}

/// The value of the generation column.
pub fn generation_column(generation: Generation) -> i64 {
    if generation.epoch > Epoch::MAX {
        return i64::MAX;
    }
    (i64::from(generation.epoch.0) << 32) | i64::from(generation.number)
}

/// What to delete of a block of which `dropped` of `stored` is no longer needed: ranges of the column, ends
/// included. `sealed` is the end of the image that ends first: whatever any image has up to there was synced
/// before, so it is in `stored`, and what is under way in those generations belongs to no image. Generations before `own` are those of
/// volumes below, of which copies may come.
///
/// Whatever lies below the oldest generation that is kept goes as one range. It covers the range of the time
/// before, which a compaction then drops; a tombstone for each row would be kept for `gc_grace_seconds`.
pub fn ranges_to_delete(
    stored: &[Generation],
    dropped: &[Generation],
    sealed: Generation,
    own: Generation,
) -> Vec<(i64, i64)> {
    let kept = stored.iter().filter(|g| !dropped.contains(g));
    let oldest = kept.filter(|g| **g > Generation::SINGLE).min().copied();
    let oldest = oldest.filter(|g| *g <= sealed).unwrap_or_default();
    let in_range = |g: &&Generation| own <= **g && **g < oldest;
    let (below, between): (Vec<Generation>, Vec<_>) = dropped.iter().partition(in_range);
    let first = generation_column(own).max(generation_column(Generation::SINGLE) + 1);
    let range = (!below.is_empty()).then(|| (first, generation_column(oldest) - 1));
    let rows = between.into_iter().map(generation_column);
    range.into_iter().chain(rows.map(|g| (g, g))).collect()
}

/// The generation that a column's value stands for.
pub fn generation(column: i64) -> Generation {
    Generation {
        epoch: Epoch((column >> 32) as u32),
        number: column as u32,
    }
}

/// The value of the file column.
pub fn file_column(file: FileId) -> i64 {
    // An id has 59 bits.
    file.0 as i64
}

/// The file of a column's value.
pub fn file(column: i64) -> FileId {
    FileId(column as u64)
}

/// Which partition of its file a block is in.
pub fn chunk_of(block: u64, block_size_bytes: u32) -> u64 {
    block / blocks_per_chunk(block_size_bytes)
}

/// Blocks in one partition.
pub fn blocks_per_chunk(block_size_bytes: u32) -> u64 {
    CHUNK_BYTES / u64::from(block_size_bytes)
}

/// A partition: a file and the number of the chunk in it.
pub type Chunk = (FileId, u64);

/// A row to be written.
#[derive(Debug, Clone)]
pub struct Row {
    /// Block that the row belongs to.
    pub key: BlockKey,
    /// In which generation.
    pub generation: Generation,
    /// Version of the block, by which the newest row wins.
    pub version: Version,
    /// Over all of these and the contents.
    pub checksum: u32,
    /// The contents; none say that there is no block.
    pub data: Bytes,
}

/// A version of a block as it was read. Without contents it says that there is no block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Version of the block that was read.
    pub version: Version,
    /// The generation it was written in.
    pub generation: Generation,
    /// The contents; empty if the block is absent.
    pub data: Bytes,
}

impl Stored {
    /// What a cell says; none if it fails its checksum.
    pub fn decode(
        key: BlockKey,
        generation: Generation,
        version: Version,
        mut cell: Bytes,
    ) -> Option<Stored> {
        if cell.len() < HEAD_BYTES {
            return None;
        }
        let data = cell.split_off(HEAD_BYTES);
        let sum = checksum(key, generation, version, &data);
        (cell[..] == sum.to_le_bytes()).then_some(Stored {
            version,
            generation,
            data,
        })
    }

    /// The block, if there is one.
    pub fn into_block(self) -> Option<Block> {
        (!self.data.is_empty()).then_some(Block {
            version: self.version,
            generation: self.generation,
            data: self.data,
        })
    }
}

/// A pending write as a read shows it.
pub fn present(block: Block) -> Option<Block> {
    (!block.data.is_empty()).then_some(block)
}

/// The two parts of a cell.
pub fn cell_parts(checksum: u32, data: &Bytes) -> ([u8; HEAD_BYTES], &[u8]) {
    (checksum.to_le_bytes(), data)
}

/// A record as a cell: one byte that says that it is there, then the value. A removed one is empty.
pub fn record_cell(value: Option<&Bytes>) -> Bytes {
    let Some(value) = value else {
        return Bytes::new();
    };
    let mut cell = BytesMut::with_capacity(value.len() + 1);
    cell.extend_from_slice(&[1]);
    cell.extend_from_slice(value);
    cell.freeze()
}

/// The value of a record's cell.
pub fn record_value(mut cell: Bytes) -> Option<Bytes> {
    (!cell.is_empty()).then(|| cell.split_off(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(epoch: u32, seq: u64) -> Version {
        Version {
            epoch: Epoch(epoch),
            seq,
        }
    }

    fn g(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    #[test]
    fn timestamps_are_ordered_as_versions() {
        let versions = [
            v(0, 0),
            v(0, 1),
            v(0, SEQ_END - 1),
            v(1, 0),
            v(7, 12),
            v(Epoch::MAX.0, SEQ_END - 1),
        ];
        assert!(versions.map(timestamp).is_sorted());
        assert!(timestamp(versions[5]) > 0);
        for one in versions {
            assert_eq!(version(timestamp(one)), one);
        }
    }

    #[test]
    fn generations_keep_their_order_and_reads_of_the_latest_see_all() {
        let generations = [
            g(0, 0),
            g(1, 0),
            g(1, u32::MAX),
            g(2, 0),
            g(Epoch::MAX.0, 3),
        ];
        assert!(generations.map(generation_column).is_sorted());
        for one in generations {
            assert_eq!(generation(generation_column(one)), one);
            assert!(generation_column(one) < generation_column(Generation::MAX));
        }
    }

    #[test]
    fn a_cell_is_believed_only_in_its_place() {
        let (key, data) = (BlockKey::new(FileId(9), 3), Bytes::from_static(b"page"));
        let sum = checksum(key, g(1, 2), v(1, 5), &data);
        let (head, body) = cell_parts(sum, &data);
        let cell = Bytes::from([&head[..], body].concat());
        let decode =
            |key, generation, version| Stored::decode(key, generation, version, cell.clone());
        assert_eq!(decode(key, g(1, 2), v(1, 5)).unwrap().data, data);
        assert_eq!(decode(key, g(1, 3), v(1, 5)), None);
        assert_eq!(decode(key, g(1, 2), v(1, 6)), None);
        assert_eq!(decode(BlockKey::new(FileId(9), 4), g(1, 2), v(1, 5)), None);
        assert_eq!(Stored::decode(key, g(1, 2), v(1, 5), Bytes::new()), None);
    }

    #[test]
    fn removed_records_differ_from_empty_ones() {
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"x"))] {
            assert_eq!(record_value(record_cell(value.as_ref())), value);
        }
    }

    #[test]
    fn a_chunk_is_a_mebibyte() {
        assert_eq!(chunk_of(127, 8192), 0);
        assert_eq!(chunk_of(128, 8192), 1);
        assert_eq!(blocks_per_chunk(65536), 16);
    }

    #[test]
    fn rows_below_the_oldest_kept_generation_go_as_one_range() {
        let g = |number| Generation {
            epoch: Epoch(1),
            number,
        };
        let column = |number| generation_column(g(number));
        let stored: Vec<_> = [0, 1, 2, 3, 4, 5, 6].map(g).to_vec();
        let dropped = [g(1), g(2), g(4)];
        assert_eq!(
            ranges_to_delete(&stored[1..], &dropped, g(3), Generation::SINGLE),
            [(1, column(3) - 1), (column(4), column(4))]
        );
        // Nothing that is kept is sealed: rows that were not seen may be on their way.
        let rows = [1, 2, 4].map(|n| (column(n), column(n)));
        assert_eq!(
            ranges_to_delete(&stored[1..], &dropped, g(2), Generation::SINGLE),
            rows
        );
        assert!(ranges_to_delete(&stored, &[], g(3), Generation::SINGLE).is_empty());
        // A block that keeps one version is not in any range.
        let with_single = [Generation::SINGLE, g(1), g(3)];
        let ranges = ranges_to_delete(&with_single, &[g(1)], g(3), Generation::SINGLE);
        assert_eq!(ranges, [(1, column(3) - 1)]);
        assert!(generation_column(Generation::SINGLE) < 1);
        // Of generations of a volume below, copies may be on their way.
        let ranges = ranges_to_delete(&stored[1..], &dropped, g(3), g(2));
        let one = |number| (column(number), column(number));
        assert_eq!(ranges, [(column(2), column(3) - 1), one(1), one(4)]);
    }
}
