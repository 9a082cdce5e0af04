//! The files of the log: segments of equal size, named by timeline and number.
//!
//! Invariant: a segment size is a power of two between 1 MiB and 1 GiB, as PostgreSQL demands, so
//! arithmetic on it neither divides by zero nor overflows.

use std::fmt;
use std::ops::Range;

use volume::lsn::Lsn;

use crate::timeline::{Entry, History, TimelineId};

/// Bytes in a page of the log (`XLOG_BLCKSZ`).
pub const LOG_PAGE_BYTES: usize = 8192;

/// Bytes in a segment of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// What `initdb` makes unless told otherwise: 16 MiB.
    pub const DEFAULT: SegmentSize = SegmentSize(16 << 20);

    /// 4 MiB.
    pub const SMALL: SegmentSize = SegmentSize(4 << 20);

    /// A power of two from 1 MiB to 1 GiB, else `None`.
    pub fn new(bytes: u32) -> Option<SegmentSize> {
        let allowed = bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes);
        allowed.then_some(SegmentSize(bytes))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// The number of the segment that holds the byte at `at`.
    pub fn number(self, at: Lsn) -> u64 {
        at.0 / self.bytes()
    }

    /// The first position of the segment that holds `at`.
    pub fn start(self, at: Lsn) -> Lsn {
        Lsn(at.0 - at.0 % self.bytes())
    }

    /// The byte's offset in its segment.
    pub fn offset(self, at: Lsn) -> u64 {
        at.0 % self.bytes()
    }

    fn per_high_word(self) -> u64 {
        (1 << 32) / self.bytes()
    }
}

/// The name of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// The timeline that it belongs to.
    pub timeline: TimelineId,
    /// Its number, counted from the start of the log.
    pub number: u64,
}

impl SegmentName {
    /// The segment of `timeline` that holds the byte at `at`.
    pub fn holding(timeline: TimelineId, at: Lsn, size: SegmentSize) -> SegmentName {
        SegmentName {
            timeline,
            number: size.number(at),
        }
    }

    /// The file to read the log at `at` from: the newest timeline of `history` that has the segment, as PostgreSQL
    /// chooses. (The new timeline's first segment begins with a copy of the old one's bytes.)
    pub fn to_read(history: &History, at: Lsn, size: SegmentSize) -> SegmentName {
        let first = SegmentName::candidates(history, at, size).next();
        first.unwrap_or(SegmentName::holding(history.timeline(), at, size))
    }

    /// The files that hold the log at `at`, where some may not be there (yet): those of the newest timeline first. Not
    /// that of a timeline that had been left before `at`: what it has there is of a dead active.
    pub fn candidates(
        history: &History,
        at: Lsn,
        size: SegmentSize,
    ) -> impl Iterator<Item = SegmentName> + '_ {
        let newest_first = history.entries().iter().rev();
        let holds = move |entry: &&Entry| {
            let has_begun = size.number(entry.begin) <= size.number(at);
            has_begun && entry.end.is_none_or(|end| at < end)
        };
        newest_first
            .filter(holds)
            .map(move |entry| SegmentName::holding(entry.timeline, at, size))
    }

    /// Parses 24 upper-case hexadecimal digits (a name without directories).
    pub fn parse(name: &str, size: SegmentSize) -> Option<SegmentName> {
        let hex = |b: u8| b.is_ascii_digit() || (b'A'..=b'F').contains(&b);
        if name.len() != 24 || !name.bytes().all(hex) {
            return None;
        }
        let word = |at: usize| u32::from_str_radix(&name[at..at + 8], 16).ok();
        let low = u64::from(word(16)?);
        if low >= size.per_high_word() {
            return None;
        }
        let number = u64::from(word(8)?) * size.per_high_word() + low;
        Some(SegmentName {
            timeline: TimelineId(word(0)?),
            number,
        })
    }

    /// The positions of its first byte and of the byte after its last.
    pub fn range(self, size: SegmentSize) -> Range<Lsn> {
        let start = self.number.saturating_mul(size.bytes());
        Lsn(start)..Lsn(start.saturating_add(size.bytes()))
    }

    /// The file name.
    pub fn file_name(self, size: SegmentSize) -> String {
        let (high, low) = (
            self.number / size.per_high_word(),
            self.number % size.per_high_word(),
        );
        format!("{:08X}{high:08X}{low:08X}", self.timeline.0)
    }
}

impl fmt::Display for SegmentSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0 >> 20)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_those_of_postgresql() {
        let name = SegmentName::holding(TimelineId(2), Lsn(0x1_2345_6789), SegmentSize::DEFAULT);
        assert_eq!(
            name.file_name(SegmentSize::DEFAULT),
            "000000020000000100000023"
        );
        let range = name.range(SegmentSize::DEFAULT);
        assert_eq!(range, Lsn(0x1_2300_0000)..Lsn(0x1_2400_0000));
        for bad in [
            "00000002000000010000002",
            "000000020000000100000g23",
            "00000002.history",
            "000000020000000100000123",
            "0000000200000001000000aa",
            "000000020000000100000023.partial",
        ] {
            assert_eq!(SegmentName::parse(bad, SegmentSize::DEFAULT), None, "{bad}");
        }
    }

    #[test]
    fn log_is_read_from_the_newest_timeline_that_has_the_segment() {
        let text = "1\t0/3000000\tx\n3\t0/5000148\tx\n";
        let history = History::parse(TimelineId(4), text).unwrap();
        let size = SegmentSize::DEFAULT;
        let timeline_of = |at| SegmentName::to_read(&history, Lsn(at), size).timeline.0;
        assert_eq!(timeline_of(0x2FFFFFF), 1);
        assert_eq!(timeline_of(0x3000000), 3);
        assert_eq!(timeline_of(0x4FFFFFF), 3);
        assert_eq!(timeline_of(0x5000000), 4, "copied at the promotion");
    }

    /// A standby was handed a segment of timeline 4 that begins behind the fork of that timeline, because the newer
    /// ones had no such segment yet.
    // hazard: WAL-1
    #[test]
    fn a_timeline_left_before_a_position_does_not_hold_it() {
        let text = "4\t0/1BFF650\tx\n5\t0/1BFF680\tx\n";
        let history = History::parse(TimelineId(6), text).unwrap();
        let candidates = |at| {
            let names = SegmentName::candidates(&history, Lsn(at), SegmentSize::SMALL);
            names.map(|name| name.timeline.0).collect::<Vec<u32>>()
        };
        assert_eq!(candidates(0x1BFF64F), [6, 5, 4]);
        assert_eq!(candidates(0x1BFF650), [6, 5]);
        assert_eq!(candidates(0x1BFF680), [6]);
        assert_eq!(candidates(0x1C00000), [6]);
        assert_eq!(candidates(0x17FFFFF), [4]);
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(SegmentSize::new(16 << 20), Some(SegmentSize::DEFAULT));
        for bad in [0, 1, 512 << 10, (16 << 20) + 1, 1 << 31] {
            assert_eq!(SegmentSize::new(bad), None);
        }
    }

    proptest! {
        #[test]
        fn names_survive_a_round_trip(timeline in 1u32.., at in 0..u64::MAX / 2, power in 20u32..=30) {
            let size = SegmentSize::new(1 << power).unwrap();
            let name = SegmentName::holding(TimelineId(timeline), Lsn(at), size);
            prop_assert_eq!(SegmentName::parse(&name.file_name(size), size), Some(name));
            prop_assert!(name.range(size).contains(&Lsn(at)));
        }
    }
}
