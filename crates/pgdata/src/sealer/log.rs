//! The log as it was written, synced or not. Pure.

use volume::log_syncs::LogSyncs;
use volume::lsn::Lsn;

use super::bulk::BulkPages;
use super::ends::Ends;
use super::shown::Unshown;
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::wal::{Follower, Start, Stop};

pub(super) struct Log {
    pub follower: Follower,
    pub ends: Ends,
    pub pages: BulkPages,
    pub unshown: Unshown,
    pub syncs: LogSyncs,
    /// True if syncs of segments may be answered before they are durable.
    pub is_ordered: bool,
    /// The end of what was written last in place.
    pub written: Lsn,
    /// The same when the last sync began, and when the last one began that is done, as are all before it.
    syncing: Lsn,
    synced: Lsn,
}

impl Log {
    /// One whose last complete record ends at `end`, all of it durable.
    pub(super) fn new(size: SegmentSize, end: Lsn) -> Log {
        Log {
            follower: Follower::new(size, Start::Record(end)),
            ends: Ends::new(size, end),
            pages: BulkPages::default(),
            unshown: Unshown::default(),
            syncs: LogSyncs::new(end),
            is_ordered: false,
            written: end,
            syncing: end,
            synced: end,
        }
    }

    /// True if a sync that begins now may be answered before it is durable. Not if the log cannot be followed to what
    /// was written: nothing would confirm its commits. Not at the end of a segment: the archiver takes that segment then,
    /// and what it archived must be in every later history.
    ///
    /// If so it counts as answered at once: whoever makes the log strict, and asks then what was answered, must hear of it.
    pub(super) fn answer_early(&mut self, size: SegmentSize, token: u64) -> bool {
        let ends_segment = size.offset(self.written) == 0;
        let early = self.is_ordered
            && !ends_segment
            && self.follower.starved().is_none()
            && self.syncs.may_answer_early();
        if early {
            self.syncs.answer(token);
        }
        early
    }

    /// A sync begins.
    pub(super) fn sync_begins(&mut self) {
        self.syncing = self.written;
    }

    /// One is done.
    pub(super) fn sync_done(&mut self, token: u64) {
        self.syncs.done(token);
        if self.syncs.under_way() == 0 {
            self.synced = self.syncing;
        }
    }

    /// Where the log cannot be followed now, although more than a page behind that was synced. For a moment that is
    /// normal: a page is written with what is still being copied into it, whose checksum is wrong. That is on the last page
    /// only, and a record of which pages are still to come is none that cannot be followed.
    pub(super) fn stuck(&self) -> Option<Lsn> {
        let end = self.follower.end();
        let is_behind = self.synced.0 > end.0 + LOG_PAGE_BYTES as u64;
        let is_wrong = matches!(self.follower.stop(), Stop::Invalid(..));
        (is_behind && (is_wrong || self.follower.starved().is_some())).then_some(end)
    }
}
