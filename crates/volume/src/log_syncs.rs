//! Syncs of the log that are under way, and how far the log is durable because of them. Pure.
//!
//! In an *ordered* log a sync is answered as soon as its bytes are on their way, so several are under way at a
//! time, and one may be done before an earlier one is. Two positions follow from them:
//!
//! ```text
//!            durable                    answered        written
//!   ─────────────┼──────────────────────────┼──────────────┼──▶ log
//!     k replicas │ what the database takes  │ nobody was   │
//!     have it    │ for durable              │ told of it   │
//! ```
//!
//! - *durable* is what standbys are shown and what a commit is confirmed by: everything up to it was synced,
//!   without a gap.
//! - *answered* is what pages and control files may rely on, since the database writes them after it was answered:
//!   the W of a seal, which must not be stated before it is durable.
//!
//! Invariants: durable never passes a sync that is not done, in whatever order they end; durable <= answered; after a
//! sync that failed neither moves by it, and none is answered early any more.

use std::collections::VecDeque;

use crate::lsn::Lsn;

/// More syncs than these are not answered early: the database waits for the storage then.
const EARLY_MAX: usize = 128;

/// Positions of WAL: answered to PostgreSQL, and durable in the zones.
#[derive(Debug)]
pub struct LogSyncs {
    under_way: VecDeque<LogSync>,
    /// The number of the sync that begins next; 0 is none.
    next: u64,
    durable: Lsn,
    answered: Lsn,
    has_failed: bool,
}

#[derive(Debug)]
struct LogSync {
    number: u64,
    /// The end of the last complete record that it covers.
    end: Lsn,
    is_done: bool,
}

impl LogSyncs {
    /// Of a log that is durable up to `end`.
    pub fn new(end: Lsn) -> LogSyncs {
        LogSyncs {
            under_way: VecDeque::new(),
            next: 1,
            durable: end,
            answered: end,
            has_failed: false,
        }
    }

    /// A sync begins that covers everything up to `end`, together with those before it. Its number is not 0.
    pub fn begin(&mut self, end: Lsn) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.push_back(LogSync {
            number,
            end,
            is_done: false,
        });
        number
    }

    /// True if a sync may be answered before it is done.
    pub fn may_answer_early(&self) -> bool {
        !self.has_failed && self.under_way.len() <= EARLY_MAX
    }

    /// That sync is answered now, done or not.
    pub fn answer(&mut self, number: u64) {
        if let Some(sync) = self.find(number) {
            let end = sync.end;
            self.answered = self.answered.max(end);
        }
    }

    /// That sync is done; it is answered by now, or will be at once.
    pub fn done(&mut self, number: u64) {
        let Some(sync) = self.find(number) else {
            return;
        };
        sync.is_done = true;
        let end = sync.end;
        self.answered = self.answered.max(end);
        while let Some(first) = self.under_way.pop_front_if(|sync| sync.is_done) {
            self.durable = self.durable.max(first.end);
        }
    }

    /// That sync failed, and with it everything behind it.
    pub fn failed(&mut self, number: u64) {
        self.has_failed |= self.find(number).is_some();
    }

    /// Everything up to here is durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The database was told up to here that its log is durable.
    pub fn answered(&self) -> Lsn {
        self.answered
    }

    /// True if durable will not move any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Those that are not done, or wait for one that is not.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn find(&mut self, number: u64) -> Option<&mut LogSync> {
        let first = self.under_way.front()?.number;
        let at = usize::try_from(number.checked_sub(first)?).ok()?;
        self.under_way.get_mut(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durable_waits_for_the_earliest_that_is_not_done() {
        let mut syncs = LogSyncs::new(Lsn(10));
        let numbers = [20, 30, 40].map(|end| syncs.begin(Lsn(end)));
        syncs.done(numbers[1]);
        assert_eq!(syncs.durable(), Lsn(10), "the first is not done");
        syncs.done(numbers[0]);
        assert_eq!(syncs.durable(), Lsn(30));
        assert_eq!(syncs.under_way(), 1);
        syncs.done(numbers[2]);
        assert_eq!((syncs.durable(), syncs.under_way()), (Lsn(40), 0));
    }

    #[test]
    fn early_answers_count_as_answered_and_not_as_durable() {
        let mut syncs = LogSyncs::new(Lsn(10));
        let early = syncs.begin(Lsn(20));
        assert_eq!(syncs.answered(), Lsn(10), "it has only begun");
        syncs.answer(early);
        assert_eq!((syncs.durable(), syncs.answered()), (Lsn(10), Lsn(20)));
        // One that is waited for is answered when it is done, whatever is before it.
        let waited = syncs.begin(Lsn(30));
        syncs.done(waited);
        assert_eq!((syncs.durable(), syncs.answered()), (Lsn(10), Lsn(30)));
        syncs.done(early);
        assert_eq!(syncs.durable(), Lsn(30));
    }

    // hazard: ORDER-23
    #[test]
    fn nothing_behind_a_failed_sync_is_ever_durable() {
        let mut syncs = LogSyncs::new(Lsn(10));
        let failed = syncs.begin(Lsn(20));
        let later = syncs.begin(Lsn(30));
        syncs.failed(failed);
        syncs.done(later);
        assert_eq!(syncs.durable(), Lsn(10));
        assert!(syncs.has_failed() && !syncs.may_answer_early());
    }

    #[test]
    fn the_database_waits_when_many_are_under_way() {
        let mut syncs = LogSyncs::new(Lsn(0));
        let numbers: Vec<u64> = (1..=EARLY_MAX as u64)
            .map(|end| syncs.begin(Lsn(end)))
            .collect();
        assert!(syncs.may_answer_early());
        let more = syncs.begin(Lsn(1000));
        assert!(!syncs.may_answer_early());
        syncs.done(numbers[0]);
        assert!(syncs.may_answer_early());
        syncs.done(more);
        assert_eq!(syncs.durable(), Lsn(1));
    }

    #[test]
    fn numbers_that_nobody_gave_or_that_are_over_change_nothing() {
        let mut syncs = LogSyncs::new(Lsn(10));
        let only = syncs.begin(Lsn(20));
        for number in [0, 7] {
            syncs.answer(number);
            syncs.done(number);
            syncs.failed(number);
        }
        assert_eq!((syncs.durable(), syncs.answered()), (Lsn(10), Lsn(10)));
        syncs.done(only);
        syncs.failed(only);
        assert!(!syncs.has_failed(), "it was done");
    }

    proptest! {
        /// In whatever order they end, durable is the end of the longest prefix that is done.
        #[test]
        fn durable_is_a_prefix(steps in prop::collection::vec((1u64..50, 0usize..8), 1..80)) {
            let mut syncs = LogSyncs::new(Lsn(0));
            let mut all: Vec<(u64, u64, bool)> = Vec::new();
            let mut end = 0;
            for (more, ends) in steps {
                end += more;
                all.push((syncs.begin(Lsn(end)), end, false));
                let open: Vec<usize> = (0..all.len()).filter(|at| !all[*at].2).collect();
                if let Some(at) = open.get(ends) {
                    all[*at].2 = true;
                    syncs.done(all[*at].0);
                }
                let prefix = all.iter().take_while(|(_, _, done)| *done).last();
                prop_assert_eq!(syncs.durable(), Lsn(prefix.map_or(0, |(_, end, _)| *end)));
                prop_assert!(syncs.durable() <= syncs.answered());
            }
        }
    }
}
