//! What a standby host does with checkpoints: it takes each one whole, or not at all.
//!
//! ```text
//!   parts ──▶ unpacked, collected ── end, and all is there? ──▶ decoded ── makes sense? ──▶ disk, memory, devices ──▶ "applied"
//! ```
//!
//! The copy that a following begins with is different: its parts are applied as they come, and nobody relies on them before the first
//! checkpoint, which ends it.
//!
//! Invariants: nothing of a checkpoint is written before all of it is here and has been checked; checkpoints are applied in order, none
//! left out. A standby that failed in the middle of writing is of no use: whoever calls begins again.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::core::Number;
use crate::disk::{self, BLOCK_BYTES, Disk};
use crate::encoding::{self, Change, Page, Unpacker, ZEROS};
use crate::host::{HostError, Memory, Run};
use crate::network::Flow;

/// Parts of a checkpoint, unpacked, and the state of devices are shorter.
const MOST_BYTES: usize = 64 << 20;

/// A part of a checkpoint, beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointPart {
    /// Of the copy: what the disk holds from here on.
    Image {
        /// Offset in the disk, in bytes.
        offset: u64,
    },
    /// Pages, encoded; of the copy if there is no number.
    Pages(Option<Number>),
    /// Writes to the disk; of the copy if there is no number.
    Writes(Option<Number>),
    /// How the state of the devices differs from the one before, and the end.
    End(End),
}

/// What ends a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Which one.
    pub number: Number,
    /// How many parts it has, without this one.
    pub parts: u32,
    /// The sum of their bytes and of the devices' state, in order.
    pub sum: u64,
    /// The machine's connections, if they are watched.
    pub flows: Vec<Flow>,
}

/// Adds bytes to the sum of a checkpoint.
pub fn add(sum: u64, bytes: &[u8]) -> u64 {
    sum.rotate_left(1) ^ xxh3_64(bytes)
}

