//! Disk read tracking: which blocks the machine has read since the last checkpoint, by what they hold.
//!
//! What the guest reads arrives in its memory, so the page that was written equals the block. Pages are found by content, and compared
//! byte for byte: QEMU does not say which page a read went to.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::BLOCK_BYTES;

/// Blocks that were read and not written since.
#[derive(Debug, Default)]
pub struct Reads {
    by_contents: HashMap<u64, u64>,
    by_block: HashMap<u64, (u64, Box<[u8]>)>,
}

impl Reads {
    /// So many are remembered, 64 MB; what is read beyond that is sent as any page.
    pub const MOST: usize = 1 << 14;

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.by_block.len()
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.by_block.is_empty()
    }

    /// The machine read this.
    pub fn read(&mut self, offset: u64, bytes: &[u8]) {
        let block_bytes = BLOCK_BYTES as u64;
        let skip = (offset.next_multiple_of(block_bytes) - offset) as usize;
        let first = offset.div_ceil(block_bytes);
        for (at, block) in bytes
            .get(skip..)
            .unwrap_or_default()
            .chunks_exact(BLOCK_BYTES)
            .enumerate()
        {
            let (number, hash) = (first + at as u64, xxh3_64(block));
            if self.len() >= Reads::MOST && !self.by_block.contains_key(&number) {
                return;
            }
            self.by_contents.insert(hash, number);
            self.by_block.insert(number, (hash, block.into()));
        }
    }

    /// The machine wrote there.
    pub fn written(&mut self, offset: u64, len: u64) {
        if self.by_block.is_empty() || len == 0 {
            return;
        }
        let block_bytes = BLOCK_BYTES as u64;
        for number in offset / block_bytes..=(offset + len - 1) / block_bytes {
            if let Some((hash, _)) = self.by_block.remove(&number)
                && self.by_contents.get(&hash) == Some(&number)
            {
                self.by_contents.remove(&hash);
            }
        }
    }

    /// A block that holds exactly this.
    pub fn find(&self, page: &[u8]) -> Option<u64> {
        if self.by_block.is_empty() {
            return None;
        }
        let number = *self.by_contents.get(&xxh3_64(page))?;
        let (_, block) = self.by_block.get(&number)?;
        (**block == *page).then_some(number)
    }
}
