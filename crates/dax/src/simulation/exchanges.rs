//! Exchanges of stores among the other events: one joins, one leaves, one takes another's place; given up
//! now and then, and cut short by whatever else goes wrong.
//!
//! Who the members are is what the newest membership says that a store keeps which counts: a change that
//! only a store which joins has heard of never began.

use rand::Rng;

use super::history::{ClientId, Event, Roster};
use super::replica::Replica;
use super::schedule::Schedule;
use super::workload::Intent;
use super::world::{World, address_of, index_of};
use crate::client::core::Call;
use crate::ids::{ReplicaId, ZoneId};
use crate::membership::{Change, Member, Membership, usual_sync_replicas};
use crate::storage::VolumeSettings;

/// How many stores there are besides those that the volume was made with.
const SPARES_MAX: usize = 4;
const MEMBERS_MAX: usize = 7;

/// The first members, as whoever makes the volume records them.
pub(super) fn first_members(replicas: &[Replica], settings: &VolumeSettings) -> Membership {
    let members = (0..).zip(replicas).map(|(index, replica)| Member {
        store: replica.store(),
        address: address_of(index),
        zone: settings.zone_of(ReplicaId(index)),
    });
    let first = Membership::first(settings, members.collect(), Membership::FIRST);
    first.expect("the settings were checked")
}

impl World {
    /// The newest membership that counts.
    pub fn members(&self) -> Option<&Membership> {
        self.recorded.as_ref()
    }

    /// A store may have heard of a newer membership: it counts from the time that somebody keeps it who counts
    /// by the one before.
    pub fn note_members(&mut self) {
        let keeps = |replica: &Replica| replica.peer.membership.as_ref().map(|m| m.version);
        if self
            .replicas
            .iter()
            .map(keeps)
            .eq(self.kept.iter().copied())
        {
            return;
        }
        self.kept = self.replicas.iter().map(keeps).collect();
        self.forget_lost_members();
        loop {
            let known = self.recorded.as_ref();
            let version = known.map(|m| m.version);
            let known = known.unwrap_or(&self.unrecorded);
            let joint = known.change.as_ref().filter(|change| change.joint);
            let joining = joint.iter().flat_map(|change| &change.joining);
            let counting = known.members.iter().chain(joining);
            let places = counting.map(|m| &self.replicas[usize::from(index_of(&m.address))]);
            let kept = places.filter_map(|replica| replica.peer.membership.as_deref());
            let newest = kept.max_by_key(|m| m.version);
            match newest.filter(|m| Some(m.version) > version).cloned() {
                Some(newer) => self.outgoing = self.recorded.replace(newer),
                None => break,
            }
        }
        if self.is_newest_kept() {
            self.outgoing = None;
        }
    }

    /// True if a full quorum keeps the newest membership: an operator is told that an exchange has ended, and may
    /// throw away who left.
    fn is_newest_kept(&self) -> bool {
        let Some(newest) = &self.recorded else {
            return false;
        };
        let keeps = |member: &&Member| {
            let replica = &self.replicas[usize::from(index_of(&member.address))];
            let kept = replica.peer.membership.as_ref().map(|m| m.version);
            replica.store() == member.store && kept >= Some(newest.version)
        };
        let is_kept = |members: &[Member], sync: u8| {
            let (count, sync) = (members.len(), usize::from(sync));
            let full = (count / 2 + 1).max(count - sync + 1).max(sync);
            members.iter().filter(keeps).count() >= full
        };
        let next = newest.change.as_ref().filter(|change| change.joint);
        is_kept(&newest.members, newest.sync_replicas)
            && next.is_none_or(|change| is_kept(&newest.target(), change.sync_replicas))
    }

    /// A membership that too few kept, and all of these have lost, never was.
    fn forget_lost_members(&mut self) {
        let Some(known) = &self.recorded else {
            return;
        };
        let kept = |replica: &Replica| replica.peer.membership.as_deref().cloned();
        let all = self.replicas.iter().filter_map(kept);
        if all.map(|m| m.version).max() >= Some(known.version) {
            return;
        }
        let places = known
            .members
            .iter()
            .map(|m| usize::from(index_of(&m.address)));
        let left = places.filter_map(|place| kept(&self.replicas[place]));
        if let Some(newest) = left.max_by_key(|m| m.version) {
            self.recorded = Some(newest);
        }
    }