/// Why a standby cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// What came is not a checkpoint that follows the last one. Nothing was written: begin again.
    #[error("the checkpoint is not whole: {0}")]
    NotWhole(&'static str),
    /// The disk cannot be written.
    #[error("the disk of the standby cannot be written")]
    Disk(#[from] io::Error),
    /// The memory cannot be written.
    #[error("the memory of the standby cannot be written")]
    Memory(#[from] HostError),
}

impl From<encoding::Malformed> for ApplyError {
    fn from(_: encoding::Malformed) -> ApplyError {
        ApplyError::NotWhole("its pages are not encoded as pages of a checkpoint are")
    }
}

#[derive(Debug, Default)]
struct Arriving {
    pages: Vec<Vec<u8>>,
    writes: Vec<Vec<u8>>,
    parts: u32,
    sum: u64,
}

/// A machine's state on a standby host.
pub struct Mirror {
    disk: Arc<Disk>,
    unpacker: Unpacker,
    arriving: Arriving,
    last: Number,
    devices: Vec<u8>,
    flows: Vec<Flow>,
}

impl Mirror {
    /// Of nothing yet.
    pub fn new(disk: Arc<Disk>) -> Mirror {
        Mirror {
            disk,
            unpacker: Unpacker::new(MOST_BYTES),
            arriving: Arriving::default(),
            last: Number::default(),
            devices: Vec::new(),
            flows: Vec::new(),
        }
    }

    /// The last checkpoint that was applied; 0 if there is none.
    pub fn last(&self) -> Number {
        self.last
    }

    /// The devices' state and the connections of that checkpoint.
    pub fn take(&mut self) -> (Vec<u8>, Vec<Flow>) {
        (
            std::mem::take(&mut self.devices),
            std::mem::take(&mut self.flows),
        )
    }

    /// A part is here. The number of the checkpoint that it ends, once that is applied.
    ///
    /// # Errors
    /// The standby is of no use any more.
    pub fn part(
        &mut self,
        part: CheckpointPart,
        bytes: Vec<u8>,
        memory: &Memory,
    ) -> Result<Option<Number>, ApplyError> {
        match part {
            CheckpointPart::Image { offset } => {
                self.expect_copy()?;
                let contents = disk::Contents::Bytes(bytes);
                self.disk.apply(&[disk::Write { offset, contents }])?;
            }
            CheckpointPart::Pages(None) => {
                self.expect_copy()?;
                self.write_pages(&[bytes], memory)?;
            }
            CheckpointPart::Writes(None) => {
                self.expect_copy()?;
                self.disk.apply(&disk::decode(&bytes, self.disk.bytes())?)?;
            }
            CheckpointPart::Pages(Some(number)) => {
                let unpacked = self.collect(number, bytes)?;
                self.arriving.pages.push(unpacked);
            }
            CheckpointPart::Writes(Some(number)) => {
                let unpacked = self.collect(number, bytes)?;
                self.arriving.writes.push(unpacked);
            }
            CheckpointPart::End(end) => return self.end(end, bytes, memory).map(Some),
        }
        Ok(None)
    }

    fn expect_copy(&self) -> Result<(), ApplyError> {
        if self.last != Number::default() {
            return Err(ApplyError::NotWhole("a copy that has ended goes on"));
        }
        Ok(())
    }

    fn collect(&mut self, number: Number, bytes: Vec<u8>) -> Result<Vec<u8>, ApplyError> {
        if number != self.last.next() {
            return Err(ApplyError::NotWhole("it does not follow the last one"));
        }
        self.arriving.parts += 1;
        self.arriving.sum = add(self.arriving.sum, &bytes);
        Ok(self.unpacker.unpack(bytes)?)
    }

    fn end(&mut self, end: End, devices: Vec<u8>, memory: &Memory) -> Result<Number, ApplyError> {
        let arriving = std::mem::take(&mut self.arriving);
        if end.number != self.last.next() {
            return Err(ApplyError::NotWhole("it does not follow the last one"));
        }
        if end.parts != arriving.parts || end.sum != add(arriving.sum, &devices) {
            return Err(ApplyError::NotWhole("a part is missing or damaged"));
        }
        let devices = self.unpacker.unpack(devices)?;
        let pages = u32::try_from(memory.pages()).unwrap_or(u32::MAX);
        for encoded in &arriving.pages {
            self.check_blocks(&encoding::changes(encoded, pages)?)?;
        }
        let mut writes = Vec::new();
        for encoded in &arriving.writes {
            writes.extend(disk::decode(encoded, self.disk.bytes())?);
        }
        let devices = encoding::take_state(&self.devices, &devices, MOST_BYTES)?;
        // All of it is here and makes sense.
        self.disk.apply(&writes)?;
        self.write_pages(&arriving.pages, memory)?;
        self.devices = devices;
        self.flows = end.flows;
        self.last = end.number;
        Ok(end.number)
    }

    fn check_blocks(&self, changes: &[(u32, Change<'_>)]) -> Result<(), ApplyError> {
        let blocks = self.disk.bytes() / BLOCK_BYTES as u64;
        let is_outside = |change: &Change<'_>| matches!(change, Change::Block(at) if *at >= blocks);
        match changes.iter().any(|(_, change)| is_outside(change)) {
            true => Err(ApplyError::NotWhole("it names a block that does not exist")),
            false => Ok(()),
        }
    }

    fn write_pages(&self, encoded: &[Vec<u8>], memory: &Memory) -> Result<(), ApplyError> {
        let pages = u32::try_from(memory.pages()).unwrap_or(u32::MAX);
        let mut old = Vec::new();
        for encoded in encoded {
            for (number, change) in encoding::changes(encoded, pages)? {
                let first = u64::from(number);
                let mut page: Page = ZEROS;
                match change {
                    Change::Block(block) => {
                        self.disk.look(block * BLOCK_BYTES as u64, &mut page)?;
                    }
                    Change::Runs(_) => {
                        old.clear();
                        memory.read(Run { first, count: 1 }, &mut old)?;
                        page.copy_from_slice(&old);
                    }
                    Change::Whole(_) | Change::Is(_) => {}
                }
                change.apply(&mut page);
                memory.write(first, &page)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Contents, Write};
    use crate::encoding::{Counts, Encoder, PAGE_BYTES, Packer};

    const PAGES: u64 = 4;

    struct Host {
        _directory: tempfile::TempDir,
        memory: Memory,
        disk: Arc<Disk>,
        mirror: Mirror,
    }

    fn host() -> Host {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let memory = Memory::create(&directory.path().join("memory"), PAGES * 4096).unwrap();
        let disk = Disk::create(&directory.path().join("disk"), 1 << 16).unwrap();
        let mirror = Mirror::new(disk.clone());
        Host {
            _directory: directory,
            memory,
            disk,
            mirror,
        }
    }

    impl Host {
        fn part(
            &mut self,
            part: CheckpointPart,
            bytes: &[u8],
        ) -> Result<Option<Number>, ApplyError> {
            let sent = match part {
                CheckpointPart::Pages(None) => bytes.to_vec(),
                _ => as_it_is(bytes),
            };
            self.mirror.part(part, sent, &self.memory)
        }

        fn page(&self, number: u64) -> Vec<u8> {
            let mut page = Vec::new();
            self.memory
                .read(
                    Run {
                        first: number,
                        count: 1,
                    },
                    &mut page,
                )
                .unwrap();
            page
        }

        fn block(&self) -> Vec<u8> {
            let mut block = vec![0; BLOCK_BYTES];
            self.disk.look(0, &mut block).unwrap();
            block
        }
    }

    /// A part as it is sent if it is not packed.
    fn as_it_is(part: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new();
        packer.compress(false);
        packer.pack(part)
    }

    fn pages(number: u32, byte: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(1);
        encoder.put(
            number,
            &[byte; PAGE_BYTES],
            |_| None,
            &mut Counts::default(),
            &mut out,
        );
        out
    }

    fn writes(byte: u8) -> Vec<u8> {
        let mut out = Vec::new();
        let contents = Contents::Bytes(vec![byte; BLOCK_BYTES]);
        disk::encode(
            &[Write {
                offset: 0,
                contents,
            }],
            &mut out,
        );
        out
    }

    /// Devices' state, from none.
    fn devices(state: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encoding::put_state(&[], state, &mut out);
        out
    }

    fn end(number: u64, parts: &[&[u8]], devices: &[u8]) -> CheckpointPart {
        let sum = parts.iter().fold(0, |sum, part| add(sum, &as_it_is(part)));
        CheckpointPart::End(End {
            number: Number(number),
            parts: parts.len() as u32,
            sum: add(sum, &as_it_is(devices)),
            flows: Vec::new(),
        })
    }

    // hazard: VM-2
    #[test]
    fn nothing_of_a_checkpoint_is_written_before_its_end() {
        let mut host = host();
        let (page, write) = (pages(1, 7), writes(8));
        assert_eq!(
            host.part(CheckpointPart::Writes(Some(Number(1))), &write)
                .unwrap(),
            None
        );
        assert_eq!(
            host.part(CheckpointPart::Pages(Some(Number(1))), &page)
                .unwrap(),
            None
        );
        assert_eq!((host.page(1)[0], host.block()[0]), (0, 0));
        assert_eq!(host.mirror.last(), Number(0));
        let applied = host
            .part(end(1, &[&write, &page], &devices(b"d")), &devices(b"d"))
            .unwrap();
        assert_eq!(applied, Some(Number(1)));
        assert_eq!((host.page(1)[9], host.block()[9]), (7, 8));
        assert_eq!(host.mirror.take().0, b"d");
    }

    // hazard: VM-9
    #[test]
    fn a_checkpoint_that_lacks_a_page_is_refused_whole() {
        let (page, write) = (pages(1, 7), writes(8));
        let lost: [&dyn Fn(&mut Host); 2] = [
            &|host| {
                host.part(CheckpointPart::Writes(Some(Number(1))), &writes(8))
                    .unwrap();
            },
            &|host| {
                host.part(CheckpointPart::Writes(Some(Number(1))), &writes(8))
                    .unwrap();
                host.part(CheckpointPart::Pages(Some(Number(1))), &pages(1, 6))
                    .unwrap();
            },
        ];
        for send in lost {
            let mut host = host();
            send(&mut host);
            let error = host
                .part(end(1, &[&write, &page], &devices(b"d")), &devices(b"d"))
                .unwrap_err();
            assert!(matches!(error, ApplyError::NotWhole(_)), "{error}");
            assert_eq!((host.page(1)[0], host.block()[0]), (0, 0));
        }
    }

    #[test]
    fn a_checkpoint_that_makes_no_sense_is_refused_whole() {
        let mut host = host();
        let (write, page) = (writes(8), pages(PAGES as u32, 7));
        host.part(CheckpointPart::Writes(Some(Number(1))), &write)
            .unwrap();
        host.part(CheckpointPart::Pages(Some(Number(1))), &page)
            .unwrap();
        host.part(end(1, &[&write, &page], &devices(b"")), &devices(b""))
            .unwrap_err();
        assert_eq!(host.block()[0], 0);
    }

    #[test]
    fn checkpoints_are_applied_in_order_and_none_is_left_out() {
        let mut host = host();
        host.part(CheckpointPart::Pages(None), &pages(0, 1))
            .unwrap();
        assert_eq!(host.page(0)[0], 1);
        host.part(end(1, &[], &devices(b"")), &devices(b""))
            .unwrap();
        host.part(CheckpointPart::Pages(Some(Number(3))), &pages(0, 2))
            .unwrap_err();
        host.part(CheckpointPart::Pages(None), &pages(0, 2))
            .unwrap_err();
        host.part(end(3, &[], &devices(b"")), &devices(b""))
            .unwrap_err();
        assert_eq!(host.page(0)[0], 1);
    }

    #[test]
    fn a_page_is_what_the_block_is_after_the_writes_of_its_checkpoint() {
        let mut host = host();
        let write = writes(8);
        let mut page = Vec::new();
        let same = |_: &Page| Some(0);
        Encoder::new(1).put(2, &[8; PAGE_BYTES], same, &mut Counts::default(), &mut page);
        assert!(page.len() < 10);
        host.part(CheckpointPart::Pages(Some(Number(1))), &page)
            .unwrap();
        host.part(CheckpointPart::Writes(Some(Number(1))), &write)
            .unwrap();
        host.part(end(1, &[&page, &write], &devices(b"")), &devices(b""))
            .unwrap();
        assert_eq!(host.page(2), vec![8; PAGE_BYTES]);
    }

    // hazard: VM-12
    #[test]
    fn checkpoints_that_are_packed_are_one_stream() {
        let mut host = host();
        let mut packer = Packer::new();
        let mut state = Vec::new();
        for number in 1..4 {
            let page = packer.pack(&pages(1, number as u8));
            let mut differs = Vec::new();
            encoding::put_state(&state, &[number as u8; 100], &mut differs);
            state = vec![number as u8; 100];
            let differs = packer.pack(&differs);
            let end = End {
                number: Number(number),
                parts: 1,
                sum: [&page, &differs].iter().fold(0, |sum, it| add(sum, it)),
                flows: Vec::new(),
            };
            let (memory, mirror) = (&host.memory, &mut host.mirror);
            let pages = CheckpointPart::Pages(Some(Number(number)));
            mirror.part(pages, page, memory).unwrap();
            let applied = mirror
                .part(CheckpointPart::End(end), differs, memory)
                .unwrap();
            assert_eq!(applied, Some(Number(number)));
            assert_eq!(host.page(1)[9], number as u8);
        }
        assert_eq!(host.mirror.take().0, state);
        // A part of the stream is lost.
        let (lost, page) = (packer.pack(&pages(2, 8)), packer.pack(&pages(2, 9)));
        let differs = packer.pack(&[]);
        let end = End {
            number: Number(4),
            parts: 2,
            sum: [&lost, &page, &differs]
                .iter()
                .fold(0, |sum, it| add(sum, it)),
            flows: Vec::new(),
        };
        let (memory, mirror) = (&host.memory, &mut host.mirror);
        let taken = mirror.part(CheckpointPart::Pages(Some(Number(4))), page, memory);
        let ended = taken.and_then(|_| mirror.part(CheckpointPart::End(end), differs, memory));
        assert!(matches!(ended, Err(ApplyError::NotWhole(_))));
        assert_eq!(host.page(2)[0], 0);
    }
}
