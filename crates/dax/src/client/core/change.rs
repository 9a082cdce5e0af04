//! Changing who the members are: one exchange at a time, by the owner of the epoch.
//!
//! ```text
//!   begin ──▶ [a scrub: who joins is sent everything] ──▶ joint ─ kept by a full quorum of both
//!                                                           │
//!        the members after it, kept by a full quorum ◀── those of a full quorum of them have every write
//!                                                        and every record that was made before
//! ```
//!
//! Invariants: the members after a change count alone only once nobody can count the members before alone
//! any more, and a full quorum of them has all that was durable among those before. Nothing that an
//! earlier owner has done is believed, but what it had stores keep. docs/understand/protocol.md, *Members*, argues.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ReplicaId, Version};
use crate::membership::{Change, Membership};
use crate::wire::{Request, Response, StoredRecord};

use super::quorum::{ReplicaSet, Roster};
use super::records::List;
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, unexpected};
use crate::writer::pending::Seq;

/// Begins an exchange, or gives it up; done once a full quorum keeps that.
#[derive(Debug)]
pub(super) struct Begin {
    version: Version,
}

impl Begin {
    pub fn new(change: Change, s: &mut Shared) -> Result<Begin> {
        let (membership, version) = recorded(s)?;
        s.go_by(membership.begin(change, version)?);
        Ok(Begin { version })
    }

    pub fn cancel(s: &mut Shared) -> Result<Begin> {
        let (membership, version) = recorded(s)?;
        s.go_by(membership.cancel(version)?);
        Ok(Begin { version })
    }

    pub fn on(&self, s: &Shared) -> Option<Result<Output>> {
        s.is_kept(self.version).then_some(Ok(Output::Unit))
    }
}

fn recorded(s: &mut Shared) -> Result<(Membership, Version)> {
    s.handle.check_writer()?;
    let Some(membership) = s.membership.clone() else {
        let unrecorded = "the volume's zones are not recorded yet: that happens once all of them have been \
                          reached, each with the present version";
        return Err(Error::new(ErrorKind::Conflict, unrecorded));
    };
    Ok((membership, s.new_version()))
}

impl Shared {
    /// True if a full quorum keeps this membership.
    fn is_kept(&self, version: Version) -> bool {
        self.quorums.is_full(self.links.keepers(version))
    }

    /// Replicas that a whole scrub of this handle has looked at, and that lack nothing which it could not
    /// remember since.
    pub(super) fn looked_through(&self) -> ReplicaSet {
        let lacks = |replica: &ReplicaId| self.links.misses_unknown(*replica);
        let those = self.compared.intersection(self.links.admitted());
        let those = those.without(self.links.rebuilding());
        those.iter().filter(|replica| !lacks(replica)).collect()
    }

    /// Of those, the ones that have every write up to `upto`, and what the scrub found missing.
    fn whole(&self, upto: Seq) -> ReplicaSet {
        let has_all = |replica: &ReplicaId| {
            self.links.is_mended(*replica) && self.handle.pending.is_complete(*replica, upto)
        };
        self.looked_through().iter().filter(has_all).collect()
    }

    /// True if these are enough of those who are left alone after the change, and all that join.
    fn may_end(&self, membership: &Membership, replicas: ReplicaSet) -> bool {
        #[cfg(test)]
        if self.flaw == Some(crate::simulation::flaw::Flaw::JoinsUnfilled) {
            return true;
        }
        let (members, sync) = membership.outcome();
        let places = members.iter().filter_map(|m| self.links.place(m.store));
        let roster = Roster::new(places.collect(), sync, self.settings.protocol);
        let joining = membership.change.iter().filter(|change| !change.back);
        let joining = joining.flat_map(|change| &change.joining);
        let mut places = joining.map(|m| self.links.place(m.store));
        let joined = places.all(|place| place.is_some_and(|place| replicas.contains(place)));
        #[cfg(test)]
        if self.flaw == Some(crate::simulation::flaw::Flaw::RebuiltFromOne) {
            return joined && !replicas.is_empty();
        }
        joined && roster.has(replicas, roster.full())
    }
}

