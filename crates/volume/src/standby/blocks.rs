//! The contents of overlay blocks: in memory up to a budget, on local disk beyond it.
//!
//! Invariant: what a [`BlockRef`] holds never changes; only where it is kept does. So states can
//! share blocks freely, and spilling needs no new state. The oldest blocks are spilled first: the
//! next base drops them soonest.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

use super::spill::{Slot, SpillFile};

/// At least so many blocks are spilled at a time, unless that were much of all memory: to hand the work to another thread
/// costs more than to write one.
const SPILLED_BLOCKS: u64 = 64;

/// Where the blocks of one overlay are kept.
pub(crate) struct BlockStore {
    spill: Arc<SpillFile>,
    memory: Arc<AtomicU64>,
    memory_bytes_max: u64,
    /// What is left in memory when room has been made: less than the maximum, so that it is not made again for the
    /// next block.
    memory_bytes_kept: u64,
    /// Blocks in memory, oldest first; also some that are gone.
    oldest: Mutex<VecDeque<Weak<Stored>>>,
    /// True if a failure of the local disk was reported since it last worked.
    failing: AtomicBool,
}

/// One block's contents, shared by every state that shows it.
#[derive(Clone)]
pub(crate) struct BlockRef(Arc<Stored>);

struct Stored {
    place: RwLock<Place>,
    memory: Arc<AtomicU64>,
}

enum Place {
    Memory(Bytes),
    Disk(Arc<Slot>),
}

impl BlockStore {
    /// A store that keeps up to `memory_bytes_max` in memory and the rest in `spill_dir`.
    pub fn new(spill_dir: &Path, block_bytes: usize, memory_bytes_max: u64) -> io::Result<Self> {
        let block = block_bytes as u64;
        let spilled = (memory_bytes_max / block / 8).min(SPILLED_BLOCKS);
        Ok(BlockStore {
            spill: SpillFile::open(spill_dir, block_bytes)?,
            memory: Arc::default(),
            memory_bytes_max,
            memory_bytes_kept: memory_bytes_max - spilled * block,
            oldest: Mutex::default(),
            failing: AtomicBool::new(false),
        })
    }

    /// Takes a copy of one whole block: a slice would keep the request that it came in.
    pub fn put(&self, block: &[u8]) -> BlockRef {
        self.memory.fetch_add(block.len() as u64, Ordering::Relaxed);
        let stored = Arc::new(Stored {
            place: RwLock::new(Place::Memory(Bytes::copy_from_slice(block))),
            memory: Arc::clone(&self.memory),
        });
        let mut oldest = self.oldest.lock();
        oldest.push_back(Arc::downgrade(&stored));
        let live = self.memory_bytes() / block.len().max(1) as u64;
        if oldest.len() as u64 > 2 * live + 1024 {
            oldest.retain(|b| b.strong_count() > 0);
        }
        BlockRef(stored)
    }

    /// True if [`BlockStore::make_room`] has something to do.
    pub fn is_over_budget(&self) -> bool {
        self.memory_bytes() > self.memory_bytes_max
    }

    /// Moves the oldest blocks to local disk until memory is within its budget, with some room to spare. Blocks the
    /// thread.
    ///
    /// When the disk fails the blocks stay in memory: better over budget than wrong.
    pub fn make_room(&self) {
        while self.memory_bytes() > self.memory_bytes_kept {
            let Some(block) = self.oldest.lock().pop_front() else {
                return;
            };
            let Some(block) = block.upgrade() else {
                continue;
            };
            if let Err(error) = self.spill_one(&block) {
                self.oldest.lock().push_front(Arc::downgrade(&block));
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "cannot spill overlay blocks to local disk; memory grows");
                }
                return;
            }
            self.failing.store(false, Ordering::Relaxed);
        }
    }

    fn spill_one(&self, block: &Stored) -> io::Result<()> {
        let Ok(bytes) = block.place() else {
            return Ok(());
        };
        let slot = self.spill.write(&bytes)?;
        *block.place.write() = Place::Disk(Arc::new(slot));
        self.memory.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of blocks in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes of blocks on local disk.
    pub fn spill_bytes(&self) -> u64 {
        self.spill.used_bytes()
    }
}

impl BlockRef {
    /// The contents. Waits for the local disk if they were spilled.
    pub async fn read(&self) -> io::Result<Bytes> {
        let slot = match self.0.place() {
            Ok(bytes) => return Ok(bytes),
            Err(slot) => slot,
        };
        if let Some(bytes) = slot.read_cached() {
            return Ok(bytes);
        }
        tokio::task::spawn_blocking(move || slot.read())
            .await
            .map_err(io::Error::other)?
    }

    /// The contents; blocks the thread if they were spilled.
    pub fn read_blocking(&self) -> io::Result<Bytes> {
        self.0.place().or_else(|slot| slot.read())
    }

    /// The contents if they are in memory.
    pub fn in_memory(&self) -> Option<Bytes> {
        self.0.place().ok()
    }
}

impl Stored {
    /// The contents if they are in memory, or where they are on disk.
    fn place(&self) -> Result<Bytes, Arc<Slot>> {
        match &*self.place.read() {
            Place::Memory(bytes) => Ok(bytes.clone()),
            Place::Disk(slot) => Err(Arc::clone(slot)),
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if let Place::Memory(bytes) = self.place.get_mut() {
            self.memory.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4096;

    #[tokio::test]
    async fn beyond_the_budget_the_oldest_go_to_disk_and_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlockStore::new(dir.path(), BLOCK, 4 * BLOCK as u64).unwrap();
        let blocks: Vec<BlockRef> = (0..10u8).map(|i| store.put(&[i; BLOCK])).collect();
        assert!(store.is_over_budget());
        store.make_room();
        assert!(!store.is_over_budget());
        assert_eq!(store.memory_bytes(), 4 * BLOCK as u64);
        assert_eq!(store.spill_bytes(), 6 * BLOCK as u64);
        assert!(blocks[0].in_memory().is_none() && blocks[9].in_memory().is_some());
        for (i, block) in blocks.iter().enumerate() {
            assert_eq!(block.read().await.unwrap(), vec![i as u8; BLOCK]);
            assert_eq!(block.read_blocking().unwrap(), vec![i as u8; BLOCK]);
        }
        drop(blocks);
        assert_eq!((store.memory_bytes(), store.spill_bytes()), (0, 0));
    }

    #[test]
    fn room_is_made_for_many_blocks_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let budget = 1024 * BLOCK as u64;
        let store = BlockStore::new(dir.path(), BLOCK, budget).unwrap();
        let blocks: Vec<BlockRef> = (0..1025u32).map(|i| store.put(&[i as u8; BLOCK])).collect();
        store.make_room();
        assert_eq!(store.memory_bytes(), budget - 64 * BLOCK as u64);
        assert_eq!(store.spill_bytes(), 65 * BLOCK as u64);
        assert!(blocks[64].in_memory().is_none() && blocks[65].in_memory().is_some());
    }

    #[test]
    fn blocks_that_are_gone_take_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlockStore::new(dir.path(), BLOCK, 2 * BLOCK as u64).unwrap();
        for i in 0..10_000u32 {
            store.put(&[i as u8; BLOCK]);
        }
        assert!(store.oldest.lock().len() < 2_000, "dead entries are swept");
        store.make_room();
        assert_eq!((store.memory_bytes(), store.spill_bytes()), (0, 0));
    }
}
