//! What must hold, checked where it happens.
//!
//! The *floor* is the newest contents that must survive: synced, or chosen by a promotion. A result
//! in the newest epoch is right if it is the floor, or a later write that was not ruled out since.
//! Everything is judged at the earliest moment at which a client may learn of it, which is the
//! hardest: a sync with the k-th acknowledgement, an epoch with the acceptance that makes the quorum.

use crate::setup::{SYNC, Setup, Stamp, Who};
use crate::state::{History, Op, State, Stored, bit};

/// What can go wrong, as bits of [`History::broken`].
pub const TWO_OWNERS: u8 = 1;
pub const LOST: u8 = 2;
pub const UNSTABLE: u8 = 4;
pub const LATE: u8 = 8;

impl State {
    /// Enough replicas have accepted the epoch from this client.
    pub fn owned(&mut self, epoch: u8) {
        if self.history.owned & 1 << epoch != 0 {
            self.history.broken |= TWO_OWNERS;
        }
        self.history.owned |= 1 << epoch;
    }

    /// The version and contents of a client's write.
    pub fn write_of(&self, setup: &Setup, who: Who, write: u8) -> Stored {
        let client = &self.clients[who];
        Stored {
            version: Stamp {
                epoch: client.epoch().expect("only owners write"),
                seq: setup.first_seq(who) + write,
            },
            origin: client.origins[usize::from(write) - 1],
        }
    }

    /// A replica has acknowledged a write: the k-th time, it is synced.
    pub fn acknowledged(&mut self, setup: &Setup, who: Who, write: u8) {
        if self.acks(who, write) != SYNC {
            return;
        }
        let synced = self.write_of(setup, who, write);
        let client = self.clients[who];
        if client.late_from.is_some_and(|late| write >= late) {
            self.history.broken |= LATE;
        }
        self.history.synced(synced);
        if client.op == (Op::Rewriting { seq: write }) {
            self.clients[who].op = Op::None;
            self.promoted(who, synced);
        }
    }

    /// A promotion returns.
    pub fn promoted(&mut self, who: Who, found: Stored) {
        self.check_stable(who, found);
        if found.is_absent() {
            self.clients[who].absent = true;
        } else {
            self.clients[who].shown = Some(found.origin);
        }
        let epoch = self.clients[who].epoch().expect("only owners promote");
        if epoch < self.history.highest_owned() {
            // Deposed meanwhile: it was right when the replicas answered, and decides nothing now.
            return;
        }
        self.history.found(epoch, found);
        // That there is nothing was said by a quorum only, and holds in the version list alone.
        if !found.is_absent() {
            self.history.chosen_in = self.history.chosen_in.max(epoch);
            if found.version > self.history.floor.version {
                self.history.floor = found;
            }
        }
    }

    /// A quorum read returns.
    pub fn read(&mut self, who: Who, found: Stored) {
        self.check_stable(who, found);
        let epoch = self.clients[who].epoch().expect("only owners read");
        if epoch == self.history.highest_owned() {
            self.history.found(epoch, found);
        }
    }

    fn check_stable(&mut self, who: Who, found: Stored) {
        let shown = self.clients[who].shown;
        if shown.is_some_and(|shown| shown != found.origin) {
            self.history.broken |= UNSTABLE;
        }
    }
}

impl History {
    fn synced(&mut self, write: Stored) {
        let epoch = write.version.epoch;
        // A newer epoch's owner has seen less, and a quorum cannot show it this write any more.
        if self
            .seen
            .is_some_and(|(by, seen)| epoch < by && write.origin > seen)
        {
            self.broken |= LOST;
        }
        if write.version > self.floor.version {
            let ruled_out = epoch < self.chosen_in && write.origin != self.floor.origin;
            if ruled_out {
                self.broken |= LOST;
            }
            self.floor = write;
        }
        self.chosen_in = self.chosen_in.max(epoch);
    }

    /// The newest epoch's owner has found these contents.
    fn found(&mut self, epoch: u8, found: Stored) {
        let origin = found.origin;
        let newer = origin > self.floor.version && origin.epoch >= self.chosen_in;
        if origin != self.floor.origin && !newer {
            self.broken |= LOST;
        }
        if origin.epoch < epoch {
            let before = self.seen.filter(|(by, _)| *by == epoch);
            let oldest = before.map_or(origin, |(_, seen)| seen.min(origin));
            self.seen = Some((epoch, oldest));
        }
    }
}

/// The floor is on k replicas, or something newer: any quorum meets it.
pub fn floor_is_durable(state: &State) -> bool {
    let floor = state.history.floor.version;
    let holds = |stored: Stored| stored.version >= floor;
    state.sites.iter().filter(|s| holds(s.disk.stored)).count() >= SYNC
}

/// A version stands for one contents, so that a single replica's answer is enough for a reader who
/// knows the version (DAX 3.1).
pub fn versions_are_unique(state: &State) -> bool {
    let stored = state.sites.map(|s| s.disk.stored);
    let same = |a: &Stored, b: &Stored| a.version != b.version || a.origin == b.origin;
    stored.iter().all(|a| stored.iter().all(|b| same(a, b)))
}

/// A promotion by `who` returned a write that was never synced by its writer.
pub fn promoted_unsynced(state: &State, who: Who) -> bool {
    let client = &state.clients[who];
    let first = &state.clients[0];
    let written = (1..=first.given).map(|w| (w, first.origins[usize::from(w) - 1]));
    let mut shown = written.filter(|(_, origin)| client.shown == Some(*origin));
    shown.any(|(w, _)| (1..SYNC).contains(&state.acks(0, w)))
}

/// A promotion by `who` returned an older write than one that some replica had.
pub fn dropped_unsynced(state: &State, who: Who) -> bool {
    let shown = state.clients[who].shown;
    let first = &state.clients[0];
    let had = |w: u8| state.sites.iter().any(|s| s.told.acked[0] & bit(w) != 0);
    let newer =
        |w: u8| shown.is_some_and(|s| s.epoch == 1 && first.origins[usize::from(w) - 1] > s);
    (1..=first.given).any(|w| had(w) && newer(w))
}