/// Ends an exchange whose stores a scrub has looked through; says whether it could.
#[derive(Debug)]
pub(super) struct Finish {
    /// The version with which the exchange began: another one is not this one's to end.
    begun: Version,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Until a full quorum of both keeps that both count.
    Establishing,
    /// Until enough have every write up to here.
    CatchingUp(Seq),
    /// Reading the records, to copy them to those who have every write up to here.
    Listing(Seq, Box<List>),
    /// From these, so many answers are missing.
    Copying(Seq, BTreeMap<ReplicaId, usize>),
    /// Until a full quorum of those who are left keeps that.
    Ending(Version),
}

impl Finish {
    /// None if there is nothing to end, or a scrub has to look through the stores first.
    pub fn new(s: &mut Shared) -> Result<Option<Finish>> {
        s.handle.check_writer()?;
        let Some(membership) = s.membership.clone() else {
            return Ok(None);
        };
        let Some(&Change { begun, joint, .. }) = membership.change.as_ref() else {
            return Ok(None);
        };
        let mut ready = s.looked_through();
        if !joint {
            // Those who are to be needed have to have answered since the change began: a store may have lost its disk
            // before that, unnoticed, and a joint membership that needs it would stop everybody for ever.
            ready = ready.intersection(s.links.keepers(membership.version));
        }
        if !s.may_end(&membership, ready) {
            return Ok(None);
        }
        if !joint {
            let version = s.new_version();
            s.go_by(membership.joint(version));
        }
        Ok(Some(Finish {
            begun,
            step: Step::Establishing,
        }))
    }

    /// Members changed, also if the exchange goes back: a full quorum has to keep that before anything that counts on it.
    pub fn restart(&mut self) {
        if !matches!(self.step, Step::Ending(_)) {
            self.step = Step::Establishing;
        }
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        self.advance(id, event, s)
            .map(|ended| ended.map(Output::Ended))
            .transpose()
    }

