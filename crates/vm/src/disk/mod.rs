//! The machine's disk: an image on this host, served to QEMU, and what was written to it since the last checkpoint.
//!
//! ```text
//!   QEMU ── NBD over a unix socket ──▶ Disk ──▶ the image
//!                                       ├──▶ writes since the last checkpoint   ──▶ the standby's image, when it holds the checkpoint
//!                                       └──▶ blocks read since then (contents)  ──▶ pages that need not be sent
//! ```
//!
//! Each host has an image of its own. The active host writes to its own at once, and flushes it when the guest asks: it is what the
//! machine starts from if both hosts fail. The standby's changes by whole checkpoints, in the order in which the machine wrote.
//!
//! Invariants: a write is in exactly one checkpoint, the one after it; a block that is written after it was read is no longer one that
//! a page can be said to equal; an image that was closed is written no more; a flush has succeeded only if all that was written before
//! it is durable, and once one has failed none succeeds, whoever asked for it: the kernel tells a failure only once.

mod journal;
mod reads;
mod server;
#[cfg(test)]
mod tests;
mod write;

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::encoding::{self, Change, ZEROS};

pub use journal::Cut;
pub use reads::Reads;
pub use server::{Server, serve};
pub use write::{Contents, Write, decode, encode, encode_differing};

use journal::Journal;

/// Bytes of a block, as the guest's page cache reads it.
pub const BLOCK_BYTES: usize = 4096;

/// An image.
pub struct Disk {
    file: File,
    bytes: u64,
    journal: Mutex<Journal>,
    /// Whoever writes may go on.
    room: Condvar,
    /// Writes that were done or begun; counted while the journal is locked.
    written: AtomicU64,
    /// How many of them are durable, at least.
    durable: AtomicU64,
    /// Whoever flushes: the kernel tells one only of a failure, so nobody flushes beside him.
    flushing: Mutex<()>,
    /// A flush has failed.
    is_doubtful: AtomicBool,
    /// What failed last, until somebody asks.
    trouble: Mutex<Option<String>>,
}

