//! Stores that went back: what this handle has seen of each store, what it was told, and what it tells others.
//!
//! ```text
//!   a store arrives that cannot be where it was seen
//!     not the owner ──▶ turned away, until the owner has dealt with it
//!     the owner ──────▶ counts no more ─ admitted ─▶ told that it went back, durably ──▶ rebuilt like a lost disk
//! ```
//!
//! What is known is put together store by store: of each run of a store the farthest that anybody has seen. A run that
//! stands, and that nothing denies, has all that earlier runs of its store had, so what was seen of those is let go.
//!
//! Invariants: nothing that a store says counts as long as it is known to lack what it had acknowledged. Where a new
//! run of a store is met, all that others have answered before is asked again: a store says what it was told of others
//! before it answers anything, so whoever knows that the new run lacks something says so first. What a store was told
//! is replaced only by an owner who was told it as well.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, ReplicaId, StoreId, Version};
use crate::sightings::{Position, Sighting, Sightings, next_life};
use crate::wire::{Request, Response};

use super::shared::Shared;
use super::{Asker, Time};

/// So many commits of a store are not worth telling: it makes one when it is told.
const WORTH_TELLING: u64 = 2;

impl Shared {
    /// Learns what a store was told of others.
    pub fn learn_sightings(&mut self, told: &Sightings) {
        for heard in &told.stores {
            let own = self.seen.get(&heard.store);
            if own.is_some_and(|own| own.run == heard.run && own.commit >= heard.commit) {
                continue;
            }
            self.sightings_news |= self.sightings.hear(heard);
        }
        self.sightings.version = self.sightings.version.max(told.version);
    }

    /// True if a store that arrives is not where it was seen.
    pub fn arrives_back(&self, store: Option<StoreId>, position: Option<&Position>) -> bool {
        let Some((store, position)) = store.zip(position) else {
            return false;
        };
        // Its process may have gone back as well, with a machine's snapshot. What others have seen of the run that
        // speaks may be later than what it has just said; what this handle heard from it is earlier.
        let own = self.seen.get(&store);
        let runs_on = own.filter(|own| position.runs.current() == Some(own.run));
        runs_on.is_some_and(|own| own.commit > position.commit) && self.heeds_sightings()
            || self.is_denied(store, position)
    }

    /// True if a store lacks what it was seen to have.
    fn is_denied(&self, store: StoreId, position: &Position) -> bool {
        let mut known = self.sightings.of(store).chain(self.seen.get(&store));
        known.any(|seen| seen.denies(position)) && self.heeds_sightings()
    }

    #[cfg(not(test))]
    fn heeds_sightings(&self) -> bool {
        true
    }

    #[cfg(test)]
    fn heeds_sightings(&self) -> bool {
        self.flaw != Some(crate::simulation::flaw::Flaw::WentBackCounts)
    }

    /// Those whose connections stand, and who are not where they were seen.
    pub fn contradicted(&self) -> Vec<ReplicaId> {
        let stand = self.links.positions();
        let back = stand.filter(|(_, store, position)| {
            store.is_some_and(|store| self.is_denied(store, position))
        });
        back.map(|(replica, ..)| replica).collect()
    }

    /// Lets go what was seen of runs before those that stand.
    pub fn settle_sightings(&mut self) {
        let rebuilding = self.links.rebuilding();
        for (replica, store, position) in self.links.positions() {
            if rebuilding.contains(replica) {
                continue;
            }
            let (Some(store), Some(run)) = (store, position.runs.current()) else {
                continue;
            };
            let is_earlier = |seen: &Sighting| seen.store == store && seen.run != run;
            if !self.sightings.stores.iter().any(is_earlier) {
                continue;
            }
            let commit = position.commit;
            self.sightings.stores.retain(|seen| !is_earlier(seen));
            self.sightings.hear(&Sighting { store, run, commit });
            self.sightings_news = true;
        }
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
        if let Some((Sighting { run, .. }, lift)) = self.lift_of_back(replica) {
            let request = Request::WentBack { epoch, run, lift };
            self.links
                .ask(replica, Asker::Back, request, self.now, &mut self.out);
        }
    }

    /// Where a store is that went back and is to be told so, and by how much its commits are told as further then: above all
    /// that was seen of it.
    fn lift_of_back(&self, replica: ReplicaId) -> Option<(Sighting, u64)> {
        let at = self.links.back_at(replica)?;
        let known = self.sightings.of(at.store).chain(self.seen.get(&at.store));
        let farthest = known.map(|seen| seen.commit).fold(at.commit, u64::max);
        Some((at, next_life(farthest)))
    }

    /// A store answered to that: it counts no more by its own account.
    pub fn back_told(&mut self, replica: ReplicaId, reply: &Response) {
        if !matches!(reply, Response::Done) {
            return;
        }
        let Some((_, lift)) = self.lift_of_back(replica) else {
            return;
        };
        if let Some(sighting) = self.links.back_over(replica, lift) {
            let store = sighting.store;
            self.sightings.stores.retain(|seen| seen.store != store);
            self.seen.insert(store, sighting);
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
        let is_news = |seen: &Sighting| {
            let mut told = self.sightings.of(seen.store);
            let told = told.find(|told| told.run == seen.run);
            told.is_none_or(|told| seen.commit > told.commit + WORTH_TELLING)
        };
        self.sightings_news || self.seen.values().any(is_news)
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
        self.sightings = sightings;
        self.sightings_news = false;
        self.sightings_due = self.now + self.config.sightings_every;
        for replica in self.links.admitted().iter() {
            self.say_sightings(replica, epoch);
        }
    }

    /// A store was admitted: it may have missed what the others were told.
    pub fn tell_admitted(&mut self, replica: ReplicaId) {
        if let Ok(epoch) = self.handle.check_writer()
            && self.sightings.version > Version::ZERO
        {
            self.say_sightings(replica, epoch);
        }
    }

    fn say_sightings(&mut self, replica: ReplicaId, epoch: Epoch) {
        let sightings = Box::new(self.sightings.clone());
        let request = Request::Sightings { epoch, sightings };
        self.links
            .ask(replica, Asker::Sightings, request, self.now, &mut self.out);
    }

    /// How far each store was seen to be. Where nobody has recorded the members, a store that only earlier owners have
    /// met may be one, so what they told of it is told on.
    fn known_stores(&self) -> Vec<Sighting> {
        let stores = self.links.stores();
        let is_told = |seen: &&Sighting| self.membership.is_none() || stores.contains(&seen.store);
        let mut known = Sightings::default();
        for seen in self
            .seen
            .values()
            .chain(&self.sightings.stores)
            .filter(is_told)
        {
            known.hear(seen);
        }
        known.stores
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
