//! Following a log that is being written.
//!
//! ```text
//!         feed(page..)            complete record
//!     +-----------------+   +---------------------------+
//!     |  waiting for    |-->| handed out, `end` moves,  |--+
//!     |  a page or more |   | pages before it forgotten |  |
//!     +-----------------+<--+---------------------------+<-+
//!        missing | invalid
//! ```
//!
//! Invariant: every record is handed out once, in order, and only when all its bytes were fed and
//! its checksum and its link to the record before are right. Memory is bounded by the window (and
//! one record): pages further ahead are dropped, which [`Follower::starved`] tells.

use std::collections::BTreeMap;

use volume::lsn::Lsn;

use super::page::PageHeader;
use super::record::{self, HEADER_BYTES, MAX_BYTES, Place, Record};
use crate::bytes_at::u32_at;
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::timeline::TimelineId;

const PAGE: u64 = LOG_PAGE_BYTES as u64;
const DEFAULT_WINDOW_BYTES: u64 = 16 << 20;

/// Where to start reading a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the start of a record, or at the end of one (a checkpoint's redo pointer, a seal's W).
    Record(Lsn),
    /// At the first record that starts on the page of this position or later.
    Page(Lsn),
}

/// Why no more records can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The page at this position was not fed, or only zeros.
    Missing(Lsn),
    /// What is at this position is not, or not yet, valid log.
    Invalid(Lsn, &'static str),
}

/// Decodes a log from pages fed in any order. See the module.
#[derive(Debug)]
pub struct Follower {
    size: SegmentSize,
    window_bytes: u64,
    /// Where the next record starts; a page's start means behind its header.
    next: Lsn,
    /// Start of the record handed out last.
    previous: Option<Lsn>,
    /// The newest timeline of pages read.
    timeline: TimelineId,
    /// True if `next` is a page whose first record's start is still to be found.
    scanning: bool,
    /// The record that waits for more pages, if it began on pages that are there.
    pending: Option<Pending>,
    /// Pages that were fed and are not used up, by number.
    pages: BTreeMap<u64, Box<[u8]>>,
    /// The last page that did not fit the window.
    dropped: Option<u64>,
    stop: Stop,
}

/// How far the pages of the next record were looked at. They are only put together once all of them
/// are there, so a record of any length is copied once, however it is fed.
#[derive(Debug, Clone, Copy)]
struct Pending {
    start: Lsn,
    total: usize,
    /// How much of it is on the pages looked at.
    here: usize,
    /// The last of these.
    page: Lsn,
    /// True if its header is all there and fits what was before.
    verified: bool,
    /// True if all of it is there, and its checksum is wrong.
    is_wrong: bool,
    newest: TimelineId,
}

impl Pending {
    fn wrong(&self) -> Stop {
        Stop::Invalid(self.start, "wrong record checksum")
    }
}

/// A record's bytes and place, not yet decoded.
struct Raw {
    bytes: Vec<u8>,
    place: Place,
    newest: TimelineId,
}

enum Step {
    Found(Raw),
    /// The rest of a record was overwritten; records go on at this page.
    Overwritten(Lsn),
}

impl Follower {
    /// Nothing fed yet.
    pub fn new(size: SegmentSize, start: Start) -> Follower {
        let (next, scanning) = match start {
            Start::Record(at) => (at, false),
            Start::Page(at) => (page_start(at), true),
        };
        Follower {
            size,
            window_bytes: DEFAULT_WINDOW_BYTES,
            next,
            previous: None,
            timeline: TimelineId(0),
            scanning,
            pending: None,
            pages: BTreeMap::new(),
            dropped: None,
            stop: Stop::Missing(page_start(next)),
        }
    }

    /// Keeps pages up to `bytes` ahead of the last record (16 MiB by default).
    pub fn with_window(mut self, bytes: u64) -> Follower {
        self.window_bytes = bytes;
        self
    }

    /// The end of the last complete record: [`Record::end`], or the start given. While no record was
    /// found from [`Start::Page`], the start of the page searched.
    pub fn end(&self) -> Lsn {
        self.next
    }

    /// The start of the last complete record, if there was one.
    pub fn last_record(&self) -> Option<Lsn> {
        self.previous
    }

    /// The newest timeline of the pages read so far; 0 before the first.
    pub fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// What keeps the next record from being read.
    pub fn stop(&self) -> Stop {
        self.stop
    }

