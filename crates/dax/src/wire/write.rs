//! A block on its way to a replica, whole or behind what the replica has.

use bytes::Bytes;

use super::checksum;
use super::codec::{Decoder, Encoder};
use crate::contents::Base;
use crate::error::Result;
use crate::ids::{BlockKey, Epoch, Generation, Version};

/// One block on its way to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockWrite {
    /// The epoch under whose authority it is written; may be above the version's (repair).
    pub epoch: Epoch,
    /// Block that is written.
    pub key: BlockKey,
    /// The generation it belongs to.
    pub generation: Generation,
    /// Version of the write.
    pub version: Version,
    /// [`checksum`](super::checksum) of all of it.
    pub checksum: u32,
    /// Beginning of the contents, if that is not sent. A replica that does not have it refuses the write as
    /// `NotFound`, and is sent the whole. Since protocol 4.
    pub base: Option<Base>,
    /// One whole block, or what follows the base.
    pub data: Bytes,
}

impl BlockWrite {
    /// True if the contents are what the writer sent; of a write with a base, that is not known before it is
    /// [`completed`](Self::completed).
    pub fn is_intact(&self) -> bool {
        self.base.is_some()
            || self.checksum == checksum(self.key, self.generation, self.version, &self.data)
    }

    /// The bytes of the contents, with what is not sent.
    pub fn whole_bytes(&self) -> usize {
        self.data.len() + self.base.map_or(0, |base| base.bytes as usize)
    }

    /// The whole write, if `stored` is what the base means: whatever else it is, the checksum is another one.
    pub fn completed(self, stored: &[u8]) -> Option<BlockWrite> {
        let beginning = stored.get(..self.base?.bytes as usize)?;
        let whole = BlockWrite {
            base: None,
            data: [beginning, &self.data].concat().into(),
            ..self
        };
        whole.is_intact().then_some(whole)
    }
}

impl BlockWrite {
    pub(super) fn encode(&self, out: &mut Encoder<'_>) -> Bytes {
        out.epoch(self.epoch);
        out.key(self.key);
        out.generation(self.generation);
        out.version(self.version);
        out.u32(self.checksum);
        if let Some(base) = self.base {
            out.generation(base.generation);
            out.u32(base.bytes);
        }
        out.len(self.data.len());
        self.data.clone()
    }

    pub(super) fn decode(d: &mut Decoder, has_base: bool) -> Result<BlockWrite> {
        Ok(BlockWrite {
            epoch: d.epoch()?,
            key: d.key()?,
            generation: d.generation()?,
            version: d.version()?,
            checksum: d.u32()?,
            base: match has_base {
                true => Some(Base {
                    generation: d.generation()?,
                    bytes: d.u32()?,
                }),
                false => None,
            },
            data: d.bytes()?,
        })
    }
}