    /// True if who goes by this membership finds out who the members are: the stores that it names and that are still
    /// there tell what they keep, and so do those that a newer membership names. After an exchange, those who left may
    /// be gone, and a member that was away may not have heard of it yet.
    pub fn leads_to_members(&self, known: &Membership) -> bool {
        let recorded = self.members().map(|members| members.version);
        let mut known = known;
        while Some(known.version) < recorded {
            let there =
                |m: &&Member| self.replicas[usize::from(index_of(&m.address))].store() == m.store;
            let kept = |m: &Member| {
                let replica = &self.replicas[usize::from(index_of(&m.address))];
                replica.peer.membership.as_deref()
            };
            let told = known.everybody().filter(there).filter_map(kept);
            match told
                .max_by_key(|m| m.version)
                .filter(|m| m.version > known.version)
            {
                Some(newer) => known = newer,
                None => return false,
            }
        }
        true
    }

    /// Whose copies count: of the members, or of both before and after.
    pub fn rosters(&self) -> Vec<Roster> {
        let roster = |(members, sync): (Vec<Member>, u8)| Roster {
            // Where a disk was lost, another store has the address.
            members: members
                .iter()
                .map(|m| index_of(&m.address).into())
                .collect(),
            sync: sync.into(),
        };
        self.who_counts(false).into_iter().map(roster).collect()
    }

    /// The members, and those after a change that is under way: from the time that they count, or `early`, and then also
    /// those before a change that has ended as long as few have heard of it.
    fn who_counts(&self, early: bool) -> Vec<(Vec<Member>, u8)> {
        let unrecorded = self.unrecorded.clone();
        let kept = self.members().unwrap_or(&unrecorded);
        let outgoing = self.outgoing.as_ref().filter(|_| early);
        let mut who = Vec::new();
        for membership in std::iter::once(kept).chain(outgoing) {
            who.push((membership.members.clone(), membership.sync_replicas));
            let change = membership.change.as_ref();
            let counts = change.filter(|change| change.joint || early);
            who.extend(counts.map(|change| (membership.target(), change.sync_replicas)));
        }
        who
    }

    /// True if one more store may lose something: no more of any members who count, or will, than they bear.
    pub fn may_lose(&self, index: u8) -> bool {
        let is_spare = |members: &[Member]| members.iter().all(|m| index_of(&m.address) != index);
        if self.lacks_below() {
            return false;
        }
        let who = self.who_counts(true);
        who.iter()
            .all(|(members, sync)| is_spare(members) || self.bear_more(members, *sync, index))
    }

    /// True if a copy in this store may be damaged. What is damaged in a store that is being filled is found by who reads
    /// it, and members whose place it takes may have left by then, so these must bear it, too.
    pub fn may_be_damaged(&self, index: u8) -> bool {
        let is_filled = self.replicas[usize::from(index)].peer.rebuilding;
        let who = self.who_counts(true);
        let bears = |(members, sync): &(Vec<Member>, u8)| self.bear_more(members, *sync, index);
        self.may_lose(index) && (!is_filled || who.iter().all(bears))
    }

    /// True if these members bear the loss of one more store, besides those of them that have lost something.
    fn bear_more(&self, members: &[Member], sync: u8, index: u8) -> bool {
        let others = members.iter().filter(|m| index_of(&m.address) != index);
        let hurt = others.filter(|m| self.is_hurt(m)).count();
        hurt < usize::from(sync - 1).min(members.len() - usize::from(sync))
    }

    /// True if so many others that count were told of commits which the copy of this store lacks that no read quorum is
    /// without one of them: no other copy can be told from the directory itself. Nor can one from before an exchange, with
    /// those who were members then and have been away since: by its members, too, somebody who knows has to be asked.
    pub fn is_copy_known_as_old(&self, index: u8) -> bool {
        let replica = &self.replicas[usize::from(index)];
        let Some(commit) = replica.copied_commit().filter(|_| replica.counts()) else {
            return false;
        };
        let knows = |member: &Member| {
            let other = &self.replicas[usize::from(index_of(&member.address))].peer;
            let mut seen = other.sightings.of(replica.store());
            seen.any(|seen| seen.commit > commit)
        };
        let of_copy = replica.copied_members().into_iter();
        let of_copy = of_copy.map(|then| (then.members.clone(), then.sync_replicas));
        let mut who = self.who_counts(true).into_iter().chain(of_copy);
        who.all(|(members, sync)| {
            let others = members.iter().filter(|m| m.store != replica.store());
            let unknowing = others.filter(|m| !knows(m)).count();
            unknowing + usize::from(sync) < members.len()
        })
    }

    /// Members whose place another store has.
    pub fn replaced(&self) -> Vec<u8> {
        let members = self.members().map_or(&[][..], |m| &m.members);
        let at = |m: &&Member| &self.replicas[usize::from(index_of(&m.address))];
        let lost = members.iter().filter(|m| at(m).store() != m.store);
        lost.map(|m| index_of(&m.address)).collect()
    }

    /// Operators stop stores that hold remains of a change that was given up, and empty their directories.
    pub fn empty_remains(&mut self) {
        if self.members().is_some_and(|m| m.change.is_some()) {
            return;
        }
        for index in self.replaced() {
            if !self.replicas[usize::from(index)].empty {
                self.crash_replica(index, false, 50_000);
                self.lose_disk(index);
            }
        }
    }