impl Disk {
    /// Opens an image.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn open(path: &Path) -> io::Result<Arc<Disk>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Disk::of(file)
    }

    /// Opens an image that is going to be a copy of one of so many bytes: what it holds is lost.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn create(path: &Path, bytes: u64) -> io::Result<Arc<Disk>> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        // One that was there may have been anybody's to read.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(bytes)?;
        Disk::of(file)
    }

    fn of(file: File) -> io::Result<Arc<Disk>> {
        let bytes = file.metadata()?.len();
        Ok(Arc::new(Disk {
            file,
            bytes,
            journal: Mutex::default(),
            room: Condvar::new(),
            // What others wrote before may not be durable.
            written: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            flushing: Mutex::default(),
            is_doubtful: AtomicBool::new(false),
            trouble: Mutex::default(),
        }))
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn change<T>(&self, change: impl FnOnce(&mut Journal) -> T) -> T {
        let told = change(&mut self.journal.lock());
        self.room.notify_all();
        told
    }

    /// From now on, what is written and read is remembered for the next checkpoint. While that takes more than `most` bytes, the machine's
    /// writes wait.
    pub fn record(&self, most: u64) {
        self.change(|journal| journal.record(most));
    }

    /// Nothing is remembered any more.
    pub fn forget(&self) {
        self.change(Journal::forget);
    }

    /// A checkpoint is about to be made: no write waits until [`cut`](Disk::cut), for the machine stops only after all of them.
    pub fn begin(&self) {
        self.change(Journal::begin);
    }

    /// What happened since the last one, at a moment at which the machine stands still.
    pub fn cut(&self) -> Cut {
        self.change(Journal::cut)
    }

    /// Bytes that wait for the next checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.lock().bytes()
    }

    /// How often a write had to wait for room since this was asked last.
    pub fn take_waits(&self) -> u64 {
        self.journal.lock().take_waits()
    }

    /// What the machine was told of failures, if anything since this was asked last.
    pub fn take_trouble(&self) -> Option<String> {
        self.trouble.lock().take()
    }

    fn note(&self, what: &str, error: &io::Error) {
        let text = format!("the machine's disk cannot be {what}: {error}");
        *self.trouble.lock() = Some(text);
    }

    /// Nobody writes to it any more.
    pub fn close(&self) {
        self.change(Journal::close);
    }

    /// True if nobody writes to it any more.
    pub fn is_closed(&self) -> bool {
        self.journal.lock().is_closed()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut journal = self.journal.lock();
        self.file.read_exact_at(into, offset)?;
        journal.read(offset, into);
        Ok(())
    }

    /// Reads without remembering it.
    ///
    /// # Errors
    /// If the image cannot be read there.
    pub fn look(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, write: Write) -> io::Result<()> {
        // Image and journal change together: the order of both is the same.
        let mut journal = self.journal.lock();
        if journal.is_full() {
            journal.waits();
            self.room
                .wait_while(&mut journal, |journal| journal.is_full());
        }
        if journal.is_closed() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.put(&write)?;
        journal.written(write);
        Ok(())
    }

    /// With the journal locked.
    fn put(&self, write: &Write) -> io::Result<()> {
        self.written.fetch_add(1, Ordering::AcqRel);
        match &write.contents {
            Contents::Bytes(bytes) => self.file.write_all_at(bytes, write.offset),
            Contents::Zeros(count) => {
                static NOTHING: [u8; 1 << 16] = [0; 1 << 16];
                let mut at = 0;
                while at < *count as usize {
                    let len = NOTHING.len().min(*count as usize - at);
                    self.file
                        .write_all_at(&NOTHING[..len], write.offset + at as u64)?;
                    at += len;
                }
                Ok(())
            }
            Contents::Blocks(encoded) => self.put_blocks(encoded),
        }
    }

    fn put_blocks(&self, encoded: &[u8]) -> io::Result<()> {
        let changes = encoding::changes(encoded, self.blocks()).map_err(io::Error::other)?;
        for (number, change) in changes {
            let offset = u64::from(number) * BLOCK_BYTES as u64;
            let mut block = ZEROS;
            if matches!(change, Change::Runs(_)) {
                self.file.read_exact_at(&mut block, offset)?;
            }
            change.apply(&mut block);
            self.file.write_all_at(&block, offset)?;
        }
        Ok(())
    }

    fn blocks(&self) -> u32 {
        u32::try_from(self.bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX)
    }

    /// What the machine wrote on the other host.
    ///
    /// # Errors
    /// If the image cannot be written.
    pub fn apply(&self, writes: &[Write]) -> io::Result<()> {
        let journal = self.journal.lock();
        if journal.is_closed() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        writes.iter().try_for_each(|write| self.put(write))
    }

    /// What was written survives a power failure. Whether something had been written that did not: QEMU flushes each time that it stops
    /// the machine, and each time that it saves its devices, also what the guest has just flushed.
    ///
    /// # Errors
    /// If it may not.
    pub fn flush(&self) -> io::Result<bool> {
        let _alone = self.flushing.lock();
        let written = {
            // What is counted has been written: whoever writes holds the lock.
            let _journal = self.journal.lock();
            self.written.load(Ordering::Acquire)
        };
        if self.is_doubtful.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(5));
        }
        if self.durable.load(Ordering::Acquire) >= written {
            return Ok(false);
        }
        let synced = self.file.sync_data();
        match &synced {
            Ok(()) => self.durable.fetch_max(written, Ordering::AcqRel),
            Err(_) => u64::from(self.is_doubtful.swap(true, Ordering::AcqRel)),
        };
        synced.map(|()| true)
    }

    /// Where there is something, from `offset` on: begin and end. The rest is zeros.
    ///
    /// # Errors
    /// If the file system does not tell.
    pub fn extent(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        use nix::unistd::{Whence, lseek};
        let seek = |offset: u64, whence| {
            let offset = i64::try_from(offset).map_err(io::Error::other)?;
            match lseek(&self.file, offset, whence) {
                Ok(at) => Ok(u64::try_from(at).ok()),
                Err(nix::errno::Errno::ENXIO) => Ok(None),
                Err(error) => Err(io::Error::from(error)),
            }
        };
        let Some(begin) = seek(offset, Whence::SeekData)? else {
            return Ok(None);
        };
        let end = seek(begin, Whence::SeekHole)?.unwrap_or(self.bytes);
        Ok(Some((begin, end)))
    }
}