    /// The page to read from storage, if log behind it was fed but it itself was not: a gap, or
    /// pages dropped for being outside the window.
    pub fn starved(&self) -> Option<Lsn> {
        let Stop::Missing(at) = self.stop else {
            return None;
        };
        let ahead = self.pages.range(at.0 / PAGE + 1..).next().is_some();
        let dropped = self.dropped.is_some_and(|dropped| at.0 / PAGE <= dropped);
        (ahead || dropped).then_some(at)
    }

    /// Takes written bytes: any part of the log, in any order; pages may come again with more on
    /// them. Hands each record that became complete to `on_record`.
    pub fn feed(&mut self, at: Lsn, data: &[u8], on_record: &mut dyn FnMut(&Record)) {
        self.keep(at, data);
        loop {
            match self.step() {
                Ok(record) => on_record(&record),
                Err(stop) => {
                    self.stop = stop;
                    return;
                }
            }
        }
    }

    /// Stores what may still be needed.
    fn keep(&mut self, at: Lsn, data: &[u8]) {
        let first_page = self.next.0 / PAGE;
        let verified = self.pending.filter(|pending| pending.verified);
        let pending_bytes = verified.map_or(0, |pending| pending.total as u64);
        let ahead = self.window_bytes.max(pending_bytes + 2 * PAGE);
        let last_page = self.next.0.saturating_add(ahead + pending_bytes / 128) / PAGE;
        let (mut position, mut rest) = (at.0, data);
        while !rest.is_empty() {
            let (page, offset) = (position / PAGE, (position % PAGE) as usize);
            let (piece, more) = rest.split_at(rest.len().min(LOG_PAGE_BYTES - offset));
            rest = more;
            position += piece.len() as u64;
            let empty = piece.iter().all(|byte| *byte == 0);
            if page < first_page || (empty && !self.pages.contains_key(&page)) {
                continue;
            }
            if page > last_page {
                self.dropped = self.dropped.max(Some(page));
                continue;
            }
            let kept = self
                .pages
                .entry(page)
                .or_insert_with(|| vec![0; LOG_PAGE_BYTES].into_boxed_slice());
            kept[offset..offset + piece.len()].copy_from_slice(piece);
            // What was looked at may be different now.
            if self.pending.is_some_and(|seen| page <= seen.page.0 / PAGE) {
                self.pending = None;
            }
        }
    }

    /// The next record, if it is complete; forgets the pages that it used up.
    fn step(&mut self) -> Result<Record, Stop> {
        if self.scanning {
            self.next = self.find_first()?;
            self.scanning = false;
        }
        let raw = loop {
            match self.gather()? {
                Step::Found(raw) => break raw,
                Step::Overwritten(page) => (self.next, self.pending) = (page, None),
            }
        };
        let invalid = |why| Stop::Invalid(raw.place.start, why);
        let record = record::decode(&raw.bytes, raw.place).map_err(invalid)?;
        self.previous = Some(record.start);
        self.next = record.end;
        self.timeline = self.timeline.max(raw.newest);
        self.pending = None;
        self.forget_used();
        Ok(record)
    }

    fn forget_used(&mut self) {
        let first = self.next.0 / PAGE;
        while self
            .pages
            .first_key_value()
            .is_some_and(|(page, _)| *page < first)
        {
            self.pages.pop_first();
        }
        if self.dropped.is_some_and(|dropped| dropped < first) {
            self.dropped = None;
        }
    }

    fn page(&self, at: Lsn) -> Result<(&[u8], PageHeader), Stop> {
        let page = self.pages.get(&(at.0 / PAGE)).ok_or(Stop::Missing(at))?;
        let header = PageHeader::parse(page, at, self.size);
        let header = header.map_err(|why| Stop::Invalid(at, why))?;
        if header.timeline < self.timeline {
            return Err(Stop::Invalid(at, "page of an older timeline"));
        }
        Ok((page, header))
    }

    /// From the start of a page: behind the rest of a record that began earlier. Pages that hold
    /// nothing else are passed for good.
    fn find_first(&mut self) -> Result<Lsn, Stop> {
        loop {
            let (_, header) = self.page(self.next)?;
            let rest = if header.continues {
                header.rest.next_multiple_of(8)
            } else {
                0
            };
            if header.bytes + rest < LOG_PAGE_BYTES {
                return Ok(Lsn(self.next.0 + (header.bytes + rest) as u64));
            }
            self.next = Lsn(self.next.0 + PAGE);
            self.forget_used();
        }
    }

