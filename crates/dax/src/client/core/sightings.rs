//! Stores that went back: what this handle has seen of each store, what it was told, and what it tells others.
//!
//! ```text
//!   a store arrives that cannot be where it was seen
//!     not the owner ──▶ turned away, until the owner has dealt with it
//!     the owner ──────▶ counts no more ─ admitted ─▶ told that it went back, durably ──▶ rebuilt like a lost disk
//! ```
//!
//! Invariant: nothing that a store says counts as long as it is known to lack what it had acknowledged. Where a new
//! run of a store is met, all that others have answered before is asked again: a store says what it was told of others
//! before it answers anything, so whoever knows that the new run lacks something says so first.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ReplicaId, StoreId};
use crate::sightings::{Position, Sighting, Sightings};
use crate::wire::{Request, Response};

use super::shared::Shared;
use super::{Asker, Time};

/// So many commits of a store are not worth telling: it makes one when it is told.
const WORTH_TELLING: u64 = 2;

impl Shared {
    /// Learns what a store was told of others.
    pub fn learn_sightings(&mut self, told: &Sightings) {
        if told.version > self.sightings.version {
            self.sightings = told.clone();
        }
    }

    /// Whether a store is not where it was seen.
    pub fn went_back(&self, store: Option<StoreId>, position: Option<&Position>) -> bool {
        #[cfg(test)]
        if self.flaw == Some(crate::simulation::flaw::Flaw::WentBackCounts) {
            return false;
        }
        let seen = store.and_then(|store| self.seen(store));
        seen.zip(position)
            .is_some_and(|(seen, position)| seen.denies(position))
    }

    /// What this handle has seen of a store as an owner, or else what it was told.
    fn seen(&self, store: StoreId) -> Option<&Sighting> {
        let own = self.seen.get(&store);
        own.or_else(|| self.sightings.of(store))
    }

    /// Those whose connections stand, and who are not where they were seen.
    pub fn contradicted(&self) -> Vec<ReplicaId> {
        let stand = self.links.positions();
        let back = stand.filter(|(_, store, position)| self.went_back(*store, Some(*position)));
        back.map(|(replica, ..)| replica).collect()
    }

    /// Takes a store that went back only as one that is to be rebuilt, by the owner.
    ///
    /// # Errors
    /// `Conflict` for everybody else.
    pub fn check_back(&self, replica: ReplicaId, back: bool) -> Result<()> {
        if !back || self.handle.check_writer().is_ok() {
            return Ok(());
        }
        let address = self.links.address(replica);
        let message = format!(
            "the store at {address} has acknowledged more than it has now: its directory was put back to an \
             earlier state; it waits for the active to bring it up to date"
        );
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// A store said how far it is.
    pub fn noted(&mut self, replica: ReplicaId, commit: u64) {
        if let Some((store, run, commit)) = self.links.advance(replica, commit)
            && self.handle.check_writer().is_ok()
        {
            self.seen.insert(store, Sighting { store, run, commit });
        }
    }

    /// The store was admitted; if it went back, it is told.
    pub fn say_back(&mut self, replica: ReplicaId) {
        let Ok(epoch) = self.handle.check_writer() else {
            return;
        };
        if let Some(run) = self.links.run_of_back(replica) {
            let request = Request::WentBack { epoch, run };
            self.links
                .ask(replica, Asker::Back, request, self.now, &mut self.out);
        }
    }

    /// A store answered to that: it counts no more by its own account.
    pub fn back_told(&mut self, replica: ReplicaId, reply: &Response) {
        if !matches!(reply, Response::Done) {
            return;
        }
        if let Some(sighting) = self.links.back_over(replica) {
            self.seen.insert(sighting.store, sighting);
            self.tell_sightings();
        }
    }

    /// A tick: tells the stores of each other, now and then.
    pub fn tell_sightings_in_time(&mut self) {
        if self.now >= self.sightings_due && self.has_news_of_stores() {
            self.tell_sightings();
        }
    }

    fn has_news_of_stores(&self) -> bool {
        self.seen.values().any(|seen| {
            let told = self.sightings.of(seen.store);
            told.is_none_or(|told| {
                told.run != seen.run || seen.commit > told.commit + WORTH_TELLING
            })
        })
    }

    /// Tells the stores how far each of them was seen to be.
    pub fn tell_sightings(&mut self) {
        let Ok(epoch) = self.handle.check_writer() else {
            return;
        };
        let sightings = Sightings {
            stores: self.known_stores(),
            version: self.new_version(),
        };
        self.sightings = sightings.clone();
        self.sightings_due = self.now + self.config.sightings_every;
        for replica in self.links.admitted().iter() {
            let sightings = Box::new(sightings.clone());
            let request = Request::Sightings { epoch, sightings };
            self.links
                .ask(replica, Asker::Sightings, request, self.now, &mut self.out);
        }
    }

    /// How far each store was seen to be. Where nobody has recorded the members, a store that only earlier owners have
    /// met may be one, so what they told of it is told on.
    fn known_stores(&self) -> Vec<Sighting> {
        let stores = self.links.stores();
        let known = stores.iter().filter_map(|store| self.seen(*store).cloned());
        let mut known: Vec<Sighting> = known.collect();
        if self.membership.is_none() {
            let told = self.sightings.stores.iter();
            known.extend(told.filter(|seen| !stores.contains(&seen.store)).cloned());
        }
        known
    }

    /// A store is away: what it had acknowledged is told before it comes back.
    pub fn tell_of_lost(&mut self) {
        if self.has_news_of_stores() {
            self.tell_sightings();
        }
    }
}

/// When the stores are told of each other, if nothing else calls for it.
pub(crate) const SIGHTINGS_EVERY: Time = Time::from_secs(5);
