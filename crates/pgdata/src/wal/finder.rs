//! Where valid log ends, from a position on.
//!
//! Invariant: the end is that of the last record reachable from the start without a gap; whatever
//! lies behind it was never acknowledged as synced, or is of a dead timeline.

use std::ops::Range;

use volume::lsn::Lsn;

use super::follower::{Follower, Start, Stop};
use super::record::Record;
use crate::segment::SegmentSize;
use crate::timeline::TimelineId;

const CHUNK_BYTES: u64 = 128 << 10;

/// The end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// [`Record::end`] of the last record, or the start if there was none.
    pub end: Lsn,
    /// The last record's start.
    pub last_record: Option<Lsn>,
    /// The newest timeline of the pages read; 0 if none was.
    pub timeline: TimelineId,
    /// What is behind the end.
    pub stop: Stop,
}

/// Finds the end of the log. The caller does the reading, so it may wait as it likes:
///
/// ```text
/// while let Some(range) = finder.wants() {
///     finder.give(range.start, &read(range), &mut on_record);
/// }
/// ```
///
/// The bytes come from the file that [`SegmentName::to_read`](crate::segment::SegmentName::to_read)
/// names. A range never spans two segments.
#[derive(Debug)]
pub struct EndFinder {
    size: SegmentSize,
    follower: Follower,
    given: Lsn,
}

impl EndFinder {
    /// Nothing read yet.
    pub fn new(size: SegmentSize, start: Start) -> EndFinder {
        EndFinder {
            size,
            follower: Follower::new(size, start),
            given: Lsn::ZERO,
        }
    }

    /// What to read next; `None` when the end is found.
    pub fn wants(&self) -> Option<Range<Lsn>> {
        let Stop::Missing(at) = self.follower.stop() else {
            return None;
        };
        let segment_end = self.size.start(at).0 + self.size.bytes();
        (at >= self.given).then(|| at..Lsn((at.0 + CHUNK_BYTES).min(segment_end)))
    }

    /// Takes what was read at the start of the range wanted; fewer bytes than wanted, or none,
    /// count as zeros.
    pub fn give(&mut self, at: Lsn, bytes: &[u8], on_record: &mut dyn FnMut(&Record)) {
        if let Some(wanted) = self.wants() {
            self.given = wanted.end;
        }
        self.follower.feed(at, bytes, on_record);
    }

    /// The end, as far as read.
    pub fn end(&self) -> LogEnd {
        LogEnd {
            end: self.follower.end(),
            last_record: self.follower.last_record(),
            timeline: self.follower.timeline(),
            stop: self.follower.stop(),
        }
    }
}

/// Finds the end of the log with a function that reads; see [`EndFinder`].
///
/// # Errors
/// Those of `read`.
pub fn find_end<E>(
    size: SegmentSize,
    start: Start,
    mut read: impl FnMut(Range<Lsn>) -> Result<Vec<u8>, E>,
    on_record: &mut dyn FnMut(&Record),
) -> Result<LogEnd, E> {
    let mut finder = EndFinder::new(size, start);
    while let Some(range) = finder.wants() {
        let bytes = read(range.clone())?;
        finder.give(range.start, &bytes, on_record);
    }
    Ok(finder.end())
}
