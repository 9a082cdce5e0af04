//! How far an active's log is synced, also where it is ordered: then syncs are answered before they are durable, land
//! in any order, and clients are told of their commits by what the agent confirms.
//!
//! What is durable is counted twice: by the code under test, whose word is given to clients and standbys, and by what
//! has landed, which is all that a crash leaves.

use std::collections::BTreeSet;
use std::ops::Range;

use rand::Rng;
use rand::rngs::SmallRng;

use super::flaw::Flaw;
use crate::log_syncs::LogSyncs;
use crate::lsn::Lsn;

pub(super) struct Synced {
    pub is_ordered: bool,
    flaw: Option<Flaw>,
    syncs: LogSyncs,
    /// Syncs on their way: their numbers, and the log that each of them brings.
    on_way: Vec<(u64, Range<u64>)>,
    /// The end of what was handed to the last sync.
    sent: u64,
    /// Everything below has landed.
    landed: u64,
    /// Starts and ends of what landed before what is in front of it.
    ahead: BTreeSet<(u64, u64)>,
    /// The end of the sync that landed last, for one who looks at nothing else.
    last: u64,
}

impl Synced {
    /// Of a log that is durable up to `end`.
    pub fn new(end: u64, flaw: Option<Flaw>) -> Synced {
        Synced {
            is_ordered: false,
            flaw,
            syncs: LogSyncs::new(Lsn(end)),
            on_way: Vec::new(),
            sent: end,
            landed: end,
            ahead: BTreeSet::new(),
            last: end,
        }
    }

    /// The log is synced up to `end`, as far as its database is told.
    pub fn sync(&mut self, end: u64) {
        if end <= self.sent {
            return;
        }
        let number = self.syncs.begin(Lsn(end));
        self.on_way.push((number, self.sent..end));
        self.sent = end;
        if self.is_ordered && self.syncs.may_answer_early() {
            self.syncs.answer(number);
        } else {
            self.land_all();
        }
    }

    /// Some sync is done, if any is under way; whether one was.
    pub fn land_some(&mut self, rng: &mut SmallRng) -> bool {
        if self.on_way.is_empty() {
            return false;
        }
        let at = rng.random_range(0..self.on_way.len());
        self.land(at);
        true
    }

    /// The one that was sent first is done, if any is under way.
    pub fn land_first(&mut self) {
        if !self.on_way.is_empty() {
            self.land(0);
        }
    }

    /// All are done.
    pub fn land_all(&mut self) {
        while !self.on_way.is_empty() {
            self.land(0);
        }
    }

    fn land(&mut self, at: usize) {
        let (number, log) = self.on_way.remove(at);
        self.syncs.done(number);
        self.last = self.last.max(log.end);
        self.ahead.insert((log.start, log.end));
        while let Some((start, end)) = self.ahead.first().copied()
            && start <= self.landed
        {
            self.ahead.pop_first();
            self.landed = self.landed.max(end);
        }
    }

    /// What a crash leaves at least.
    pub fn landed(&self) -> u64 {
        self.landed
    }

    /// What standbys are shown, and clients are told of.
    pub fn confirmed(&self) -> u64 {
        match self.flaw {
            Some(Flaw::ConfirmedEarly) => self.syncs.answered().0,
            Some(Flaw::ConfirmedOutOfOrder) => self.last,
            _ => self.syncs.durable().0,
        }
    }

    /// W of an image that is cut now.
    pub fn end_of_image(&self) -> u64 {
        match self.flaw {
            Some(Flaw::EndOfTheDurable) => self.syncs.durable().0,
            _ => self.syncs.answered().0,
        }
    }

    /// True if a seal with this W may be stated.
    pub fn may_seal(&self, end: u64) -> bool {
        self.flaw == Some(Flaw::SealedBeforeItsLog) || end <= self.syncs.durable().0
    }
}
