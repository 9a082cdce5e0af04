//! A bounded cache of blocks as they are in an image, shared by everything that reads one.
//!
//! Entries carry their version, so truncation marks are applied when an entry is used, not when it
//! is stored. Filling after a read races with writers; [`BlockCache::ticket`] and
//! [`BlockCache::fill`] make a filler lose against any write or removal since its ticket.

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, Version};
use dax::storage::Block;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Options, OptionsBuilder, Weighter};

/// Shards of the counters that order fills against writes.
const SHARDS: usize = 256;
/// The part of a full cache in which what is new waits for its first use. Redo uses what is fetched for it much
/// later, and thousands of blocks are on their way to it.
const NEW_SHARE: f64 = 0.25;
/// What an entry takes besides its data, about.
const OVERHEAD_BYTES: u64 = 96;

type Key = (FileId, BlockIndex, Generation);

/// A cached block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Version that was read.
    pub version: Version,
    /// The generation it was written in.
    pub generation: Generation,
    /// Contents of the whole block.
    pub data: Bytes,
}

impl From<Block> for Cached {
    fn from(block: Block) -> Cached {
        Cached {
            version: block.version,
            generation: block.generation,
            data: block.data,
        }
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Cached> for ByBytes {
    fn weight(&self, _: &Key, value: &Cached) -> u64 {
        value.data.len() as u64 + OVERHEAD_BYTES
    }
}

/// The state of a block's shard when a read began.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

/// See the module. Keyed by file, block and the image or stretch of images that it is of
/// ([`Generation::MAX`] for the latest).
pub struct BlockCache {
    blocks: Cache<Key, Cached, ByBytes>,
    changes: Box<[Mutex<u64>]>,
}

impl BlockCache {
    /// A cache of about `bytes`, for blocks of `block_size_bytes`.
    pub fn new(bytes: u64, block_size_bytes: u32) -> BlockCache {
        let items = (bytes / u64::from(block_size_bytes)).max(16) as usize;
        BlockCache {
            blocks: Cache::with_options(
                options(items, bytes),
                ByBytes,
                <_>::default(),
                <_>::default(),
            ),
            changes: (0..SHARDS).map(|_| Mutex::new(0)).collect(),
        }
    }

    /// A block as of an image, or a stretch of images, called `image`.
    pub fn get(&self, key: BlockKey, image: Generation) -> Option<Cached> {
        self.blocks.get(&(key.file, key.block, image))
    }

    /// The same for one who only looks: it does not count as a use, which decides what stays when room is short.
    pub fn peek(&self, key: BlockKey, image: Generation) -> Option<Cached> {
        self.blocks.peek(&(key.file, key.block, image))
    }

    /// Gives up a block that nobody will read again, as if there had been no room for it.
    pub fn give_up(&self, key: BlockKey, image: Generation) {
        self.blocks.remove(&(key.file, key.block, image));
    }

    /// Every block that is there, with the end of its image.
    pub fn keys(&self) -> impl Iterator<Item = (BlockKey, Generation)> + '_ {
        let entries = self.blocks.iter();
        entries.map(|((file, block, image), _)| (BlockKey { file, block }, image))
    }

    /// How many blocks are there.
    pub fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Takes note of the moment before a read, for [`fill`](Self::fill).
    pub fn ticket(&self, key: BlockKey) -> Ticket {
        Ticket(*self.shard(key).lock())
    }

    /// Keeps what was read, unless the block was written or removed since the ticket.
    pub fn fill(&self, key: BlockKey, image: Generation, ticket: Ticket, block: Cached) {
        let changes = self.shard(key).lock();
        if *changes == ticket.0 {
            self.blocks.insert((key.file, key.block, image), block);
        }
    }

    /// True if the block was neither written nor removed since the ticket. False also if only another block of its
    /// shard was.
    pub fn is_current(&self, key: BlockKey, ticket: Ticket) -> bool {
        *self.shard(key).lock() == ticket.0
    }

    /// Keeps what was just written.
    pub fn write(&self, key: BlockKey, image: Generation, block: Cached) {
        let mut changes = self.shard(key).lock();
        *changes += 1;
        self.blocks.insert((key.file, key.block, image), block);
    }

    /// Forgets a block.
    pub fn remove(&self, key: BlockKey, image: Generation) {
        let mut changes = self.shard(key).lock();
        *changes += 1;
        self.blocks.remove(&(key.file, key.block, image));
    }

    fn shard(&self, key: BlockKey) -> &Mutex<u64> {
        let mix = (key.file.0 ^ key.block.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.changes[(mix >> 56) as usize % SHARDS]
    }
}

fn options(items: usize, bytes: u64) -> Options {
    let mut options = OptionsBuilder::new();
    options
        .estimated_items_capacity(items)
        .weight_capacity(bytes)
        .hot_allocation(1.0 - NEW_SHARE);
    options.build().expect("both capacities are given")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby's cache was full of what the active has in memory, and of what it fetched for redo ahead more than
    /// a thirtieth was gone again before redo came to it.
    #[test]
    fn a_full_cache_has_room_for_what_is_new() {
        const BLOCKS: u64 = 8192;
        const BYTES: u64 = 32;
        let each = BYTES + OVERHEAD_BYTES;
        let cache = BlockCache::new(BLOCKS * each, each as u32);
        let key = |block| BlockKey::new(FileId(9), block);
        let fill = |block| {
            let cached = Cached {
                version: Version::ZERO,
                generation: Generation::SINGLE,
                data: Bytes::from(vec![1; BYTES as usize]),
            };
            cache.fill(
                key(block),
                Generation::MAX,
                cache.ticket(key(block)),
                cached,
            );
        };
        for block in 0..BLOCKS {
            fill(block);
            assert!(cache.peek(key(block), Generation::MAX).is_some());
        }
        let new = BLOCKS..BLOCKS + BLOCKS / 8;
        new.clone().for_each(fill);
        let kept = new.filter(|block| cache.peek(key(*block), Generation::MAX).is_some());
        let kept = kept.count() as u64;
        assert!(kept > BLOCKS / 8 * 3 / 4, "{kept}");
    }

    #[test]
    fn a_fill_loses_against_a_write_that_came_after_its_ticket() {
        let cache = BlockCache::new(1 << 20, 8192);
        let key = BlockKey::new(FileId(9), 3);
        let block = |byte: u8| Cached {
            version: Version::ZERO,
            generation: Generation::SINGLE,
            data: Bytes::from(vec![byte; 8192]),
        };
        let ticket = cache.ticket(key);
        cache.write(key, Generation::MAX, block(2));
        cache.fill(key, Generation::MAX, ticket, block(1));
        assert_eq!(cache.get(key, Generation::MAX), Some(block(2)));

        let ticket = cache.ticket(key);
        cache.remove(key, Generation::MAX);
        cache.fill(key, Generation::MAX, ticket, block(1));
        assert_eq!(cache.get(key, Generation::MAX), None);

        let ticket = cache.ticket(key);
        cache.fill(key, Generation::MAX, ticket, block(1));
        assert_eq!(cache.get(key, Generation::MAX), Some(block(1)));
    }
}