    fn is_hurt(&self, member: &Member) -> bool {
        let replica = &self.replicas[usize::from(index_of(&member.address))];
        let lost = self.members().is_some() && replica.store() != member.store;
        lost || !replica.counts() || !replica.is_intact() || !replica.peer.bad.is_empty()
    }

    /// A store that holds nothing of the volume, or held it once.
    fn spare(&mut self) -> Option<usize> {
        let known = self.members()?.clone();
        let outgoing = self.outgoing.clone();
        let taken = |index: usize| {
            let mut all = known
                .everybody()
                .chain(outgoing.iter().flat_map(Membership::everybody));
            all.any(|m| index_of(&m.address) as usize == index)
        };
        let free: Vec<usize> = (0..self.replicas.len())
            .filter(|index| !taken(*index))
            .collect();
        let most = usize::from(self.settings.replicas) + SPARES_MAX;
        if free.is_empty() || self.replicas.len() < most && self.chance(50) {
            return (self.replicas.len() < most).then(|| self.add_store());
        }
        let index = free[self.below(free.len() as u64) as usize];
        if !self.replicas[index].empty {
            // It was a member once: it is stopped, and its directory emptied.
            self.crash_replica(index as u8, false, 50_000);
            self.lose_disk(index as u8);
        }
        Some(index)
    }

    /// Some change of the members that makes sense.
    fn some_change(&mut self) -> Option<Change> {
        let known = self.members()?.clone();
        let which = self.below(known.members.len() as u64) as usize;
        let leaving = known.members[which].clone();
        let mut change = Change::default();
        let (grow, shrink) = (
            known.members.len() < MEMBERS_MAX,
            known.members.len() > 2.max(usize::from(self.settings.replicas) - 1),
        );
        match self.rng.random_range(0..3) {
            0 if grow => {}
            1 if shrink => change.leaving.push(leaving.store),
            _ => change.leaving.push(leaving.store),
        }
        if change.leaving.is_empty() || !shrink || self.chance(60) {
            let index = self.spare()?;
            let zone = match change.leaving.is_empty() {
                true => ZoneId(
                    known
                        .members
                        .iter()
                        .map(|m| m.zone.0 + 1)
                        .max()
                        .unwrap_or(0),
                ),
                false => leaving.zone,
            };
            change.joining.push(Member {
                store: self.replicas[index].store(),
                address: address_of(index as u8),
                zone,
            });
        }
        let mut after = known.clone();
        after.change = Some(change.clone());
        change.sync_replicas = usual_sync_replicas(&after.target());
        Some(change)
    }
}

impl Schedule {
    /// What an operator wants of the members; mostly of the owner who is, now and then of one who was.
    pub fn exchange(&mut self, client: ClientId) {
        let under_way = self.world.members().is_some_and(|m| m.change.is_some());
        if under_way {
            if self.world.chance(15) {
                self.cancel_exchange(client);
            }
            return;
        }
        if let Some(change) = self.world.some_change() {
            self.world
                .coverage
                .one(match (change.joining.len(), change.leaving.len()) {
                    (_, 0) => "exchanges begun, adding",
                    (0, _) => "exchanges begun, removing",
                    _ => "exchanges begun, replacing",
                });
            self.quietly(client, Call::ChangeMembers(change), Intent::Exchange);
        }
    }

    pub fn cancel_exchange(&mut self, client: ClientId) {
        self.world.coverage.one("exchanges given up");
        self.quietly(client, Call::CancelChange, Intent::Exchange);
    }

    /// Ends what a scrub has looked through.
    pub fn finish_exchange(&mut self, client: ClientId) {
        if self.world.members().is_some_and(|m| m.change.is_some()) {
            self.quietly(client, Call::FinishChange, Intent::Exchange);
        }
    }

    /// What is under way is ended; given up if that does not work `soon`.
    pub fn end_exchange(&mut self, soon: bool) {
        let Some(writer) = self.newest_writer() else {
            return;
        };
        let client = self.writers[writer].client;
        let going_back = |m: &Membership| m.change.as_ref().is_some_and(|c| c.back);
        let under_way = self.world.members().is_some_and(|m| m.change.is_some());
        if under_way && soon && !self.world.members().is_some_and(going_back) {
            self.cancel_exchange(client);
        }
        self.world.empty_remains();
        self.finish_exchange(client);
        self.settle("an exchange ends");
    }

    /// Tells the checkers whose copies count, and what they have.
    pub fn take_stock(&mut self) {
        let rosters = self.world.rosters();
        self.event(&Event::Rosters(rosters));
        let stored = self.world.stored();
        self.event(&stored);
    }
}
