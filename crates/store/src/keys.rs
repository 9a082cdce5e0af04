//! How the store's nouns become engine keys, and how a block is laid out as a value.
//!
//! Invariant: keys are big-endian and fixed in width, so that byte order is the order of
//! (volume, file, block, generation) and every prefix of that tuple is one contiguous range.

use bytes::{BufMut, Bytes, BytesMut};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version};

/// A volume's short number inside this zone; names are too long to repeat in every key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeId(pub u32);

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

/// One version of one block as it is kept: `version | crc32c of the data | data`, in one allocation
/// that the engine and the reply share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub version: Version,
    pub checksum: u32,
    pub data: Bytes,
}

/// Bytes in front of the data.
pub(crate) const HEAD_BYTES: usize = 16;

impl Stored {
    /// The engine value. The one copy of the data between socket and engine.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEAD_BYTES + self.data.len());
        out.put_u32(self.version.epoch.0);
        out.put_u64(self.version.seq);
        out.put_u32(self.checksum);
        out.put_slice(&self.data);
        out.freeze()
    }

    /// Splits an engine value without copying; `None` if it is too short to be one.
    pub fn decode(value: Bytes) -> Option<Stored> {
        if value.len() < HEAD_BYTES {
            return None;
        }
        Some(Stored {
            version: Version {
                epoch: Epoch(u32_at(&value, 0)),
                seq: u64_at(&value, 4),
            },
            checksum: u32_at(&value, 12),
            data: value.slice(HEAD_BYTES..),
        })
    }

    /// Whether the data is what was written.
    pub fn is_intact(&self) -> bool {
        crc32c::crc32c(&self.data) == self.checksum
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
