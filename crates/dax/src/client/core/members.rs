//! Who counts: the membership that this client goes by, where its stores are, and what a newer one changes.
//!
//! ```text
//!   heard of a newer membership (a welcome, a push), or made one (the owner)
//!     ──▶ links to those who came, none to those who went ──▶ quorums of the new members
//!     ──▶ every question that is under way is put again ──▶ every store is told what we know
//! ```
//!
//! Invariants: an answer counts only under the membership that it was asked for under, and the newest one
//! that was heard of is gone by; a store that keeps a newer one than it was told we know answers
//! nothing that counts, so whoever counts a quorum has heard of what a quorum keeps.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ReplicaId, StoreId, Version};
use crate::membership::{Change, Member, Membership, same_store};
use crate::storage::VolumeSettings;
use crate::wire::{Request, Response};

use super::quorum::{Quorums, ReplicaSet, Roster};
use super::shared::Shared;
use super::{Arrival, Asker, Effect};

/// What to do about a store that does not know the volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Advice {
    /// Make it there, to be rebuilt; then say hello again.
    Create(Option<Membership>),
    /// It cannot be used; says why.
    Leave(String),
}

impl Quorums {
    /// The quorums of a membership whose stores have these places.
    fn of(
        membership: &Membership,
        place: impl Fn(StoreId) -> Option<ReplicaId>,
        settings: &VolumeSettings,
    ) -> Quorums {
        let roster = |members: &[Member], sync: u8| {
            let places = members.iter().filter_map(|m| place(m.store));
            Roster::new(places.collect(), sync, settings.protocol)
        };
        let now = roster(&membership.members, membership.sync_replicas);
        let joint = membership.change.as_ref().filter(|change| change.joint);
        let next = joint.map(|change| roster(&membership.target(), change.sync_replicas));
        Quorums::joint(now, next)
    }
}

impl Shared {
    /// The version of the membership that this client goes by.
    pub fn members_version(&self) -> Version {
        let known = self.membership.as_ref();
        known.map_or(Version::ZERO, |membership| membership.version)
    }

    /// Goes by this membership if it is newer than the one that was known. Members are changed under the epoch alone,
    /// so an owner who hears of a change by a later one is deposed.
    pub fn learn(&mut self, membership: &Membership) {
        self.observe_version(membership.version);
        if membership.version > self.members_version() {
            self.go_by(membership.clone());
        }
    }

    /// Goes by this membership from now on.
    pub fn go_by(&mut self, membership: Membership) {
        let seats = self.links.seat(&membership);
        // Those who come first: what is pending has to reach somebody.
        for replica in seats.came.iter() {
            let owed = self.handle.pending.owe(replica);
            self.links.owe(replica, &owed);
            let address = self.links.address(replica).to_owned();
            self.out.push(Effect::Dial { replica, address });
        }
        for replica in seats.gone.iter() {
            self.leave(replica, &membership);
        }
        let place = |store| self.links.place(store);
        self.quorums = Quorums::of(&membership, place, &self.settings);
        self.membership = Some(membership);
        for replica in self.links.up().iter() {
            self.say_known(replica);
        }
        self.links.dismiss_lazy();
        self.judge_pending();
        self.members_news = true;
        self.tell_members();
    }

    /// Members that lost their disks: others join where they were.
    pub fn lost_members(&self) -> ReplicaSet {
        let Some(membership) = &self.membership else {
            return ReplicaSet::default();
        };
        let Some(change) = &membership.change else {
            return ReplicaSet::default();
        };
        let joins_at = |address: &str| change.joining.iter().any(|m| m.address == address);
        let leaving = change
            .leaving
            .iter()
            .filter_map(|store| membership.member(*store));
        let lost = leaving.filter(|member| joins_at(&member.address));
        lost.filter_map(|member| self.links.place(member.store))
            .collect()
    }

    /// Tells a store which membership we go by.
    pub fn say_known(&mut self, replica: ReplicaId) {
        let version = self.members_version();
        if version > Version::ZERO {
            let request = Request::Know { version };
            self.out.push(Effect::Send {
                replica,
                id: 0,
                request,
            });
        }
    }

    /// A store is a member no more: it is told so, and nothing else.
    fn leave(&mut self, replica: ReplicaId, membership: &Membership) {
        if self.links.up().contains(replica)
            && let Ok(epoch) = self.handle.check_writer()
        {
            let membership = Box::new(membership.clone());
            self.out.push(Effect::Send {
                replica,
                id: 0,
                request: Request::SetMembers { epoch, membership },
            });
        }
        self.links.remove(replica);
        self.handle.pending.forget_replica(replica);
        self.broadcasts.forget(replica);
        self.scrub_lost(replica);
        self.compared.remove(replica);
        self.out.push(Effect::HangUp { replica });
    }

    /// True if a store may be this replica: the one that belongs there, and no other replica as well.
    pub fn recognize(&mut self, replica: ReplicaId, arrival: &Arrival) -> Result<()> {
        if let Some(membership) = &arrival.membership {
            self.learn(membership);
        }
        if self.membership.is_some() {
            self.links.check_seat(replica, arrival.store)?;
            return self.check_joining(replica, arrival);
        }
        #[cfg(test)]
        if self.flaw == Some(crate::simulation::flaw::Flaw::StoreCountsTwice) {
            return Ok(());
        }
        self.links.recognize(replica, arrival.store)
    }

