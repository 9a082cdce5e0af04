//! Writing whole blocks of a file so that they are durable.
//!
//! Past the kernel's page cache where the file system can: one call in place of a write and a sync, a fifth to a
//! quarter less processor time and latency (docs/understand/kv-choice.md), and nothing in the cache that nobody reads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::ring::ALIGN;

/// A file that exists and is not resized.
#[derive(Debug)]
pub(super) struct SyncedFile {
    /// None where the file system cannot.
    direct: Option<Direct>,
    /// Through the cache.
    cached: File,
}

/// Past the cache, from memory that begins at a multiple of [`ALIGN`].
#[derive(Debug)]
struct Direct {
    file: File,
    memory: Vec<u8>,
}

impl SyncedFile {
    /// Opens the file to be written.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<SyncedFile> {
        let direct = match options(OFlag::O_DIRECT | OFlag::O_DSYNC).open(path) {
            Ok(file) => Some(Direct {
                file,
                memory: Vec::new(),
            }),
            Err(error) if cannot(&error) => None,
            Err(error) => return Err(error),
        };
        let cached = options(OFlag::empty()).open(path)?;
        Ok(SyncedFile { direct, cached })
    }

    /// Writes blocks at `offset`, both whole multiples of [`ALIGN`], and returns when they are durable.
    ///
    /// # Errors
    /// Whatever the file says: what is at that place is not known then.
    pub fn write(&mut self, blocks: &[u8], offset: u64) -> io::Result<()> {
        if let Some(Direct { file, memory }) = &mut self.direct {
            match file.write_all_at(aligned(memory, blocks), offset) {
                // A file system can say so as late as now.
                Err(error) if cannot(&error) => self.direct = None,
                written => return written,
            }
        }
        self.cached.write_all_at(blocks, offset)?;
        self.cached.sync_data()
    }
}

fn options(flags: OFlag) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags.bits());
    options
}

/// The file system does not write past the cache.
fn cannot(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::EOPNOTSUPP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// A copy that begins at a multiple of [`ALIGN`].
fn aligned<'m>(memory: &'m mut Vec<u8>, blocks: &[u8]) -> &'m [u8] {
    let align = ALIGN as usize;
    if memory.len() < blocks.len() + align {
        *memory = vec![0; blocks.len() + align];
    }
    let start = memory.as_ptr().align_offset(align);
    let place = &mut memory[start..start + blocks.len()];
    place.copy_from_slice(blocks);
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_where_they_were_written_on_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![0; 16 * ALIGN as usize]).unwrap();
        let mut file = SyncedFile::open(&path).unwrap();
        for (byte, blocks, at) in [(1, 1, 3), (2, 4, 8), (3, 2, 0)] {
            let data = vec![byte; blocks * ALIGN as usize];
            file.write(&data, at * ALIGN).unwrap();
            if byte == 1 {
                file.direct = None;
            }
        }
        let found = std::fs::read(&path).unwrap();
        let first: Vec<u8> = found.iter().step_by(ALIGN as usize).copied().collect();
        assert_eq!(first, [3, 3, 0, 1, 0, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0]);
        assert!(
            found
                .chunks(ALIGN as usize)
                .all(|block| block.iter().all(|b| *b == block[0]))
        );
    }

    #[test]
    fn memory_is_aligned_whatever_was_there_before() {
        let mut memory = Vec::new();
        for blocks in [1, 5, 2] {
            let data = vec![blocks as u8; blocks * ALIGN as usize];
            let copy = aligned(&mut memory, &data);
            assert!((copy.as_ptr() as usize).is_multiple_of(ALIGN as usize));
            assert_eq!(copy, data);
        }
    }
}