    /// The bytes of the next record, once all its pages are there.
    fn gather(&mut self) -> Result<Step, Stop> {
        let mut pending = match self.pending {
            Some(pending) => pending,
            None => self.begin()?,
        };
        if pending.is_wrong {
            return Err(pending.wrong());
        }
        while pending.here < pending.total {
            self.pending = Some(pending);
            let at = Lsn(pending.page.0 + PAGE);
            let (_, header) = self.page(at)?;
            if header.overwrites {
                return Ok(Step::Overwritten(at));
            }
            if !header.continues || header.rest != pending.total - pending.here {
                let why = "record is not continued on the next page";
                return Err(Stop::Invalid(pending.start, why));
            }
            pending.page = at;
            pending.here += header.rest.min(LOG_PAGE_BYTES - header.bytes);
            pending.newest = pending.newest.max(header.timeline);
            if !pending.verified {
                pending.verified = self.verify_header(&self.bytes_of(&pending)?, pending.start)?;
            }
        }
        let bytes = self.bytes_of(&pending)?;
        if !record::checksum_is_right(&bytes) {
            pending.is_wrong = true;
            self.pending = Some(pending);
            return Err(pending.wrong());
        }
        self.placed(&pending, bytes).map(Step::Found)
    }

    /// Looks at the page that the next record begins on.
    fn begin(&self) -> Result<Pending, Stop> {
        let page_at = page_start(self.next);
        let (page, header) = self.page(page_at)?;
        let offset = match (self.next.0 - page_at.0) as usize {
            0 => header.bytes,
            offset if offset < header.bytes => {
                return Err(Stop::Invalid(self.next, "position inside a page header"));
            }
            offset => offset,
        };
        let start = Lsn(page_at.0 + offset as u64);
        let invalid = |why| Err(Stop::Invalid(start, why));
        if header.continues && offset == header.bytes {
            return invalid("rest of a record where one should begin");
        }
        let total = u32_at(page, offset) as usize;
        if !(HEADER_BYTES..=MAX_BYTES).contains(&total) {
            return invalid(if total == 0 {
                "no record"
            } else {
                "impossible record length"
            });
        }
        let here = total.min(LOG_PAGE_BYTES - offset);
        Ok(Pending {
            start,
            total,
            here,
            page: page_at,
            verified: self.verify_header(&page[offset..offset + here], start)?,
            is_wrong: false,
            newest: header.timeline,
        })
    }

    /// What the pages looked at have of a record.
    fn bytes_of(&self, record: &Pending) -> Result<Vec<u8>, Stop> {
        let mut at = page_start(record.start);
        let offset = (record.start.0 - at.0) as usize;
        let mut bytes = Vec::with_capacity(record.here);
        bytes.extend_from_slice(
            &self.page(at)?.0[offset..][..record.here.min(LOG_PAGE_BYTES - offset)],
        );
        while at < record.page {
            at = Lsn(at.0 + PAGE);
            let (page, header) = self.page(at)?;
            let here = (record.here - bytes.len()).min(LOG_PAGE_BYTES - header.bytes);
            bytes.extend_from_slice(&page[header.bytes..][..here]);
        }
        Ok(bytes)
    }

    /// Where a record lies of which all pages are there.
    fn placed(&self, record: &Pending, bytes: Vec<u8>) -> Result<Raw, Stop> {
        let (_, first) = self.page(page_start(record.start))?;
        let (_, last) = self.page(record.page)?;
        let mut end = match page_start(record.start) == record.page {
            true => record.start.0 + bytes.len().next_multiple_of(8) as u64,
            false => record.page.0 + (last.bytes + last.rest.next_multiple_of(8)) as u64,
        };
        if record::is_switch(&bytes) {
            end = end.next_multiple_of(self.size.bytes());
        }
        let place = Place {
            start: record.start,
            end: Lsn(end),
            timeline: first.timeline,
            new_image_flags: first.new_image_flags,
        };
        Ok(Raw {
            bytes,
            place,
            newest: record.newest,
        })
    }

    /// Checks a record's link to the one before; false if its header is not all there yet.
    fn verify_header(&self, bytes: &[u8], start: Lsn) -> Result<bool, Stop> {
        if bytes.len() < HEADER_BYTES {
            return Ok(false);
        }
        let link = record::previous(bytes);
        let right = self
            .previous
            .map_or(link < start, |previous| link == previous);
        if right {
            Ok(true)
        } else {
            Err(Stop::Invalid(start, "wrong link to the record before"))
        }
    }
}

fn page_start(at: Lsn) -> Lsn {
    Lsn(at.0 - at.0 % PAGE)
}
