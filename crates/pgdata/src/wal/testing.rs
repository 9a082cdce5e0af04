//! A small writer of logs, for tests: the other side of the decoder, from the same description.

use volume::lsn::Lsn;

use super::record::HEADER_BYTES;
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::timeline::TimelineId;

/// Appends records of the rmgr "logical message" (21), whose contents mean nothing.
pub(crate) struct LogWriter {
    size: SegmentSize,
    start: Lsn,
    timeline: TimelineId,
    bytes: Vec<u8>,
    previous: Lsn,
    records: Vec<(Lsn, Lsn)>,
}

impl LogWriter {
    /// An empty log; `start` is the start of a segment.
    pub fn new(size: SegmentSize, start: Lsn, timeline: TimelineId) -> LogWriter {
        let (bytes, records) = (Vec::new(), Vec::new());
        LogWriter {
            size,
            start,
            timeline,
            bytes,
            previous: Lsn::ZERO,
            records,
        }
    }

    pub fn start(&self) -> Lsn {
        self.start
    }

    /// All bytes; the last page is not full.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Starts and ends of the records.
    pub fn records(&self) -> Vec<(Lsn, Lsn)> {
        self.records.clone()
    }

    fn position(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }

    /// Appends a record with `length` bytes of main data.
    pub fn append(&mut self, length: usize) {
        let main: Vec<u8> = (0..length).map(|i| (i % 251) as u8 + 1).collect();
        self.append_record(21, 0x00, &[], &main);
    }

    /// Appends a record with these block headers and this main data.
    pub fn append_record(&mut self, rmid: u8, info: u8, blocks: &[u8], main: &[u8]) {
        let mut rest = blocks.to_vec();
        if let Ok(short) = u8::try_from(main.len()) {
            rest.extend([255, short]);
        } else {
            rest.push(254);
            rest.extend(u32::try_from(main.len()).unwrap().to_le_bytes());
        }
        rest.extend(main);
        let total = u32::try_from(HEADER_BYTES + rest.len()).unwrap();
        let mut record = total.to_le_bytes().to_vec();
        record.extend([0; 4]);
        record.extend(self.previous.0.to_le_bytes());
        record.extend([info, rmid, 0, 0]);
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&rest), &record);
        record.extend(checksum.to_le_bytes());
        record.extend(rest);
        self.write(&record);
    }

    fn write(&mut self, record: &[u8]) {
        if self.bytes.len().is_multiple_of(LOG_PAGE_BYTES) {
            self.page_header(0);
        }
        let start = self.position();
        let mut rest = record;
        loop {
            let room = LOG_PAGE_BYTES - self.bytes.len() % LOG_PAGE_BYTES;
            let (here, more) = rest.split_at(rest.len().min(room));
            self.bytes.extend(here);
            rest = more;
            if rest.is_empty() {
                break;
            }
            self.page_header(rest.len());
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.previous = start;
        self.records.push((start, self.position()));
    }

    fn page_header(&mut self, rest: usize) {
        let at = self.position();
        let long = self.size.offset(at) == 0;
        let flags = u16::from(rest > 0) | if long { 2 } else { 0 };
        self.bytes.extend(0xD110u16.to_le_bytes());
        self.bytes.extend(flags.to_le_bytes());
        self.bytes.extend(self.timeline.0.to_le_bytes());
        self.bytes.extend(at.0.to_le_bytes());
        self.bytes
            .extend(u32::try_from(rest).unwrap().to_le_bytes());
        self.bytes.extend([0; 4]);
        if long {
            self.bytes.extend(4711u64.to_le_bytes());
            self.bytes
                .extend(u32::try_from(self.size.bytes()).unwrap().to_le_bytes());
            self.bytes
                .extend(u32::try_from(LOG_PAGE_BYTES).unwrap().to_le_bytes());
        }
    }
}
