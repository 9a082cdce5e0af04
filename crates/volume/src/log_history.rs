//! The history of the log: its timelines, and where each was left for the next one (pure).
//!
//! ```text
//!   timeline 4  ────────┤ fork        a file of timeline 4 is part of the history up to the fork;
//!   timeline 5          ├───┤ fork    what an active of timeline 4 wrote behind it is not,
//!   timeline 6              ├──────▶  in the same segment or in later ones
//! ```
//!
//! Invariant: the branches ascend, each begins where the one before ends, and the last one has no end.

use std::ops::Range;
use std::sync::Arc;

use crate::lsn::Lsn;

/// One timeline of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBranch {
    /// Number of the timeline.
    pub timeline: u32,
    /// The position at which it was forked from the one before.
    pub begin: Lsn,
    /// The position at which the next one was forked from it; `None` for the newest.
    pub end: Option<Lsn>,
}

/// See the module. Empty: nothing is known, and every file of the log counts as part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogHistory(Arc<[LogBranch]>);

impl LogHistory {
    /// A history of these timelines, oldest first.
    pub fn new(branches: impl IntoIterator<Item = LogBranch>) -> LogHistory {
        LogHistory(branches.into_iter().collect())
    }

    /// The position at which the newest timeline begins. All log before it is durable: a server begins a timeline
    /// when it has replayed the log up to there, and the end of that log was fixed before.
    pub fn begin(&self) -> Lsn {
        self.0.last().map_or(Lsn::ZERO, |newest| newest.begin)
    }

    /// End of the part of a timeline's segment that belongs to the history; `None` if nothing of it does.
    pub fn end_of(&self, timeline: u32, segment: &Range<Lsn>) -> Option<Lsn> {
        if self.0.is_empty() {
            return Some(segment.end);
        }
        let branch = self.0.iter().find(|branch| branch.timeline == timeline)?;
        let end = branch.end.unwrap_or(Lsn(u64::MAX)).min(segment.end);
        let has_log = end > segment.start && segment.end > branch.begin;
        has_log.then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(forks: &[(u32, u64)], newest: u32) -> LogHistory {
        let mut begin = Lsn::ZERO;
        let mut branches = Vec::new();
        for (timeline, fork) in forks {
            let end = Some(Lsn(*fork));
            branches.push(LogBranch {
                timeline: *timeline,
                begin,
                end,
            });
            begin = Lsn(*fork);
        }
        branches.push(LogBranch {
            timeline: newest,
            begin,
            end: None,
        });
        LogHistory::new(branches)
    }

    // hazard: WAL-1
    #[test]
    fn segments_end_at_the_fork_of_their_timeline() {
        // Two forks in the segment from 300 on, and one on the boundary at 400.
        let history = history(&[(1, 310), (2, 399), (4, 400)], 5);
        let end = |timeline, start| history.end_of(timeline, &(Lsn(start)..Lsn(start + 100)));
        assert_eq!(end(1, 200), Some(Lsn(300)));
        assert_eq!(end(1, 300), Some(Lsn(310)));
        assert_eq!(end(1, 400), None, "behind the fork");
        assert_eq!(end(2, 300), Some(Lsn(399)));
        assert_eq!(end(2, 400), None);
        assert_eq!(end(2, 200), None, "it had not begun");
        assert_eq!(end(3, 300), None, "no ancestor");
        assert_eq!(end(4, 300), Some(Lsn(400)), "up to the last byte");
        assert_eq!(end(4, 400), None, "forked on the boundary");
        assert_eq!(end(5, 300), None, "begins with the next one");
        assert_eq!(end(5, 400), Some(Lsn(500)));
        assert_eq!(history.begin(), Lsn(400));
    }

    #[test]
    fn without_a_history_all_log_counts() {
        let unknown = LogHistory::default();
        assert_eq!(unknown.end_of(7, &(Lsn(100)..Lsn(200))), Some(Lsn(200)));
        assert_eq!(unknown.begin(), Lsn::ZERO);
    }
}