    /// A store joins with nothing: what it holds from earlier times may be of writes that nobody else took,
    /// and that a promotion has ruled out since.
    fn check_joining(&self, replica: ReplicaId, arrival: &Arrival) -> Result<()> {
        let begun = |membership: &Membership| Some(membership.change.as_ref()?.begun);
        let change = self.membership.as_ref().and_then(|m| m.change.as_ref());
        let joins = change.filter(|c| c.joining.iter().any(|m| Some(m.store) == arrival.store));
        let heard = arrival.membership.as_deref().and_then(begun);
        if joins.is_none_or(|change| heard == Some(change.begun)) {
            return Ok(());
        }
        let address = self.links.address(replica);
        let message = format!(
            "{address} is to join and holds remains of the volume: stop it, empty its directory and add it again"
        );
        Err(Error::new(ErrorKind::Conflict, message))
    }

    /// What to do about a store without the volume where `replica` should be.
    pub fn advise(&mut self, replica: ReplicaId, store: Option<StoreId>) -> Advice {
        if self.handle.check_writer().is_err() {
            return Advice::Leave("it does not know the volume".to_owned());
        }
        let Some(membership) = self.membership.clone() else {
            return Advice::Create(None);
        };
        match (store, self.links.expected(replica)) {
            (Some(store), Some(expected)) if store == expected => Advice::Create(Some(membership)),
            (Some(store), Some(lost)) => self.replace_lost(&membership, lost, store),
            _ => {
                Advice::Leave("it runs an older version, which does not know the volume".to_owned())
            }
        }
    }

    /// A directory was made anew: the store that is there now takes the place of the one that was.
    fn replace_lost(&mut self, membership: &Membership, lost: StoreId, store: StoreId) -> Advice {
        let Some(place) = membership.member(lost).cloned() else {
            return Advice::Leave(format!("store {lost} was there, which is no zone any more"));
        };
        if let Some(taken) = membership.member(store) {
            return Advice::Leave(match taken.address == place.address {
                true => format!("store {store} takes the place of {lost}, which was there"),
                false => same_store(store, &taken.address, &place.address).to_string(),
            });
        }
        let joining = membership.change.iter().flat_map(|change| &change.joining);
        let mut here = joining.filter(|m| m.address == place.address);
        if let Some(emptied) = here.next().map(|m| m.store) {
            let begun = self.join_anew(membership, emptied, store);
            return Advice::Leave(match begun {
                Ok(does) => {
                    format!("store {emptied} was to join, and its directory was emptied: {does}")
                }
                Err(error) => format!("its directory was emptied while it was joining: {error}"),
            });
        }
        let change = Change {
            joining: vec![Member {
                store,
                ..place.clone()
            }],
            leaving: vec![lost],
            sync_replicas: membership.sync_replicas,
            ..Change::default()
        };
        let version = self.new_version();
        match membership.begin(change, version) {
            Ok(begun) => {
                self.go_by(begun);
                Advice::Leave(format!(
                    "store {lost} was there; its directory was emptied, and {store} takes its place"
                ))
            }
            Err(error) => Advice::Leave(format!(
                "store {lost} was there, and its directory was emptied: {error}"
            )),
        }
    }

    /// Another store is where one was to join, which can never have everything: it joins instead, or the exchange goes
    /// back where the lost one counts already. Says which.
    fn join_anew(
        &mut self,
        membership: &Membership,
        emptied: StoreId,
        store: StoreId,
    ) -> Result<String> {
        let change = membership.change.clone().unwrap_or_default();
        if change.back {
            return Ok("the exchange goes back".to_owned());
        }
        let given_up = membership.cancel(self.new_version())?;
        if change.joint {
            self.go_by(given_up);
            return Ok("the exchange is given up".to_owned());
        }
        let mut joining = change.joining;
        for member in joining.iter_mut().filter(|m| m.store == emptied) {
            member.store = store;
        }
        let version = self.new_version();
        self.go_by(given_up.begin(Change { joining, ..change }, version)?);
        Ok(format!("store {store} joins instead"))
    }

    /// The owner of a volume whose members were never recorded does so once it has met all of them.
    pub fn record_members(&mut self) {
        if self.membership.is_some() || self.handle.check_writer().is_err() {
            return;
        }
        #[cfg(test)]
        if self.flaw == Some(crate::simulation::flaw::Flaw::LostAcksCount) {
            // Where members are recorded, a lost disk comes back as another member.
            return;
        }
        let Some(members) = self.links.all_met() else {
            return;
        };
        let version = self.new_version();
        if let Ok(first) = Membership::first(&self.settings, members, version) {
            self.go_by(first);
        }
    }

    /// Tells the stores that keep an older membership, or none.
    pub fn tell_members(&mut self) {
        let (Ok(epoch), Some(membership)) = (self.handle.check_writer(), &self.membership) else {
            return;
        };
        for replica in self.links.take_untold(membership.version).iter() {
            let membership = Box::new(membership.clone());
            let request = Request::SetMembers { epoch, membership };
            self.links
                .ask(replica, Asker::Members, request, self.now, &mut self.out);
        }
    }

    /// A store answered to that.
    pub fn members_told(&mut self, replica: ReplicaId, reply: &Response) {
        let kept = match reply {
            Response::MembersKept { version } => Some(*version),
            _ => None,
        };
        self.links.told(replica, kept);
    }

    /// What is enough may have changed.
    pub fn judge_pending(&mut self) {
        let enough = self.enough();
        self.handle.pending.judge(enough);
        self.progress = true;
    }
}

/// The error of a store that is not the one which belongs there.
pub(super) fn stranger(address: &str, store: Option<StoreId>, expected: StoreId) -> Error {
    let is = match store {
        Some(store) => format!("store {store}"),
        None => "a zone of an older version, which has no id".to_owned(),
    };
    Error::new(
        ErrorKind::Conflict,
        format!("{address} is {is}, and not {expected}, which is the volume's zone there"),
    )
}
