//! Which blocks redo is about to read: block references, decoded from log that redo has not come to yet
//! (CAC-DB 4.4.1).
//!
//! Pure: the caller reads the log where [`Lookahead::wants`] says, hands over what passes by anyway,
//! tells where redo is, and fetches what [`Lookahead::pop`] returns.
//!
//! ```text
//!     redo                      decoded                     window       replay limit
//!   ───┼──────── references ───────┼──────── to be read ───────┼──────────────┼──▶
//! ```
//!
//! Invariants: nothing is returned that redo has passed or does not read (it makes the page anew or
//! restores an image), nor what it has read a short while ago, which its own buffers hold. Memory is
//! bounded by [`Limits`] and one record. Being wrong costs a read too many or a wait for one, never
//! more.

mod recent;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use volume::lsn::Lsn;

use self::recent::Recent;
use crate::relation::{Fork, RelationBlock};
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::wal::{BlockRef, Detail, Follower, Record, Start, Stop};

const PAGE: u64 = LOG_PAGE_BYTES as u64;
/// Log is read in pieces that end on multiples of this, so that none spans two segments.
const CHUNK_BYTES: u64 = 512 << 10;
/// So close to the replay limit nothing is read that passes by anyway.
const TAIL_BYTES: u64 = 128 << 10;

/// So far redo goes back to read the start of a record again whose end was not there yet.
const BACK_BYTES: u64 = 64 << 10;

/// How far to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Log that is looked at ahead of redo, in bytes.
    pub window_bytes: u64,
    /// References that may wait to be popped. One record's may exceed it.
    pub waiting_max: usize,
    /// Blocks that may have been fetched while redo has not come to them.
    pub unused_max: usize,
    /// Distinct blocks that redo's own buffers are taken to hold.
    pub recent_blocks: usize,
}

/// A block that redo will read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Block that redo will read.
    pub block: RelationBlock,
    /// The end of the record that needs it: redo that is there has it.
    pub before: Lsn,
}

/// What was decoded so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Records.
    pub records: u64,
    /// References to blocks in them.
    pub references: u64,
    /// Those that redo reads, as far as can be told.
    pub wanted: u64,
    /// Those of them that redo came to before they were popped.
    pub late: u64,
}

/// Decodes WAL ahead of redo into the blocks that redo will read.
#[derive(Debug)]
pub struct Lookahead {
    size: SegmentSize,
    limits: Limits,
    follower: Follower,
    /// Where the follower began.
    origin: Lsn,
    /// The end of the log given without a gap.
    given: Lsn,
    /// Log passes by: the standby is fed.
    passing: bool,
    /// Log from there on passed by, behind a gap.
    beyond: Option<Lsn>,
    /// Where redo reads the log.
    redo: Lsn,
    waiting: VecDeque<Wanted>,
    /// What was popped and redo has not come to.
    taken: VecDeque<Wanted>,
    /// Ends of the records whose blocks were fetched, as far as redo has not passed them.
    unused: VecDeque<Lsn>,
    recent: Recent,
    decoded: Decoded,
}

impl Lookahead {
    /// For redo that starts with the record at `start`.
    pub fn new(size: SegmentSize, start: Lsn, limits: Limits) -> Lookahead {
        Lookahead {
            size,
            limits,
            follower: follower(size, Start::Record(start), limits),
            origin: start,
            given: page_of(start),
            passing: false,
            beyond: None,
            redo: page_of(start),
            waiting: VecDeque::new(),
            taken: VecDeque::new(),
            unused: VecDeque::new(),
            recent: Recent::new(limits.recent_blocks),
            decoded: Decoded::default(),
        }
    }

    /// Redo reads the log at `at`: records that end before are done.
    pub fn redo_at(&mut self, at: Lsn) {
        self.redo = at;
        while let Some(first) = self.waiting.front()
            && first.before <= at
        {
            self.waiting.pop_front();
            self.decoded.late += 1;
        }
        while self.taken.front().is_some_and(|first| first.before <= at) {
            self.taken.pop_front();
        }
        while self.unused.front().is_some_and(|before| *before <= at) {
            self.unused.pop_front();
        }
        if at.0 + BACK_BYTES < self.origin.0 {
            // It began earlier than it first seemed to: nothing of that was read.
            self.recent = Recent::new(self.limits.recent_blocks);
            self.restart(at);
        } else if at > self.given || self.is_stuck(at) {
            self.restart(at);
        }
    }

