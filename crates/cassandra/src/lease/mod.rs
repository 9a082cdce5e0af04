//! Ownership of a volume, and its end: the lease rules L1 to L7 of docs/understand/protocol-cassandra.md.
//!
//! Pure. The epoch row is changed by lightweight transactions; whoever drives this sends the
//! [`Change`]s, tells the [`Answer`]s, and names the time. Time is measured since an arbitrary moment by
//! one machine's own clock, which goes on while the machine sleeps (`CLOCK_BOOTTIME`); times of two
//! machines are never compared.
//!
//! Invariants:
//! - [`Lease::gate`] is open only while no successor that waited the lease out can have begun (L1, L2).
//! - A row is changed by a compare-and-set over everything in it that others rely on (epoch, owner,
//!   renewals), so a change that arrives late finds another row and does nothing.
//! - Each attempt to own an epoch has a name of its own ([`Claim`]), so its outcome can be read back.

mod claim;
#[cfg(test)]
mod tests;

use std::time::Duration;

use dax::ids::Epoch;

pub use claim::{Claim, Next, Sighting};

/// A moment, by one machine's own clock.
pub type Time = Duration;

/// What stands in the epoch row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The epoch that is owned.
    pub epoch: Epoch,
    /// Its owner's name, of one attempt.
    pub owner: String,
    /// No lease that may still run is longer than this (L3).
    pub lease: Duration,
    /// How often the lease was renewed.
    pub renewals: u64,
    /// The owner has stopped acknowledging for good: there is nothing to wait for (L4).
    pub released: bool,
}

impl Row {
    /// True if its owner still waits for its predecessor's lease to end: it has not renewed once.
    pub fn is_claim(&self) -> bool {
        self.renewals == 0 && !self.released
    }
}

/// A compare-and-set on the epoch row: applied only if epoch, owner and renewals are as expected. For a
/// volume that nobody ever owned, expected is no row at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The row that must be there.
    pub expected: Option<Row>,
    /// What it becomes.
    pub new: Row,
}

impl Change {
    /// True if it applies to what is there.
    pub fn applies_to(&self, row: Option<&Row>) -> bool {
        let compared = |row: &Row| (row.epoch, row.owner.clone(), row.renewals);
        self.expected.as_ref().map(compared) == row.map(compared)
    }
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The change was applied.
    Applied,
    /// The change was not applied, and never will be: this is stored instead.
    Refused(Option<Row>),
    /// A timeout: it may have been applied, or may be later.
    Unknown,
}

/// How long things take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts.
    pub lease: Duration,
    /// The epoch that counts as owned before while there is no row: below the first one of the volume.
    pub unowned: Epoch,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            lease: Duration::from_secs(2),
            unowned: Epoch::NONE,
        }
    }
}

impl Terms {
    /// How long a lease of `lease` must be waited for: with a margin for clocks that do not run equally
    /// fast, and for reading them.
    pub fn timeout(lease: Duration) -> Duration {
        lease + lease / 50 + Duration::from_millis(50)
    }

    /// How long a claimant is left alone, from when its row was first seen: it waits `lease` out and shows
    /// no life until then, and its first renewal takes a moment (L7).
    pub fn courtesy(lease: Duration) -> Duration {
        Terms::timeout(lease) + Duration::from_millis(500)
    }

    /// How long after a renewal the next one is due.
    pub fn renew_every(&self) -> Duration {
        self.lease / 4
    }
}

/// Permission to acknowledge something now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Acknowledge it.
    Open,
    /// Not now: wait for a renewal.
    Shut,
    /// Never again: somebody else owns the volume, or the lease was released.
    Fenced,
}

/// A renewal that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// What to send.
    pub change: Change,
    /// When it was made, which is before it is sent.
    began: Time,
}

/// An owner's lease.
#[derive(Debug, Clone)]
pub struct Lease {
    terms: Terms,
    /// The row as this owner knows it.
    row: Row,
    /// The lease is valid before this moment.
    until: Time,
    next_renewal: Time,
    fenced: bool,
}

impl Lease {
    /// A lease that was just won, and is not valid before its first renewal.
    fn won(terms: Terms, row: Row, now: Time) -> Lease {
        Lease {
            terms,
            row,
            until: Time::ZERO,
            next_renewal: now,
            fenced: false,
        }
    }

    /// Epoch that the lease protects.
    pub fn epoch(&self) -> Epoch {
        self.row.epoch
    }

    /// The owner's name in the row.
    pub fn owner(&self) -> &str {
        &self.row.owner
    }

    /// True if what is durable by now may be acknowledged. Look at the clock after the last write in
    /// scope was acknowledged, and ask then.
    pub fn gate(&self, now: Time) -> Gate {
        match (self.fenced, now < self.until) {
            (true, _) => Gate::Fenced,
            (false, true) => Gate::Open,
            (false, false) => Gate::Shut,
        }
    }

    /// When the next renewal should be made; `None` once fenced.
    pub fn renewal_at(&self) -> Option<Time> {
        (!self.fenced).then_some(self.next_renewal)
    }

    /// A renewal to send. `now` was read before anything of it is sent (L1). One at a time: the next one
    /// after [`renewed`](Lease::renewed).
    pub fn renew(&mut self, now: Time) -> Renewal {
        self.next_renewal = now + self.terms.renew_every();
        let mut new = self.row.clone();
        new.renewals += 1;
        new.lease = self.terms.lease;
        Renewal {
            change: self.change(new),
            began: now,
        }
    }

    fn change(&self, new: Row) -> Change {
        Change {
            expected: Some(self.row.clone()),
            new,
        }
    }

    /// What became of a renewal.
    pub fn renewed(&mut self, renewal: &Renewal, answer: &Answer) {
        match answer {
            Answer::Applied => {
                self.row = renewal.change.new.clone();
                self.until = self.until.max(renewal.began + self.terms.lease);
            }
            // An earlier renewal was applied, of which no answer came. It renews nothing (L1), but
            // the next one must name it.
            Answer::Refused(Some(row)) if self.is_own(row) => {
                self.row = row.clone();
                self.next_renewal = renewal.began;
            }
            Answer::Refused(_) => self.fenced = true,
            Answer::Unknown => {
                self.next_renewal = renewal.began;
            }
        }
    }

    fn is_own(&self, row: &Row) -> bool {
        row.epoch == self.row.epoch && row.owner == self.row.owner && !row.released
    }

    /// Somebody was seen to own a higher epoch.
    pub fn fence(&mut self) {
        self.fenced = true;
    }

    /// Stops for good: the gate is shut from now on. Returns what tells others that they need not wait,
    /// if nobody owns a higher epoch yet (L4).
    pub fn release(&mut self) -> Option<Change> {
        if std::mem::replace(&mut self.fenced, true) {
            return None;
        }
        let mut new = self.row.clone();
        new.released = true;
        Some(self.change(new))
    }
}
