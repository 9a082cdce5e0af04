//! Pages that bypass PostgreSQL's buffers (hazard N2).
//!
//! Bulk writers log a page whole, then write it, and sync it later "because a checkpoint may have
//! occurred". If the cut of a seal falls between the two, the image lacks the page and no standby
//! replays it. Owns: which pages were logged whole and not seen to be written since, and pages that
//! were written before their record was seen.
//!
//! ```text
//!   logged ──▶ waited for ──▶ written at that LSN or later: forgotten
//!   written before its record is seen ──▶ kept until the log that was seen reaches its LSN
//! ```
//!
//! Invariant: [`BulkPages::missing`] is empty only if every page logged whole at or below the redo
//! point is in the image at that LSN or later, or its file or tail is gone, or it was logged more than
//! [`TIMEOUT`] ago. What there is no room for is forgotten on the safe side: of pages that are waited
//! for nobody can tell until that time has passed, and one that was written counts as missing until then.
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

/// Pages of either kind that are remembered.
const PAGES_MAX: usize = 4 << 20;

/// Pages logged whole and pages written. See the module.
#[derive(Debug)]
pub struct BulkPages {
    logged: HashMap<RelationBlock, Logged>,
    /// Above the end of the log that was seen, as it was when there was room for all last.
    written: HashMap<RelationBlock, Lsn>,
    /// Until then there may be pages to wait for that are not remembered.
    blind_until: Duration,
    room: usize,
}

/// The last record that holds a page whole.
#[derive(Debug, Clone, Copy)]
struct Logged {
    end: Lsn,
    at: Duration,
}

impl Logged {
    fn is_waited_for(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < TIMEOUT
    }
}

impl Default for BulkPages {
    fn default() -> BulkPages {
        BulkPages::with_room(PAGES_MAX)
    }
}

impl BulkPages {
    fn with_room(room: usize) -> BulkPages {
        BulkPages {
            logged: HashMap::new(),
            written: HashMap::new(),
            blind_until: Duration::ZERO,
            room,
        }
    }

    /// A record that ends at `end` carries a full image of `page`; seen at the time `at`.
    pub fn logged(&mut self, page: RelationBlock, end: Lsn, at: Duration) {
        let is_written = self.written.get(&page).is_some_and(|lsn| *lsn >= end);
        if page.fork == Fork::Init || is_written {
            return;
        }
        if self.logged.len() >= self.room && !self.logged.contains_key(&page) {
            self.make_room_for_logged(at);
        }
        self.logged.insert(page, Logged { end, at });
    }

    /// `page` was written with this page LSN, when all records up to `seen` had been
    /// [noted](Self::logged).
    pub fn written(&mut self, page: RelationBlock, page_lsn: Lsn, seen: Lsn) {
        if self.logged.get(&page).is_some_and(|l| l.end <= page_lsn) {
            self.logged.remove(&page);
        }
        // Nearly every page: PostgreSQL syncs the log first, except for bulk writers.
        if page_lsn <= seen {
            return;
        }
        if self.written.len() >= self.room && !self.written.contains_key(&page) {
            self.make_room_for_written(seen);
        }
        let known = self.written.entry(page).or_insert(page_lsn);
        *known = (*known).max(page_lsn);
    }

    /// Forgets what is not waited for any more; if that is not much, everything, so that this stays rare.
    fn make_room_for_logged(&mut self, now: Duration) {
        self.logged.retain(|_, logged| logged.is_waited_for(now));
        if self.logged.len() > self.room / 2 {
            self.logged.clear();
            self.blind_until = now + TIMEOUT;
        }
    }

    /// The same for pages whose records were seen meanwhile.
    fn make_room_for_written(&mut self, seen: Lsn) {
        self.written.retain(|_, lsn| *lsn > seen);
        if self.written.len() > self.room / 2 {
            self.written.clear();
        }
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
        if now < self.blind_until {
            return None;
        }
        let unwritten = self
            .logged
            .iter()
            .filter(|(_, logged)| logged.end <= redo && logged.is_waited_for(now));
        let missing = unwritten.filter(|(page, _)| exists(page));
        Some(missing.map(|(page, logged)| (*page, logged.end)).collect())
    }

    /// A seal with this redo point stands: what it covers need not be followed any longer.
    pub fn sealed(&mut self, redo: Lsn) {
        self.logged.retain(|_, logged| logged.end > redo);
    }
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

    // hazard: N2
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
        pages.written(page(1), Lsn(9), Lsn(20));
        assert_eq!(missing(&pages, 25), [1, 2], "an older version does not do");
        pages.written(page(1), Lsn(10), Lsn(20));
        assert_eq!(missing(&pages, 25), [2]);
    }

    #[test]
    fn a_page_written_before_its_record_reached_the_log_counts() {
        let mut pages = BulkPages::default();
        pages.written(page(1), Lsn(20), Lsn(5));
        pages.sealed(Lsn(5));
        for end in [10, 20] {
            pages.logged(page(1), Lsn(end), NOW);
            assert_eq!(missing(&pages, 25), [0u32; 0]);
        }
        pages.logged(page(1), Lsn(21), NOW);
        assert_eq!(missing(&pages, 25), [1], "it was logged once more");
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
    fn too_many_logged_pages_means_nobody_can_tell_until_none_of_them_is_waited_for() {
        let mut pages = BulkPages::with_room(2);
        for block in 1..=3 {
            pages.logged(page(block), Lsn(10), NOW);
        }
        let later = NOW + Duration::from_secs(1);
        pages.logged(page(4), Lsn(20), later);
        let find = |now| pages.missing(Lsn(30), now, |_| true);
        assert_eq!(find(NOW), None);
        let last = TIMEOUT - Duration::from_millis(1);
        assert_eq!(find(NOW + last), None);
        // Those that came later are followed.
        assert_eq!(find(NOW + TIMEOUT), Some(vec![(page(4), Lsn(20))]));
    }

    #[test]
    fn pages_that_are_not_waited_for_any_more_make_room() {
        let mut pages = BulkPages::with_room(2);
        for block in 1..=2 {
            pages.logged(page(block), Lsn(10), NOW);
        }
        pages.logged(page(3), Lsn(20), NOW + TIMEOUT);
        let found = pages.missing(Lsn(30), NOW + TIMEOUT, |_| true);
        assert_eq!(found, Some(vec![(page(3), Lsn(20))]));
    }

    /// A vacuum of a large table wrote more pages than were remembered, and no checkpoint was sealed
    /// from then on.
    #[test]
    fn any_number_of_pages_may_be_written() {
        let mut pages = BulkPages::with_room(2);
        for block in 1..GONE {
            pages.written(page(block), Lsn(5), Lsn(10));
        }
        assert!(pages.written.is_empty());
        for block in 1..GONE {
            pages.written(page(block), Lsn(20), Lsn(10));
            assert!(pages.written.len() <= 2);
        }
        assert_eq!(missing(&pages, 15), [0u32; 0]);
        pages.written(page(1), Lsn(30), Lsn(20));
        pages.written(page(2), Lsn(30), Lsn(20));
        pages.logged(page(2), Lsn(30), NOW);
        assert_eq!(missing(&pages, 30), [0u32; 0], "what was seen made room");
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
        pages.written(init, Lsn(0), Lsn(0));
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
