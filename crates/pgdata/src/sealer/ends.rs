//! Where complete records end, segment by segment.
//!
//! A sync makes one segment's file durable. A record that goes on in the next one is not complete then, and the end of
//! the segment is a place where no record ends: nobody who replays what is durable gets there. Owns: for each of the last
//! boundaries between segments that lie inside a record, the end of the last record before it.

use std::collections::BTreeMap;

use volume::lsn::Lsn;

use crate::segment::SegmentSize;

/// Boundaries that are remembered: more than are ever written and not synced yet.
const KEPT: usize = 64;

#[derive(Debug)]
pub(super) struct Ends {
    size: SegmentSize,
    /// The end of the last record.
    last: Lsn,
    before: BTreeMap<Lsn, Lsn>,
}

impl Ends {
    /// The last complete record ends at `end`.
    pub(super) fn new(size: SegmentSize, end: Lsn) -> Ends {
        Ends {
            size,
            last: end,
            before: BTreeMap::new(),
        }
    }

    /// The next record ends at `end`.
    pub(super) fn record(&mut self, end: Lsn) {
        let bytes = self.size.bytes();
        // The last record may end at one.
        let mut boundary = Lsn(self.last.0.next_multiple_of(bytes));
        while boundary < end {
            self.before.insert(boundary, self.last);
            boundary = Lsn(boundary.0 + bytes);
        }
        while self.before.len() > KEPT {
            self.before.pop_first();
        }
        self.last = end;
    }

    /// The end of the last record that is complete if the log is durable up to `boundary`, the end of a segment; `None` if
    /// that was too long ago.
    pub(super) fn up_to(&self, boundary: Lsn) -> Option<Lsn> {
        match self.last <= boundary {
            true => Some(self.last),
            false => self.before.get(&boundary).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ends(records: &[u64]) -> Ends {
        let size = SegmentSize::new(MIB as u32).unwrap();
        let mut ends = Ends::new(size, Lsn(0x28));
        for end in records {
            ends.record(Lsn(*end));
        }
        ends
    }

    #[test]
    fn a_record_over_a_boundary_does_not_count_before_it() {
        let ends = ends(&[MIB - 100, MIB + 200]);
        assert_eq!(ends.up_to(Lsn(MIB)), Some(Lsn(MIB - 100)));
        assert_eq!(ends.up_to(Lsn(2 * MIB)), Some(Lsn(MIB + 200)));
    }

    #[test]
    fn a_record_that_ends_at_a_boundary_counts() {
        let ends = ends(&[MIB - 100, MIB, MIB + 200]);
        assert_eq!(ends.up_to(Lsn(MIB)), Some(Lsn(MIB)));
    }

    #[test]
    fn a_record_of_several_segments_counts_at_its_end() {
        let ends = ends(&[50, 3 * MIB + 8]);
        assert_eq!(ends.up_to(Lsn(MIB)), Some(Lsn(50)));
        assert_eq!(ends.up_to(Lsn(3 * MIB)), Some(Lsn(50)));
        assert_eq!(ends.up_to(Lsn(4 * MIB)), Some(Lsn(3 * MIB + 8)));
    }

    #[test]
    fn little_is_remembered() {
        let records: Vec<u64> = (1..200).map(|n| n * MIB + 8).collect();
        let ends = ends(&records);
        assert_eq!(ends.up_to(Lsn(MIB)), None);
        assert_eq!(ends.up_to(Lsn(199 * MIB)), Some(Lsn(198 * MIB + 8)));
    }
}
