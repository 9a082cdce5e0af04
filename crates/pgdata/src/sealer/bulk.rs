//! Pages that bypass PostgreSQL's buffers (hazard N2).
//!
//! Bulk writers log a page whole, then write it, and sync it later "because a checkpoint may have
//! occurred". If the cut of a seal falls between the two, the image lacks the page and no standby
//! replays it. Owns: which pages were logged whole since the last seal, and the LSNs of the pages
//! written since then. Invariant: [`BulkPages::missing`] is empty only if every page logged whole
//! at or below the redo point is in the image at that LSN or later, or its file or tail is gone, or
//! it was logged more than [`TIMEOUT`] ago.
//!
//! Two kinds of pages never show their record's LSN: those of init forks, which are written before
//! they are logged (nothing to wait for), and empty pages that were copied, which cannot carry one.
//! Because of the latter nothing is waited for without end: a writer would have to sleep between
//! logging a page and writing it for longer than that.

use std::collections::HashMap;
use std::time::Duration;

use volume::lsn::Lsn;

use crate::relation::{Fork, RelationBlock};

/// How long a page logged whole is waited for. Without an end, one page that never shows its LSN
/// would keep the database from ever being sealed again.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Pages remembered at most; past that nobody can tell until a seal starts the bookkeeping anew.
const PAGES_MAX: usize = 4 << 20;

/// Pages logged whole and pages written, since the last seal.
#[derive(Debug, Default)]
pub struct BulkPages {
    logged: HashMap<RelationBlock, Logged>,
    written: HashMap<RelationBlock, Lsn>,
    overflowed: bool,
}

/// The last record that holds a page whole.
#[derive(Debug, Clone, Copy)]
struct Logged {
    end: Lsn,
    at: Duration,
}

impl BulkPages {
    /// A record that ends at `end` carries a full image of `page`; seen at the time `at`.
    pub fn logged(&mut self, page: RelationBlock, end: Lsn, at: Duration) {
        if page.fork == Fork::Init {
            return;
        }
        if self.logged.len() >= PAGES_MAX && !self.logged.contains_key(&page) {
            self.overflowed = true;
            return;
        }
        self.logged.insert(page, Logged { end, at });
    }

    /// `page` was written with this page LSN.
    pub fn written(&mut self, page: RelationBlock, page_lsn: Lsn) {
        self.overflowed |= !raise(&mut self.written, page, page_lsn);
    }

    /// Pages logged whole at or below `redo` that were not seen to be written since. `exists` says
    /// whether a page still has a place: its file is there and reaches that far. `None`: there were
    /// too many to follow, so nobody can tell.
    pub fn missing(
        &self,
        redo: Lsn,
        now: Duration,
        mut exists: impl FnMut(&RelationBlock) -> bool,
    ) -> Option<Vec<(RelationBlock, Lsn)>> {
        if self.overflowed {
            return None;
        }
        let due = self
            .logged
            .iter()
            .filter(|(_, logged)| logged.end <= redo && now.saturating_sub(logged.at) < TIMEOUT);
        let unwritten = due.filter(|(page, logged)| {
            self.written
                .get(*page)
                .is_none_or(|written| *written < logged.end)
        });
        let missing = unwritten.filter(|(page, _)| exists(page));
        Some(missing.map(|(page, logged)| (*page, logged.end)).collect())
    }

    /// A seal with this redo point stands: what it covers need not be followed any longer. Pages
    /// written stay known while a page logged above the redo point may refer to them.
    pub fn sealed(&mut self, redo: Lsn) {
        self.logged.retain(|_, logged| logged.end > redo);
        self.written.retain(|_, lsn| *lsn > redo);
        self.overflowed = false;
    }
}

/// Remembers the highest LSN of a page; false if there is no room.
fn raise(pages: &mut HashMap<RelationBlock, Lsn>, page: RelationBlock, lsn: Lsn) -> bool {
    if pages.len() >= PAGES_MAX && !pages.contains_key(&page) {
        return false;
    }
    let known = pages.entry(page).or_insert(lsn);
    *known = (*known).max(lsn);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relation::{Fork, Relation};

    const GONE: u32 = 100;
    const NOW: Duration = Duration::from_secs(1000);

    fn page(block: u32) -> RelationBlock {
        let relation = Relation {
            tablespace: 1663,
            database: 5,
            number: 16384,
        };
        RelationBlock {
            relation,
            fork: Fork::Main,
            block,
        }
    }

    fn missing(pages: &BulkPages, redo: u64) -> Vec<u32> {
        let found = pages
            .missing(Lsn(redo), NOW, |page| page.block < GONE)
            .unwrap();
        let mut found: Vec<u32> = found.into_iter().map(|(page, _)| page.block).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_page_logged_below_redo_and_not_written_is_missing() {
        let mut pages = BulkPages::default();
        pages.logged(page(1), Lsn(10), NOW);
        pages.logged(page(2), Lsn(20), NOW);
        assert_eq!(
            missing(&pages, 15),
            [1],
            "only what is at or below the redo point counts"
        );
        pages.written(page(1), Lsn(9));
        assert_eq!(missing(&pages, 25), [1, 2], "an older version does not do");
        pages.written(page(1), Lsn(10));
        assert_eq!(missing(&pages, 25), [2]);
    }

    #[test]
    fn a_page_written_before_its_record_reached_the_log_counts() {
        let mut pages = BulkPages::default();
        pages.written(page(1), Lsn(10));
        pages.sealed(Lsn(5));
        pages.logged(page(1), Lsn(10), NOW);
        assert_eq!(missing(&pages, 15), [0u32; 0]);
    }

    #[test]
    fn a_page_whose_file_or_tail_is_gone_is_not_missing() {
        let mut pages = BulkPages::default();
        pages.logged(page(GONE), Lsn(10), NOW);
        assert_eq!(missing(&pages, 15), [0u32; 0]);
    }

    #[test]
    fn a_seal_forgets_what_it_covers() {
        let mut pages = BulkPages::default();
        pages.logged(page(1), Lsn(10), NOW);
        pages.logged(page(2), Lsn(20), NOW);
        pages.sealed(Lsn(10));
        assert_eq!(missing(&pages, 30), [2]);
    }

    #[test]
    fn too_many_pages_means_nobody_can_tell_until_the_next_seal() {
        let mut pages = BulkPages {
            overflowed: true,
            ..BulkPages::default()
        };
        assert_eq!(pages.missing(Lsn(1), NOW, |_| true), None);
        pages.sealed(Lsn(1));
        assert_eq!(pages.missing(Lsn(1), NOW, |_| true), Some(vec![]));
    }

    /// Creating an unlogged table with an index writes its init fork first and logs it then: the
    /// page on disk keeps LSN 0, and no checkpoint was sealed from then on.
    #[test]
    fn init_forks_are_not_waited_for() {
        let mut pages = BulkPages::default();
        let init = RelationBlock {
            fork: Fork::Init,
            ..page(1)
        };
        pages.written(init, Lsn(0));
        pages.logged(init, Lsn(10), NOW);
        assert_eq!(missing(&pages, 15), [0u32; 0]);
    }

    #[test]
    fn a_page_that_never_shows_its_record_is_not_waited_for_without_end() {
        let mut pages = BulkPages::default();
        pages.logged(page(1), Lsn(10), NOW);
        let found = |now| pages.missing(Lsn(15), now, |_| true).unwrap().len();
        assert_eq!(found(NOW + TIMEOUT - Duration::from_millis(1)), 1);
        assert_eq!(found(NOW + TIMEOUT), 0);
    }
}
