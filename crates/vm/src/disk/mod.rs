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
//! a page can be said to equal; an image that was closed is written no more.

mod journal;
mod reads;
mod server;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::encoding::{self, Change, Counts, Encoder, ZEROS};

pub use journal::Cut;
pub use reads::Reads;
pub use server::{Server, serve};

use journal::Journal;

/// Bytes of a block, as the guest's page cache reads it.
pub const BLOCK_BYTES: usize = 4096;

/// Something that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub offset: u64,
    /// What.
    pub contents: Contents,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many zeros.
    Zeros(u32),
    /// How whole blocks differ from what is there, encoded; only between hosts.
    Blocks(Vec<u8>),
}

/// An image.
pub struct Disk {
    file: File,
    bytes: u64,
    journal: Mutex<Journal>,
    /// Whoever writes may go on.
    room: Condvar,
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
            .open(path)?;
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

    /// Nobody writes to it any more.
    pub fn close(&self) {
        self.change(Journal::close);
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

    fn put(&self, write: &Write) -> io::Result<()> {
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

    /// What was written survives a power failure.
    ///
    /// # Errors
    /// If it may not.
    pub fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
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

impl Write {
    /// How many bytes it is.
    pub fn len(&self) -> u64 {
        match &self.contents {
            Contents::Bytes(bytes) | Contents::Blocks(bytes) => bytes.len() as u64,
            Contents::Zeros(count) => u64::from(*count),
        }
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A write as it is sent: of whole blocks, how they differ from what was sent before.
pub fn encode_differing(write: &Write, sent: &mut Encoder, out: &mut Vec<u8>) {
    let (first, len) = (write.offset / BLOCK_BYTES as u64, write.len());
    let is_whole =
        write.offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES as u64);
    let blocks = first..(write.offset + len).div_ceil(BLOCK_BYTES as u64);
    let numbers = blocks.map(|block| u32::try_from(block).ok());
    match &write.contents {
        Contents::Bytes(bytes) if is_whole && numbers.clone().all(|number| number.is_some()) => {
            let mut encoded = Vec::new();
            for (number, block) in numbers.flatten().zip(bytes.chunks_exact(BLOCK_BYTES)) {
                let block = block.try_into().expect("a block has the length of a page");
                sent.put(
                    number,
                    block,
                    |_| None,
                    &mut Counts::default(),
                    &mut encoded,
                );
            }
            if !encoded.is_empty() {
                out.extend_from_slice(&0_u64.to_le_bytes());
                out.push(2);
                out.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
                out.extend_from_slice(&encoded);
            }
        }
        _ => {
            numbers.flatten().for_each(|number| sent.forget(number));
            encode(std::slice::from_ref(write), out);
        }
    }
}

/// Writes as they are sent.
pub fn encode(writes: &[Write], out: &mut Vec<u8>) {
    for write in writes {
        out.extend_from_slice(&write.offset.to_le_bytes());
        match &write.contents {
            Contents::Bytes(bytes) => {
                out.push(1);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Contents::Blocks(bytes) => {
                out.push(2);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Contents::Zeros(count) => {
                out.push(0);
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
    }
}

/// The writes that were sent; all of them are within an image of `bytes`.
///
/// # Errors
/// If that is not what was encoded.
pub fn decode(mut input: &[u8], bytes: u64) -> io::Result<Vec<Write>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let mut writes = Vec::new();
    while !input.is_empty() {
        let (head, rest) = input.split_first_chunk::<13>().ok_or_else(wrong)?;
        let offset = u64::from_le_bytes(*head.first_chunk().ok_or_else(wrong)?);
        let len = u32::from_le_bytes(*head.last_chunk().ok_or_else(wrong)?);
        input = rest;
        let contents = match head[8] {
            0 => Contents::Zeros(len),
            kind => {
                let (data, rest) = input.split_at_checked(len as usize).ok_or_else(wrong)?;
                input = rest;
                if kind == 1 {
                    Contents::Bytes(data.to_vec())
                } else {
                    Contents::Blocks(data.to_vec())
                }
            }
        };
        if let Contents::Blocks(encoded) = &contents {
            let blocks = u32::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
            let changes = encoding::changes(encoded, blocks).map_err(|_| wrong())?;
            if changes
                .iter()
                .any(|(_, change)| matches!(change, Change::Block(_)))
            {
                return Err(wrong());
            }
        } else if offset
            .checked_add(u64::from(len))
            .is_none_or(|end| end > bytes)
        {
            return Err(wrong());
        }
        writes.push(Write { offset, contents });
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, Arc<Disk>) {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::create(&directory.path().join("image"), 1 << 20).unwrap();
        (directory, disk)
    }

    fn bytes(offset: u64, byte: u8, len: usize) -> Write {
        Write {
            offset,
            contents: Contents::Bytes(vec![byte; len]),
        }
    }

    #[test]
    fn a_write_belongs_to_the_checkpoint_that_follows_it() {
        let (_directory, disk) = disk();
        disk.write(bytes(0, 9, 10)).unwrap();
        disk.record(u64::MAX);
        disk.write(bytes(0, 1, 4096)).unwrap();
        disk.write(bytes(4096, 2, 512)).unwrap();
        let cut = disk.cut();
        assert_eq!(cut.writes, [bytes(0, 1, 4096), bytes(4096, 2, 512)]);
        let zeros = Write {
            offset: 8192,
            contents: Contents::Zeros(100_000),
        };
        disk.write(zeros.clone()).unwrap();
        let cut = disk.cut();
        assert_eq!(cut.writes, std::slice::from_ref(&zeros));
        let mut sent = Vec::new();
        encode(&[bytes(5, 1, 3), zeros.clone()], &mut sent);
        assert_eq!(
            decode(&sent, disk.bytes()).unwrap(),
            [bytes(5, 1, 3), zeros]
        );
        assert!(decode(&sent, 8192).is_err());
        assert!(decode(&sent[1..], disk.bytes()).is_err());
    }

    #[test]
    fn a_block_that_was_written_after_it_was_read_is_not_one_to_refer_to() {
        let (_directory, disk) = disk();
        disk.write(bytes(0, 1, 4096)).unwrap();
        disk.write(bytes(4096, 2, 4096)).unwrap();
        disk.record(u64::MAX);
        disk.read(0, &mut [0; 8192]).unwrap();
        disk.write(bytes(4100, 3, 1)).unwrap();
        let cut = disk.cut();
        assert_eq!(cut.reads.find(&[1; 4096]), Some(0));
        assert_eq!(cut.reads.find(&[2; 4096]), None);
        // What happens after the cut says nothing about the disk at the checkpoint.
        disk.write(bytes(0, 4, 1)).unwrap();
        assert_eq!(cut.reads.find(&[1; 4096]), Some(0));
        assert_eq!(disk.cut().reads.find(&[1; 4096]), None);
    }

    proptest::proptest! {
        #[test]
        fn the_other_disk_has_what_was_written(
            writes in proptest::collection::vec((0..12_u64, 0..5_u64, proptest::prelude::any::<u8>(), 0..4_u8), 1..40),
        ) {
            let (_one, disk) = self::disk();
            let (_other, copy) = self::disk();
            let mut sent = Encoder::new(3);
            disk.record(u64::MAX);
            for (block, part, byte, kind) in writes {
                let offset = block * 4096 + if kind == 0 { part * 512 } else { 0 };
                let write = match kind {
                    1 => Write { offset, contents: Contents::Zeros(5000) },
                    0 => bytes(offset, byte, 512),
                    _ => {
                        let mut contents = vec![7; 8192];
                        contents[part as usize * 900..][..10].fill(byte);
                        Write { offset, contents: Contents::Bytes(contents) }
                    }
                };
                disk.write(write).unwrap();
                if kind != 2 {
                    let mut out = Vec::new();
                    for write in disk.cut().writes {
                        encode_differing(&write, &mut sent, &mut out);
                    }
                    copy.apply(&decode(&out, copy.bytes()).unwrap()).unwrap();
                }
            }
            let mut out = Vec::new();
            for write in disk.cut().writes {
                encode_differing(&write, &mut sent, &mut out);
            }
            copy.apply(&decode(&out, copy.bytes()).unwrap()).unwrap();
            let (mut a, mut b) = (vec![0; 1 << 17], vec![0; 1 << 17]);
            disk.look(0, &mut a).unwrap();
            copy.look(0, &mut b).unwrap();
            proptest::prop_assert!(a == b);
        }
    }

    /// Writes 100 blocks of the disk on another thread, and says after each that it did.
    fn write_on(disk: &Arc<Disk>) -> std::sync::mpsc::Receiver<io::Result<()>> {
        let (disk, (sender, written)) = (disk.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            for block in 0..100 {
                let _ = sender.send(disk.write(bytes(block * 4096, 1, 4096)));
            }
        });
        written
    }

    /// How many writes were done until nothing happened for a while.
    fn done(written: &std::sync::mpsc::Receiver<io::Result<()>>) -> usize {
        let mut done = 0;
        while let Ok(result) = written.recv_timeout(std::time::Duration::from_millis(300)) {
            result.unwrap();
            done += 1;
        }
        done
    }

    #[test]
    fn while_the_standby_is_slow_writes_wait_and_no_more_is_kept_than_there_is_room_for() {
        let (_directory, disk) = disk();
        disk.record(10 * 4096);
        let written = write_on(&disk);
        assert_eq!(done(&written), 10);
        assert!(disk.journal_bytes() < 11 * 4096);
        // The machine does not stop before all of its writes are done.
        disk.begin();
        assert_eq!(done(&written), 90);
        assert_eq!(disk.cut().writes.len(), 100);
        assert_eq!((disk.journal_bytes(), disk.take_waits()), (0, 1));
    }

    #[test]
    fn writes_go_on_when_their_checkpoint_was_taken_or_nobody_needs_them() {
        let (_directory, disk) = disk();
        disk.record(10 * 4096);
        let written = write_on(&disk);
        assert_eq!(done(&written), 10);
        assert_eq!(disk.cut().writes.len(), 10);
        assert_eq!(done(&written), 10);
        disk.forget();
        assert_eq!(done(&written), 80);

        disk.record(0);
        let written = write_on(&disk);
        assert_eq!(done(&written), 0);
        disk.close();
        let error = written.recv().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn blocks_that_were_read_are_remembered_only_so_far() {
        let (_directory, disk) = disk();
        disk.record(u64::MAX);
        disk.write(bytes(0, 1, 4096)).unwrap();
        disk.read(0, &mut [0; 4096]).unwrap();
        let mut reads = disk.cut().reads;
        for block in 1..2 * Reads::MOST as u64 {
            reads.read(block * 4096, &[0; 4096]);
        }
        assert_eq!(reads.find(&[1; 4096]), Some(0));
        assert_eq!(reads.len(), Reads::MOST);
    }

    #[test]
    fn an_image_that_was_closed_is_written_no_more() {
        let (_directory, disk) = disk();
        disk.close();
        assert!(disk.write(bytes(0, 1, 1)).is_err());
        assert!(disk.apply(&[bytes(0, 1, 1)]).is_err());
    }
}
