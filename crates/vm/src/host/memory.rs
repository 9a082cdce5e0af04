//! The file that is the guest's memory: of a tmpfs, of a fixed length, shared with QEMU.
//!
//! It is read and written by system calls, not mapped. So nothing here can be changed by somebody else while Rust
//! believes that it owns it; pages that nobody has touched take no memory, also when they are read; and a copy of
//! hundreds of pages is no slower than one of a mapping, whose page faults it does not have.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Whence, lseek64};

use super::guest::{PAGE, Run};
use super::{HostError, Result};

/// The memory of a machine, or its copy on a standby host. The file is removed with it.
#[derive(Debug)]
pub struct Memory {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Memory {
    /// Makes the file anew: `bytes` of zeros, a multiple of a page.
    ///
    /// # Errors
    /// `System`, or `Unfit` if the length is not one of whole pages.
    pub fn create(path: &Path, bytes: u64) -> Result<Memory> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE as u64) {
            let what = format!("a machine cannot have {bytes} bytes of memory");
            return Err(HostError::unfit(what, "Give it whole megabytes."));
        }
        let failed = |e| HostError::system(format!("cannot make {}", path.display()), e);
        // A file that is left may still be mapped by somebody who is about to end.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        file.set_len(bytes).map_err(failed)?;
        Ok(Memory {
            file,
            path: path.to_owned(),
            bytes,
        })
    }

    /// Path of the file that is mapped as the machine's memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE as u64
    }

    /// Adds the contents of pages.
    ///
    /// # Errors
    /// `System`; also if the memory has no such pages.
    pub fn read(&self, run: Run, into: &mut Vec<u8>) -> Result<()> {
        let mut left = run.bytes();
        let mut offset = run.first * PAGE as u64;
        into.reserve(left);
        // Not filled with zeros first: that took a fifth of the time, and the machine stands still.
        while left > 0 {
            let room = &mut into.spare_capacity_mut()[..left];
            // SAFETY: the kernel writes at most `left` bytes to where `room` begins, which has as many.
            let count = unsafe {
                libc::pread(
                    self.file.as_raw_fd(),
                    room.as_mut_ptr().cast(),
                    left,
                    offset.cast_signed(),
                )
            };
            let count = match Errno::result(count) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => Ok(count.unsigned_abs()),
                Err(Errno::EINTR) => Ok(0),
                Err(error) => Err(io::Error::from(error)),
            };
            let count = count.map_err(|e| self.failed("read", run.first, e))?;
            // SAFETY: the kernel has written so many bytes after the others.
            unsafe { into.set_len(into.len() + count) };
            left -= count;
            offset += count as u64;
        }
        Ok(())
    }

    /// Replaces the contents of whole pages from `first` on.
    ///
    /// # Errors
    /// `System`; also if the memory has no such pages.
    pub fn write(&self, first: u64, contents: &[u8]) -> Result<()> {
        let count = contents.len().div_ceil(PAGE) as u64;
        let fits = contents.len().is_multiple_of(PAGE)
            && first
                .checked_add(count)
                .is_some_and(|end| end <= self.pages());
        if !fits {
            return Err(self.failed("write", first, io::ErrorKind::InvalidInput.into()));
        }
        self.file
            .write_all_at(contents, first * PAGE as u64)
            .map_err(|e| self.failed("write", first, e))
    }

    /// Adds the pages that somebody has touched. All others are zero.
    ///
    /// # Errors
    /// `System`
    pub fn populated(&self, into: &mut Vec<Run>) -> Result<()> {
        let mut from = 0;
        while let Some(begin) = self.seek(from, Whence::SeekData)? {
            let end = self.seek(begin, Whence::SeekHole)?.unwrap_or(self.bytes);
            into.push(Run {
                first: begin / PAGE as u64,
                count: (end - begin).div_ceil(PAGE as u64),
            });
            from = end;
        }
        Ok(())
    }

    /// Where data, or a hole, begins at or after `from`.
    fn seek(&self, from: u64, whence: Whence) -> Result<Option<u64>> {
        if from >= self.bytes {
            return Ok(None);
        }
        match lseek64(&self.file, from.cast_signed(), whence) {
            Ok(found) => Ok(Some(found.cast_unsigned())),
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(self.failed("search", from / PAGE as u64, error.into())),
        }
    }

    fn failed(&self, what: &str, page: u64, error: io::Error) -> HostError {
        HostError::system(
            format!("cannot {what} page {page} of {}", self.path.display()),
            error,
        )
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Somebody else may have removed it with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(pages: u64) -> (tempfile::TempDir, Memory) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let memory = Memory::create(&directory.path().join("memory"), pages * PAGE as u64).unwrap();
        (directory, memory)
    }

    #[test]
    fn written_pages_are_read_and_the_rest_takes_no_memory() {
        let (_directory, memory) = memory(64);
        memory.write(3, &[7; 2 * PAGE]).unwrap();
        memory.write(63, &[9; PAGE]).unwrap();
        let mut touched = Vec::new();
        memory.populated(&mut touched).unwrap();
        let expected = [
            Run { first: 3, count: 2 },
            Run {
                first: 63,
                count: 1,
            },
        ];
        assert_eq!(touched, expected);
        let mut read = vec![1];
        memory.read(Run { first: 2, count: 2 }, &mut read).unwrap();
        assert_eq!(
            (read[0], read[1], read[PAGE + 1], read.len()),
            (1, 0, 7, 2 * PAGE + 1)
        );
        // Reading a hole has not filled it.
        touched.clear();
        memory.populated(&mut touched).unwrap();
        assert_eq!(touched, expected);
    }

    #[test]
    fn memory_does_not_grow() {
        let (_directory, memory) = memory(4);
        for (first, length) in [(4, PAGE), (3, 2 * PAGE), (0, PAGE + 1), (u64::MAX, PAGE)] {
            memory.write(first, &vec![0; length]).unwrap_err();
        }
        memory
            .read(Run { first: 3, count: 2 }, &mut Vec::new())
            .unwrap_err();
        assert_eq!(memory.file.metadata().unwrap().len(), 4 * PAGE as u64);
    }

    #[test]
    fn memory_is_new_every_time_and_goes_with_its_owner() {
        let (directory, first) = memory(1);
        first.write(0, &[1; PAGE]).unwrap();
        let path = directory.path().join("memory");
        let second = Memory::create(&path, PAGE as u64).unwrap();
        let mut read = Vec::new();
        second.read(Run { first: 0, count: 1 }, &mut read).unwrap();
        assert_eq!(read, [0; PAGE]);
        drop(second);
        assert!(!path.exists());
        Memory::create(&path, 5).unwrap_err();
    }
}