    /// The log to read next, if the log ends at `replay_limit`; never more than can be used.
    pub fn wants(&self, replay_limit: Lsn) -> Option<Range<Lsn>> {
        if self.waiting.len() >= self.limits.waiting_max {
            return None;
        }
        let end = match self.beyond {
            Some(at) => at.min(replay_limit),
            None if self.passing => page_of(Lsn(replay_limit.0.saturating_sub(TAIL_BYTES))),
            None => replay_limit,
        };
        let window = self.redo.0.saturating_add(self.limits.window_bytes);
        let end = end.min(page_of(Lsn(window)));
        let boundary = Lsn((self.given.0 / CHUNK_BYTES + 1) * CHUNK_BYTES);
        (self.given < end).then(|| self.given..end.min(boundary))
    }

    /// Takes log that was on its way to redo: more of it will come the same way.
    pub fn pass(&mut self, at: Lsn, log: &[u8]) {
        self.passing = true;
        self.give(at, log);
    }

    /// Takes log that was read where it was wanted.
    pub fn give(&mut self, at: Lsn, log: &[u8]) {
        let end = Lsn(at.0 + log.len() as u64);
        if end <= self.given {
            return;
        }
        if at > self.given {
            // The follower keeps what fits its window; the gap is read meanwhile.
            self.beyond = Some(self.beyond.map_or(at, |known| known.min(at)));
        } else {
            self.given = end;
            if self.beyond.is_some_and(|beyond| beyond <= end) {
                self.beyond = None;
            }
        }
        let decoded_before = self.decoded_to();
        let Lookahead {
            follower,
            waiting,
            recent,
            decoded,
            redo,
            ..
        } = self;
        follower.feed(at, log, &mut |record| {
            note(record, *redo, waiting, recent, decoded);
        });
        if self.decoded_to() > decoded_before {
            // Pieces that came behind a gap join.
            self.given = self.given.max(self.decoded_to());
        }
    }

    /// The next block to fetch; none while there are enough that redo has still to come to.
    pub fn pop(&mut self) -> Option<Wanted> {
        if self.unused.len() >= self.limits.unused_max {
            return None;
        }
        let wanted = self.waiting.pop_front()?;
        self.taken.push_back(wanted);
        Some(wanted)
    }

    /// What was popped is fetched: it was not at hand.
    pub fn fetching(&mut self, wanted: &Wanted) {
        self.unused.push_back(wanted.before);
    }

    /// Returns everything again that redo has still to come to: what was at hand may not be so any more.
    pub fn look_again(&mut self) {
        self.taken.append(&mut self.waiting);
        std::mem::swap(&mut self.taken, &mut self.waiting);
    }

    /// How far the log is decoded.
    pub fn decoded_to(&self) -> Lsn {
        self.follower.end()
    }

    /// What was decoded so far.
    pub fn decoded(&self) -> Decoded {
        self.decoded
    }

    /// True if redo, at `redo`, has passed log that cannot be decoded: a page that holds nothing, or one
    /// that is invalid although the one behind it is there as well.
    fn is_stuck(&self, redo: Lsn) -> bool {
        match self.follower.stop() {
            Stop::Missing(at) => at < redo && at.0 + PAGE <= self.given.0,
            Stop::Invalid(at, _) => page_of(at).0 + PAGE < redo.0,
        }
    }

    fn restart(&mut self, at: Lsn) {
        let at = page_of(at);
        self.follower = follower(self.size, Start::Page(at), self.limits);
        (self.origin, self.given, self.beyond) = (at, at, None);
        self.waiting.clear();
        self.taken.clear();
        self.unused.clear();
    }
}

fn follower(size: SegmentSize, start: Start, limits: Limits) -> Follower {
    Follower::new(size, start).with_window(limits.window_bytes)
}

fn page_of(at: Lsn) -> Lsn {
    Lsn(at.0 - at.0 % PAGE)
}

fn note(
    record: &Record,
    redo: Lsn,
    waiting: &mut VecDeque<Wanted>,
    recent: &mut Recent,
    decoded: &mut Decoded,
) {
    decoded.records += 1;
    for reference in &record.blocks {
        decoded.references += 1;
        let block = RelationBlock {
            relation: reference.relation,
            fork: reference.fork,
            block: reference.block,
        };
        let fresh = recent.touch(block);
        if fresh && record.end > redo && is_read(record, reference) {
            decoded.wanted += 1;
            waiting.push_back(Wanted {
                block,
                before: record.end,
            });
        }
    }
}

/// True if redo of the record reads the block as it was.
fn is_read(record: &Record, block: &BlockRef) -> bool {
    let restored = block.has_image && block.apply_image;
    let ignored = matches!(record.detail, Detail::FullPages | Detail::FullPageForHint);
    !(restored || block.will_init || ignored || block.fork == Fork::Init)
}
