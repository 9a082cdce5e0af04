//! Which link leads to which store of a membership.
//!
//! Invariant: a store has one link at most, and keeps it from one membership to the next; what a store
//! that left has acknowledged counts no more when its place is given to another.

use super::{Link, Links};
use crate::client::core::members::stranger;
use crate::client::core::quorum::ReplicaSet;
use crate::error::Result;
use crate::ids::{ReplicaId, StoreId, Version};
use crate::membership::{Member, Membership, same_store};

/// The links that a membership brought, and those that it took.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    pub came: ReplicaSet,
    pub gone: ReplicaSet,
}

impl Links {
    /// Gives every store of a membership its link.
    pub fn seat(&mut self, membership: &Membership) -> Seats {
        let mut seats = Seats::default();
        let mut taken = ReplicaSet::default();
        let mut places = Vec::new();
        for member in membership.everybody() {
            let place = self.place_for(member, taken);
            if let Some(place) = place {
                taken.insert(place);
            }
            places.push((member, place));
        }
        seats.gone = self.everybody().without(taken);
        for (member, place) in places {
            let place = place.unwrap_or_else(|| {
                let place = self.free_place(taken);
                taken.insert(place);
                seats.came.insert(place);
                self.links[usize::from(place.0)] = Link {
                    address: member.address.clone(),
                    ..Link::default()
                };
                place
            });
            let joint = membership.change.as_ref().is_some_and(|c| c.joint);
            let is_member = membership.members.iter().any(|m| m.store == member.store);
            let link = self.link(place);
            link.expected = Some(member.store);
            link.zone = member.zone;
            link.votes = is_member || joint;
            link.gone = false;
        }
        seats
    }

    /// Where a store is already: the link that it answered on, that it was expected on, or that leads to its address.
    fn place_for(&self, member: &Member, taken: ReplicaSet) -> Option<ReplicaId> {
        let find = |is: &dyn Fn(&Link) -> bool| {
            let mut free = self
                .each()
                .filter(|(replica, link)| !link.gone && !taken.contains(*replica));
            free.find(|(_, link)| is(link)).map(|(replica, _)| replica)
        };
        let store = Some(member.store);
        let unknown = |link: &Link| link.expected.is_none() && link.store.is_none();
        find(&|link| link.expected == store)
            .or_else(|| find(&|link| link.expected.is_none() && link.store == store))
            .or_else(|| find(&|link| unknown(link) && link.address == member.address))
    }

    /// The first link that nobody has; those who leave keep theirs until they are removed.
    fn free_place(&mut self, taken: ReplicaSet) -> ReplicaId {
        let free = self
            .each()
            .find(|(replica, link)| link.gone && !taken.contains(*replica));
        let free = free.map(|(replica, _)| replica);
        free.unwrap_or_else(|| {
            self.links.push(Link {
                gone: true,
                ..Link::default()
            });
            ReplicaId(self.links.len() as u8 - 1)
        })
    }

    /// The link of a store of the membership.
    pub fn place(&self, store: StoreId) -> Option<ReplicaId> {
        let mut links = self.each();
        let found = links.find(|(_, link)| !link.gone && link.expected == Some(store));
        found.map(|(replica, _)| replica)
    }

    /// The store of the membership that belongs there.
    pub fn expected(&self, replica: ReplicaId) -> Option<StoreId> {
        self.links[usize::from(replica.0)].expected
    }

    pub fn address(&self, replica: ReplicaId) -> &str {
        &self.links[usize::from(replica.0)].address
    }

    /// True if the store that answered is the one that belongs there.
    ///
    /// # Errors
    /// `Conflict` if it is another one.
    pub fn check_seat(&mut self, replica: ReplicaId, store: Option<StoreId>) -> Result<()> {
        let link = self.link(replica);
        let Some(expected) = link.expected.filter(|_| !link.gone) else {
            let address = link.address.clone();
            let message = format!("{address} is no zone of the volume any more");
            return Err(crate::Error::new(crate::ErrorKind::Conflict, message));
        };
        if store != Some(expected) {
            return Err(stranger(&link.address, store, expected));
        }
        link.store = store;
        Ok(())
    }

    /// Which store a replica is, as long as no membership says it.
    ///
    /// # Errors
    /// `Invalid` if another replica is that store already.
    pub fn recognize(&mut self, replica: ReplicaId, store: Option<StoreId>) -> Result<()> {
        if let Some(store) = store {
            let first = *self.stores.entry(store).or_insert(replica);
            if first != replica {
                self.link(replica).refused = Some(store);
                return Err(same_store(
                    store,
                    self.address(first),
                    self.address(replica),
                ));
            }
        }
        let link = self.link(replica);
        (link.store, link.refused) = (store, None);
        Ok(())
    }

    /// True if another store answers where this replica was before.
    pub fn is_another(&self, replica: ReplicaId, store: Option<StoreId>) -> bool {
        let known = self.links[usize::from(replica.0)].store;
        known
            .zip(store)
            .is_some_and(|(known, store)| known != store)
    }

    /// Everybody as a member, if each has said which store it is.
    pub fn all_met(&self) -> Option<Vec<Member>> {
        let member = |link: &Link| {
            Some(Member {
                store: link.store.filter(|_| link.up && link.admitted)?,
                address: link.address.clone(),
                zone: link.zone,
            })
        };
        self.links.iter().map(member).collect()
    }

    /// A store left.
    pub fn remove(&mut self, replica: ReplicaId) {
        self.stores.retain(|_, place| *place != replica);
        *self.link(replica) = Link {
            address: self.address(replica).to_owned(),
            gone: true,
            ..Link::default()
        };
    }

    /// Everybody who gets what is written: members, and those that join.
    pub fn everybody(&self) -> ReplicaSet {
        self.those(|link| !link.gone)
    }

    /// What a store keeps of the membership, as it says when it arrives.
    pub fn keeps(&mut self, replica: ReplicaId, version: Version) {
        let link = self.link(replica);
        (link.told, link.telling) = (version, false);
    }

    /// Those who accepted this handle's epoch, and keep an older membership; they are being told now.
    pub fn take_untold(&mut self, version: Version) -> ReplicaSet {
        let wanted = |link: &Link| link.up && link.admitted && !link.telling && link.told < version;
        let those = self.those(wanted);
        those
            .iter()
            .for_each(|replica| self.link(replica).telling = true);
        those
    }

    /// A store answered to being told; none if it could not keep it now.
    pub fn told(&mut self, replica: ReplicaId, kept: Option<Version>) {
        let link = self.link(replica);
        link.telling = false;
        if let Some(version) = kept {
            link.told = version;
        }
    }

    /// Those who keep this membership, or a newer one.
    pub fn keepers(&self, version: Version) -> ReplicaSet {
        self.those(|link| !link.gone && link.told >= version)
    }
}