    fn advance(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<Option<bool>> {
        let Some(membership) = s.membership.clone() else {
            return Ok(Some(false));
        };
        if let Step::Ending(version) = self.step {
            return Ok(s.is_kept(version).then_some(true));
        }
        if !self.ends(&membership) || !s.may_end(&membership, s.looked_through()) {
            // Another call has ended the exchange, and maybe begun the next one, of which nobody keeps that both count.
            // Or somebody has lost what it had, or is away: a scrub begins anew.
            return Ok(Some(false));
        }
        match (&mut self.step, event) {
            (Step::Establishing, _) if s.is_kept(membership.version) => {
                self.step = Step::CatchingUp(s.handle.last_seq());
                return self.advance(id, Event::Wake, s);
            }
            (Step::CatchingUp(upto), _) => {
                let upto = *upto;
                if s.may_end(&membership, s.whole(upto)) {
                    let mut list = Box::new(List::new(String::new(), s.quorums));
                    let listed = list.on(id, Event::Start, s);
                    debug_assert!(listed.is_none(), "nobody was asked yet");
                    self.step = Step::Listing(upto, list);
                }
            }
            (Step::Listing(upto, list), event) => {
                if let Some(listed) = list.on(id, event, s) {
                    listed?;
                    let (upto, records) = (*upto, list.take_newest());
                    s.links.forget_asked(id);
                    // Who went away while the records were read would never answer.
                    let whole = s.whole(upto);
                    let counts = copy_records(id, whole, &records, s)?;
                    self.step = Step::Copying(upto, counts);
                    return self.copied(s, &membership, None);
                }
            }
            (Step::Copying(..), Event::Reply(replica, reply)) => {
                return self.copied(s, &membership, Some((replica, reply)));
            }
            (Step::Copying(upto, counts), Event::Lost(replica))
                if counts.contains_key(&replica) =>
            {
                s.links.forget_asked(id);
                self.step = Step::CatchingUp(*upto);
            }
            _ => {}
        }
        Ok(None)
    }

    /// True if the exchange that is under way is the one that this ends.
    fn ends(&self, membership: &Membership) -> bool {
        let change = membership.change.as_ref();
        change.is_some_and(|change| change.joint && change.begun == self.begun)
    }

    /// A record arrived somewhere; the change ends with the last one.
    fn copied(
        &mut self,
        s: &mut Shared,
        membership: &Membership,
        reply: Option<(ReplicaId, Response)>,
    ) -> Result<Option<bool>> {
        let Step::Copying(upto, counts) = &mut self.step else {
            return Ok(None);
        };
        match reply {
            Some((replica, Response::RecordStored { .. })) => {
                if let Some(count) = counts.get_mut(&replica) {
                    *count -= 1;
                }
            }
            Some((_, Response::Error { .. })) => {
                self.step = Step::CatchingUp(*upto);
                return Ok(None);
            }
            Some((replica, other)) => return Err(unexpected(replica, &other)),
            None => {}
        }
        if counts.values().all(|count| *count == 0) {
            let copied: ReplicaSet = counts.keys().copied().collect();
            let whole = copied.intersection(s.whole(*upto));
            if !s.may_end(membership, whole) {
                self.step = Step::CatchingUp(*upto);
                return Ok(None);
            }
            let version = s.new_version();
            self.step = Step::Ending(version);
            s.go_by(membership.done(version));
        }
        Ok(None)
    }
}

/// Sends these replicas the records as they are, under this handle's epoch; how many to each.
pub(super) fn copy_records(
    id: OpId,
    replicas: ReplicaSet,
    records: &BTreeMap<String, StoredRecord>,
    s: &mut Shared,
) -> Result<BTreeMap<ReplicaId, usize>> {
    let epoch = s.handle.check_writer()?;
    for replica in replicas.iter() {
        for (name, StoredRecord { version, value }) in records {
            let request = Request::PutRecord {
                epoch: Some(epoch),
                name: name.clone(),
                version: *version,
                value: value.clone(),
            };
            s.links
                .ask(replica, Asker::Op(id), request, s.now, &mut s.out);
        }
    }
    Ok(replicas
        .iter()
        .map(|replica| (replica, records.len()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::core::tests::harness::members;
    use crate::ids::Epoch;
    use crate::storage::VolumeSettings;

    /// One call was still ending an exchange when another one ended it, and the next one began. It went on with that one,
    /// although nobody kept that both memberships count: a write that those before had made durable was missing in a
    /// quorum of those after (the simulation's seed 821494).
    // hazard: ZONE-21
    #[test]
    fn a_call_ends_the_exchange_that_it_has_made_joint() {
        let version = |seq| Version {
            epoch: Epoch(1),
            seq,
        };
        let leaving = |membership: &Membership| Change {
            joining: Vec::new(),
            leaving: vec![membership.members[0].store],
            sync_replicas: 2,
            begun: Version::ZERO,
            back: false,
            joint: false,
        };
        let settings = VolumeSettings {
            replicas: 5,
            zones: 5,
            ..VolumeSettings::default()
        };
        let first = members(&settings);
        let begun = first.begin(leaving(&first), version(1)).unwrap();
        let finish = Finish {
            begun: version(1),
            step: Step::CatchingUp(0),
        };
        let joint = begun.joint(version(2));
        assert!(!finish.ends(&first) && !finish.ends(&begun));
        assert!(finish.ends(&joint));
        let cancelled = joint.cancel(version(3)).unwrap();
        assert!(finish.ends(&cancelled), "it goes back");
        let done = joint.done(version(3));
        let next = done.begin(leaving(&done), version(4)).unwrap();
        assert!(!finish.ends(&done) && !finish.ends(&next));
        assert!(!finish.ends(&next.joint(version(5))));
    }

    /// An exchange was given up while it ended, and went on from where it was: what the members were to be afterwards was
    /// decided before a full quorum kept that it goes back.
    // hazard: ZONE-16
    #[test]
    fn an_exchange_that_goes_back_is_established_first() {
        for step in [Step::CatchingUp(0), Step::Copying(0, BTreeMap::new())] {
            let begun = Version::ZERO;
            let mut finish = Finish { begun, step };
            finish.restart();
            assert!(matches!(finish.step, Step::Establishing));
        }
        let step = Step::Ending(Version::ZERO);
        let begun = Version::ZERO;
        let mut finish = Finish { begun, step };
        finish.restart();
        assert!(matches!(finish.step, Step::Ending(_)), "it is decided");
    }
}
