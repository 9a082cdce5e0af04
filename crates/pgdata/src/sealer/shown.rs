//! Commits that the log has and the active itself may not show yet. Pure.
//!
//! PostgreSQL shows a commit to others after its log is flushed, and as late as its server process gets to it: standbys may
//! have shown it before. A look at who is under way on the active tells what it shows.
//!
//! Invariant: no commit is taken for shown that no look has found to be; memory is bounded.

use std::collections::VecDeque;

use volume::lsn::Lsn;

use crate::xid::Snapshot;

/// So many are remembered between two looks: more than there can be, if somebody looks as often as
/// [`wants_look`](Unshown::wants_look) says.
const REMEMBERED_MAX: usize = 1 << 20;
/// With so many it is time for a look, whether somebody wants to know or not.
const MANY: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Unshown {
    /// Where each record ends, and whose it is, in the order of the log.
    commits: VecDeque<(Lsn, u32)>,
    /// The greatest that had to be forgotten.
    forgotten: Option<u32>,
}

impl Unshown {
    /// The log has the commit of `xid`, in a record that ends at `end`.
    pub(super) fn committed(&mut self, end: Lsn, xid: u32) {
        if self.commits.len() == REMEMBERED_MAX
            && let Some((_, oldest)) = self.commits.pop_front()
        {
            let is_later = |last: u32| oldest.wrapping_sub(last).cast_signed() > 0;
            if self.forgotten.is_none_or(is_later) {
                self.forgotten = Some(oldest);
            }
        }
        self.commits.push_back((end, xid));
    }

    /// True if so many have gathered that somebody should look.
    pub(super) fn wants_look(&self) -> bool {
        self.commits.len() >= MANY
    }

    /// Somebody looked.
    pub(super) fn looked(&mut self, snapshot: &Snapshot) {
        self.commits.retain(|(_, xid)| snapshot.lacks(*xid));
        let may_lack = |xid: &u32| snapshot.whole(*xid) >= snapshot.least;
        self.forgotten = self.forgotten.filter(may_lack);
    }

    /// The server has stopped: the next one shows whatever the log has.
    pub(super) fn stopped(&mut self) {
        *self = Unshown::default();
    }

    /// All commits are shown whose records end here or before, for all that is known; no more than `durable`.
    pub(super) fn shown(&self, durable: Lsn) -> Lsn {
        let first = self.commits.front().map(|(end, _)| Lsn(end.0 - 1));
        match self.forgotten {
            Some(_) => Lsn::ZERO,
            None => first.map_or(durable, |first| first.min(durable)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).unwrap()
    }

    /// 5 and 7 are in the log; 5 waits for its turn on a busy machine, while standbys show both.
    #[test]
    fn a_commit_is_shown_once_a_look_finds_it_ended() {
        let mut unshown = Unshown::default();
        assert_eq!(unshown.shown(Lsn(100)), Lsn(100));
        unshown.committed(Lsn(110), 5);
        unshown.committed(Lsn(120), 7);
        assert_eq!(unshown.shown(Lsn(109)), Lsn(109), "nobody shows more");
        assert_eq!(unshown.shown(Lsn(120)), Lsn(109), "nobody has looked");
        unshown.looked(&snapshot("5:8:5"));
        assert_eq!(unshown.shown(Lsn(120)), Lsn(109));
        unshown.committed(Lsn(130), 8);
        unshown.looked(&snapshot("8:8:"));
        assert_eq!(unshown.shown(Lsn(130)), Lsn(129), "8 is not begun for it");
        unshown.looked(&snapshot("9:9:"));
        assert_eq!(unshown.shown(Lsn(130)), Lsn(130));
    }

    #[test]
    fn another_run_of_the_server_shows_all() {
        let mut unshown = Unshown::default();
        unshown.committed(Lsn(110), 5);
        unshown.stopped();
        assert_eq!(unshown.shown(Lsn(110)), Lsn(110));
    }

    #[test]
    fn forgotten_positions_do_not_count_as_shown() {
        let mut unshown = Unshown::default();
        for xid in 3..3 + REMEMBERED_MAX as u32 {
            assert_eq!(unshown.wants_look(), unshown.commits.len() >= MANY);
            unshown.committed(Lsn(100 + u64::from(xid)), xid);
        }
        unshown.committed(Lsn(u64::MAX), 2_000_000);
        unshown.looked(&snapshot("3:2000001:3"));
        assert_eq!(unshown.shown(Lsn(u64::MAX)), Lsn::ZERO);
        unshown.looked(&snapshot("4:2000001:"));
        assert_eq!(unshown.shown(Lsn(u64::MAX)), Lsn(u64::MAX));
    }
}
