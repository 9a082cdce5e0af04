//! How the store's nouns become engine keys, and how a block is laid out as a value.
//!
//! Invariant: keys are big-endian and fixed in width, so that byte order is the order of
//! (volume, file, block, generation) and every prefix of that tuple is one contiguous range.

use std::ops::Bound;

use bytes::{BufMut, Bytes, BytesMut};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version};
use dax::wire::{StoredBlock, StoredRecord};

/// A volume's short number inside this zone; names are too long to repeat in every key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeId(pub u32);

impl VolumeId {
    /// No volume has it: for what belongs to none.
    pub const NONE: VolumeId = VolumeId(0);
}

/// Where one version of one block lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub volume: VolumeId,
    pub key: BlockKey,
    pub generation: Generation,
}

/// Bytes of an encoded [`Slot`].
pub(crate) const SLOT_BYTES: usize = 28;

impl Slot {
    /// The engine key.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        out[..4].copy_from_slice(&self.volume.0.to_be_bytes());
        out[4..12].copy_from_slice(&self.key.file.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.key.block.0.to_be_bytes());
        out[20..24].copy_from_slice(&self.generation.epoch.0.to_be_bytes());
        out[24..].copy_from_slice(&self.generation.number.to_be_bytes());
        out
    }

    /// Every slot of the blocks `from` to `to` (both included) of a file, as a range of engine keys.
    pub fn range(
        volume: VolumeId,
        (from, to): (BlockKey, BlockKey),
    ) -> (Bound<[u8; SLOT_BYTES]>, Bound<[u8; SLOT_BYTES]>) {
        let at = |key, generation| Slot {
            volume,
            key,
            generation,
        };
        (
            Bound::Included(at(from, Generation::SINGLE).encode()),
            Bound::Included(at(to, Generation::MAX).encode()),
        )
    }

    /// The slot of an engine key; `None` if it is no such key.
    pub fn decode(key: &[u8]) -> Option<Slot> {
        let key: &[u8; SLOT_BYTES] = key.try_into().ok()?;
        Some(Slot {
            volume: VolumeId(u32_at(key, 0)),
            key: BlockKey {
                file: FileId(u64_at(key, 4)),
                block: BlockIndex(u64_at(key, 12)),
            },
            generation: Generation {
                epoch: Epoch(u32_at(key, 20)),
                number: u32_at(key, 24),
            },
        })
    }
}

/// Bytes in front of the data in an engine value: version and checksum.
pub(crate) const HEAD_BYTES: usize = 16;

/// The engine value of a block: `version | checksum | data` in one allocation, which the engine
/// keeps. The one copy of the data between socket and engine.
pub(crate) fn encode_block(version: Version, checksum: u32, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + data.len());
    put_version(&mut out, version);
    out.put_u32(checksum);
    out.put_slice(data);
    out.freeze()
}

/// Splits an engine value without copying; `None` if it is too short to be one.
pub(crate) fn decode_block(generation: Generation, value: Bytes) -> Option<StoredBlock> {
    if value.len() < HEAD_BYTES {
        return None;
    }
    Some(StoredBlock {
        version: version_at(&value),
        generation,
        checksum: u32_at(&value, 12),
        data: value.slice(HEAD_BYTES..),
    })
}

/// The value of a record: `version | 1 if it has a value, 0 for a tombstone | value`.
pub(crate) fn encode_record(record: &StoredRecord) -> Bytes {
    let value = record.value.as_deref().unwrap_or_default();
    let mut out = BytesMut::with_capacity(13 + value.len());
    put_version(&mut out, record.version);
    out.put_u8(u8::from(record.value.is_some()));
    out.put_slice(value);
    out.freeze()
}

/// The record of an engine value; `None` if it is too short to be one.
pub(crate) fn decode_record(value: Bytes) -> Option<StoredRecord> {
    let has_value = *value.get(12)?;
    Some(StoredRecord {
        version: version_at(&value),
        value: (has_value == 1).then(|| value.slice(13..)),
    })
}

fn put_version(out: &mut BytesMut, version: Version) {
    out.put_u32(version.epoch.0);
    out.put_u64(version.seq);
}

fn version_at(bytes: &[u8]) -> Version {
    Version {
        epoch: Epoch(u32_at(bytes, 0)),
        seq: u64_at(bytes, 4),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..at + 4].try_into();
    u32::from_be_bytes(word.expect("a slice of four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].try_into();
    u64::from_be_bytes(word.expect("a slice of eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slots() -> impl Strategy<Value = Slot> {
        // Few values, so that neighbours and ties are common.
        let word = prop_oneof![0u64..4, Just(255), Just(256), Just(u64::MAX)];
        (0u32..3, word.clone(), word, 0u32..3, 0u32..300).prop_map(|(v, file, block, e, n)| Slot {
            volume: VolumeId(v),
            key: BlockKey::new(FileId(file), block),
            generation: Generation {
                epoch: Epoch(e),
                number: n,
            },
        })
    }

    proptest! {
        #[test]
        fn byte_order_is_the_order_of_slots(a in slots(), b in slots()) {
            prop_assert_eq!(a.encode().cmp(&b.encode()), a.cmp(&b));
            prop_assert_eq!(Slot::decode(&a.encode()), Some(a));
        }
    }

    #[test]
    fn values_come_back_as_they_went() {
        let version = Version {
            epoch: Epoch(7),
            seq: 1 << 39,
        };
        let value = encode_block(version, 99, b"data");
        let block = decode_block(Generation::SINGLE, value).unwrap();
        assert_eq!((block.version, block.checksum), (version, 99));
        assert_eq!(&block.data[..], b"data");
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"x"))] {
            let record = StoredRecord { version, value };
            assert_eq!(decode_record(encode_record(&record)), Some(record));
        }
        assert!(decode_block(Generation::SINGLE, Bytes::from_static(b"short")).is_none());
        assert!(decode_record(Bytes::from_static(b"short")).is_none());
    }
}
