//! Local disk for overlay blocks that memory has no room for.
//!
//! Owns one file of equal slots, unlinked as soon as it is open, so nothing is left behind however
//! the process ends. Invariant: a slot belongs to exactly one [`Slot`] and is free again when that
//! is dropped. Nothing here is ever synced: an overlay does not outlive its process (rule 1).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::{ReadWriteFlags, preadv2};

pub(crate) struct SpillFile {
    file: File,
    slot_bytes: usize,
    slots: Mutex<Slots>,
}

/// Which slots are taken: all below `end` that are not in `free`.
#[derive(Default)]
struct Slots {
    free: Vec<u64>,
    end: u64,
}

/// One block on local disk.
pub(crate) struct Slot {
    spill: Arc<SpillFile>,
    index: u64,
}

/// Tells files of one process apart between their creation and their unlinking.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

impl SpillFile {
    /// Opens a new spill file in `directory` for blocks of `slot_bytes`.
    pub fn open(directory: &Path, slot_bytes: usize) -> io::Result<Arc<SpillFile>> {
        let name = format!(
            ".spill-{}-{}",
            std::process::id(),
            NEXT_NAME.fetch_add(1, Ordering::Relaxed)
        );
        let path = directory.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Arc::new(SpillFile {
            file,
            slot_bytes,
            slots: Mutex::default(),
        }))
    }

    /// Writes one block of exactly `slot_bytes`.
    pub fn write(self: &Arc<Self>, block: &[u8]) -> io::Result<Slot> {
        assert_eq!(block.len(), self.slot_bytes, "a slot holds one whole block");
        let slot = self.take();
        self.file.write_all_at(block, slot.offset())?;
        Ok(slot)
    }

    fn take(self: &Arc<Self>) -> Slot {
        let mut slots = self.slots.lock();
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.end += 1;
            slots.end - 1
        });
        Slot {
            spill: Arc::clone(self),
            index,
        }
    }

    /// Bytes in slots that are taken.
    pub fn used_bytes(&self) -> u64 {
        let slots = self.slots.lock();
        (slots.end - slots.free.len() as u64) * self.slot_bytes as u64
    }
}

impl Slot {
    fn offset(&self) -> u64 {
        self.index * self.spill.slot_bytes as u64
    }

    /// Reads the block back if the kernel has it in memory, without waiting for the disk.
    pub fn read_cached(&self) -> Option<Bytes> {
        let mut block = vec![0; self.spill.slot_bytes];
        let into = &mut [IoSliceMut::new(&mut block)];
        // Not every file system can say; then it is read on a thread that may wait.
        let read = preadv2(
            &self.spill.file,
            into,
            self.offset(),
            ReadWriteFlags::NOWAIT,
        )
        .ok()?;
        (read == block.len()).then(|| block.into())
    }

    /// Reads the block back. Blocks the thread on the disk.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut block = vec![0; self.spill.slot_bytes];
        self.spill.file.read_exact_at(&mut block, self.offset())?;
        Ok(block.into())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.spill.slots.lock().free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_was_written_and_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let spill = SpillFile::open(dir.path(), 4096).unwrap();
        let slots: Vec<Slot> = (0..4u8).map(|i| spill.write(&[i; 4096]).unwrap()).collect();
        for (i, slot) in slots.iter().enumerate() {
            assert_eq!(slot.read().unwrap(), vec![i as u8; 4096]);
            let cached = slot.read_cached();
            assert!(cached.is_none_or(|block| block == vec![i as u8; 4096]));
        }
        assert_eq!(spill.used_bytes(), 4 * 4096);
        drop(slots);
        assert_eq!(spill.used_bytes(), 0);
        let again = spill.write(&[9; 4096]).unwrap();
        assert!(
            again.index < 4,
            "a freed slot is used before the file grows"
        );
        assert_eq!(again.read().unwrap(), vec![9; 4096]);
    }

    #[test]
    fn nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let spill = SpillFile::open(dir.path(), 4096).unwrap();
        let _slot = spill.write(&[1; 4096]).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
