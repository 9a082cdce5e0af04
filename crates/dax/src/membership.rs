//! Who holds a volume's copies: its members, and how they change.
//!
//! Plain data, and the rules of what may follow what; docs/understand/protocol.md, *Who are the members of a volume?*, says why they hold.
//! A membership is made with the volume and changed by the owner of an epoch only. Every store keeps
//! the newest that it was told.
//!
//! ```text
//!              begin                    joint                      done
//!   members ──────────▶ filling ──────────────────▶ joint ─────────────────▶ the members after it
//!       ▲                  │  new ones have           │  a quorum is one of
//!       │                  │  been sent everything    │  the old and one of the new
//!       └──── cancel ──────┘                          │ cancel
//!       ▲                                done         ▼
//!       └──────────────────────────────────────── joint, back
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, StoreId, Version, ZoneId};
use crate::settings::{MAX_REPLICAS, VolumeSettings};

/// The longest address of a member, in bytes.
pub const MAX_ADDRESS_BYTES: usize = 256;

/// How many of the stores that left are remembered.
const FORMER_MAX: usize = 32;

/// A store that holds a copy of every block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Store at the member's address.
    pub store: StoreId,
    /// Where it is reached: `host:port` or `unix:/path`.
    pub address: String,
    /// The zone that it is in, which is lost as a whole.
    pub zone: ZoneId,
}

/// A change of the members that is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Those that come.
    pub joining: Vec<Member>,
    /// Those that go.
    pub leaving: Vec<StoreId>,
    /// Copies that make a write durable afterwards.
    pub sync_replicas: u8,
    /// The version of the membership that began it, which tells it from other changes.
    pub begun: Version,
    /// It is given up while both count: the old members are to be left alone again.
    pub back: bool,
    /// A quorum is one of the old members and one of the new; before, joining stores count nowhere.
    pub joint: bool,
}

/// The members of a volume at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Grows with every change, in the order of epochs.
    pub version: Version,
    /// How many changes were completed.
    pub changes: u64,
    /// Copies that make a write durable (the paper's k).
    pub sync_replicas: u8,
    /// Who holds copies; as many as the paper's N.
    pub members: Vec<Member>,
    /// What is being changed.
    pub change: Option<Change>,
    /// The last ones that left, where they were then: whoever still lists one of these addresses is out of date, not
    /// wrong about the volume, whatever answers there now.
    pub former: Vec<Member>,
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// As few synchronous copies as a majority needs and as reach two zones, where there are two.
pub fn usual_sync_replicas(members: &[Member]) -> u8 {
    let majority = members.len() / 2 + 1;
    let largest = copies_by_zone(members).into_values().max().unwrap_or(0);
    let in_two_zones = match copies_by_zone(members).len() {
        ..2 => 1,
        _ => largest + 1,
    };
    majority.max(in_two_zones) as u8
}

fn copies_by_zone(members: &[Member]) -> BTreeMap<ZoneId, usize> {
    let mut copies = BTreeMap::new();
    for member in members {
        *copies.entry(member.zone).or_default() += 1;
    }
    copies
}

/// True if these can be the members of a volume.
fn check(members: &[Member], sync_replicas: u8) -> Result<()> {
    let (replicas, sync) = (members.len(), usize::from(sync_replicas));
    if !(1..=usize::from(MAX_REPLICAS)).contains(&replicas) {
        return Err(invalid(format!(
            "{replicas} zones would hold the volume: use 1 to {MAX_REPLICAS}"
        )));
    }
    if !(1..=replicas).contains(&sync) {
        return Err(invalid(format!(
            "{sync} synchronous of {replicas} copies: use 1 to {replicas}"
        )));
    }
    let zones = copies_by_zone(members);
    if let Some((zone, copies)) = zones.iter().max_by_key(|(_, copies)| **copies)
        && zones.len() > 1
        && sync <= *copies
    {
        return Err(invalid(format!(
            "{sync} synchronous of {replicas} copies, {copies} of them in {zone}: they could all be \
             there, and be lost with it; use {} to {replicas}",
            copies + 1
        )));
    }
    for (index, member) in members.iter().enumerate() {
        if member.address.is_empty() || member.address.len() > MAX_ADDRESS_BYTES {
            let address = &member.address;
            return Err(invalid(format!("{address:?} is no address of a zone")));
        }
        let earlier = &members[..index];
        if let Some(twin) = earlier.iter().find(|m| m.store == member.store) {
            return Err(same_store(member.store, &twin.address, &member.address));
        }
        if earlier.iter().any(|m| m.address == member.address) {
            let address = &member.address;
            return Err(invalid(format!("{address} is given twice")));
        }
    }
    Ok(())
}

/// What an operator is told of two addresses that lead to one store.
pub fn same_store(store: StoreId, one: &str, other: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!(
            "{one} and {other} are one store ({store}), which can count once only: both addresses lead to \
             the same server, or the directory of one is a copy of the other's"
        ),
    )
}

impl Membership {
    /// The version that a membership is made with, together with its volume.
    pub const FIRST: Version = Version {
        epoch: Epoch::NONE,
        seq: 1,
    };

    /// The first members of a volume.
    ///
    /// # Errors
    /// `Invalid` if they cannot be; the message says what to change.
    pub fn first(
        settings: &VolumeSettings,
        members: Vec<Member>,
        version: Version,
    ) -> Result<Membership> {
        check(&members, settings.sync_replicas)?;
        Ok(Membership {
            version,
            changes: 0,
            sync_replicas: settings.sync_replicas,
            members,
            change: None,
            former: Vec::new(),
        })
    }

    /// Settings of a volume with these members, as they are now.
    pub fn settings(&self, made_with: &VolumeSettings) -> VolumeSettings {
        let zones: BTreeSet<ZoneId> = self.members.iter().map(|member| member.zone).collect();
        VolumeSettings {
            replicas: self.members.len() as u8,
            sync_replicas: self.sync_replicas,
            zones: zones.len() as u8,
            ..made_with.clone()
        }
    }

    /// The member that is this store, joining ones included.
    pub fn member(&self, store: StoreId) -> Option<&Member> {
        self.everybody().find(|m| m.store == store)
    }

    /// Members, and those that join.
    pub fn everybody(&self) -> impl Iterator<Item = &Member> {
        let joining = self.change.iter().flat_map(|change| &change.joining);
        self.members.iter().chain(joining)
    }

    /// True if the volume has the members that it was made with, and no others count.
    pub fn is_original(&self) -> bool {
        self.changes == 0 && !self.change.as_ref().is_some_and(|change| change.joint)
    }

    /// True if both list the same stores in the same zones, whatever their addresses.
    pub fn is_like(&self, other: &Membership) -> bool {
        let places = |m: &Membership| -> BTreeMap<StoreId, ZoneId> {
            m.members.iter().map(|m| (m.store, m.zone)).collect()
        };
        self.sync_replicas == other.sync_replicas && places(self) == places(other)
    }

    /// The members after the change that is under way; the present ones if there is none.
    pub fn target(&self) -> Vec<Member> {
        let Some(change) = &self.change else {
            return self.members.clone();
        };
        let stays = |m: &&Member| !change.leaving.contains(&m.store);
        let staying = self.members.iter().filter(stays);
        let mut target: Vec<Member> = staying.chain(&change.joining).cloned().collect();
        target.sort_by_key(|m| m.zone);
        target
    }

    /// True if an exchange of members is about to begin.
    pub fn begins(&self) -> bool {
        let change = self.change.as_ref();
        change.is_some_and(|change| !change.joint && !change.back)
    }

    /// True if these are, for good, the members that another volume's exchange would lead to.
    pub fn is_target_of(&self, begun: &Membership) -> bool {
        let stores = |members: &[Member]| -> BTreeSet<StoreId> {
            members.iter().map(|member| member.store).collect()
        };
        let (target, sync_replicas) = begun.outcome();
        self.change.is_none()
            && self.sync_replicas == sync_replicas
            && stores(&self.members) == stores(&target)
    }

    /// The same members with a change begun: the joining ones are to be sent everything.
    ///
    /// # Errors
    /// `Conflict` if another one is under way, `Invalid` if it is invalid.
    pub fn begin(&self, change: Change, version: Version) -> Result<Membership> {
        if self.change.is_some() {
            let busy = "another exchange of zones is under way: wait for it, or cancel it first";
            return Err(Error::new(ErrorKind::Conflict, busy));
        }
        if change.joining.is_empty() && change.leaving.is_empty() {
            return Err(invalid("nothing would change".to_owned()));
        }
        for store in &change.leaving {
            if !self.members.iter().any(|m| m.store == *store) {
                return Err(invalid(format!("store {store} is no zone of the volume")));
            }
        }
        if let Some(known) = change.joining.iter().find_map(|m| self.member(m.store)) {
            let Member { store, address, .. } = known;
            return Err(invalid(format!(
                "store {store} is a zone of the volume already, at {address}"
            )));
        }
        let begun = Membership {
            version,
            change: Some(Change {
                begun: version,
                back: false,
                joint: false,
                ..change
            }),
            ..self.clone()
        };
        let after = begun
            .change
            .as_ref()
            .map_or(0, |change| change.sync_replicas);
        check(&begun.target(), after)?;
        Ok(begun)
    }

    /// The same change, in which both old and new members are needed for a quorum from now on.
    pub fn joint(&self, version: Version) -> Membership {
        let mut next = self.clone();
        next.version = version;
        if let Some(change) = &mut next.change {
            change.joint = true;
        }
        next
    }

    /// The members that are left alone when the change that is under way ends, and how many of them
    /// make a write durable.
    pub fn outcome(&self) -> (Vec<Member>, u8) {
        match &self.change {
            Some(change) if !change.back => (self.target(), change.sync_replicas),
            _ => (self.members.clone(), self.sync_replicas),
        }
    }

    /// The membership after the change that is under way.
    pub fn done(&self, version: Version) -> Membership {
        let (members, sync_replicas) = self.outcome();
        let mut next = Membership {
            version,
            members,
            sync_replicas,
            change: None,
            ..self.clone()
        };
        match &self.change {
            Some(change) if change.back => next.leave(&change.joining),
            Some(change) => {
                next.changes += 1;
                let leaves = |m: &&Member| change.leaving.contains(&m.store);
                let leaving: Vec<Member> = self.members.iter().filter(leaves).cloned().collect();
                next.leave(&leaving);
            }
            None => {}
        }
        next
    }

    /// The change is given up: at once while nobody counts who joins, else by going back through what
    /// both have.
    ///
    /// # Errors
    /// `Invalid` if nothing is under way.
    pub fn cancel(&self, version: Version) -> Result<Membership> {
        let mut next = Membership {
            version,
            ..self.clone()
        };
        let Some(change) = &mut next.change else {
            return Err(invalid("no exchange of zones is under way".to_owned()));
        };
        change.back = true;
        let joint = change.joint;
        Ok(if joint { next } else { next.done(version) })
    }

    /// True if an entry of a configuration that leads to this store is known: as a member's, or as one that left.
    pub fn knows(&self, address: &str, store: StoreId) -> bool {
        let mut former = self.former.iter();
        self.member(store).is_some() || former.any(|m| m.store == store || m.address == address)
    }

    fn leave(&mut self, leaving: &[Member]) {
        self.former.extend_from_slice(leaving);
        let members = &self.members;
        let gone = |former: &Member| !members.iter().any(|m| m.store == former.store);
        self.former.retain(gone);
        let over = self.former.len().saturating_sub(FORMER_MAX);
        self.former.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> StoreId {
        StoreId::new(number).unwrap()
    }

    fn member(number: u64) -> Member {
        Member {
            store: id(number),
            address: format!("zone{number}:7101"),
            zone: ZoneId(number as u8),
        }
    }

    fn v(seq: u64) -> Version {
        Version {
            epoch: Epoch(1),
            seq,
        }
    }

    fn three() -> Membership {
        let members = (1..=3).map(member).collect();
        Membership::first(&VolumeSettings::default(), members, Membership::FIRST).unwrap()
    }

    fn stores(members: &[Member]) -> Vec<u64> {
        members.iter().map(|m| m.store.number()).collect()
    }

    fn exchange(joining: &[u64], leaving: &[u64], sync_replicas: u8) -> Change {
        Change {
            joining: joining.iter().copied().map(member).collect(),
            leaving: leaving.iter().copied().map(id).collect(),
            sync_replicas,
            begun: Version::ZERO,
            back: false,
            joint: false,
        }
    }

    #[test]
    fn an_exchange_goes_from_old_members_over_both_to_the_new() {
        let begun = three().begin(exchange(&[4], &[2], 2), v(1)).unwrap();
        assert!(begun.is_original(), "nothing counts differently yet");
        assert_eq!(stores(&begun.members), [1, 2, 3]);
        assert_eq!(stores(&begun.target()), [1, 3, 4]);
        let joint = begun.joint(v(2));
        assert!(!joint.is_original());
        let done = joint.done(v(3));
        assert_eq!(stores(&done.members), [1, 3, 4]);
        assert_eq!((done.changes, stores(&done.former)), (1, vec![2]));
        // Its directory was emptied, and it waits for another use: whoever still lists its address is out of date.
        assert!(done.knows("zone2:7101", id(7)));
        assert!(done.knows("elsewhere:7101", id(2)));
        assert!(!done.knows("zone7:7101", id(7)));
        assert!(!done.is_original() && done.change.is_none());
        // One that left may come back.
        let back = done.begin(exchange(&[2], &[4], 2), v(4)).unwrap();
        let back = back.joint(v(5)).done(v(6));
        assert_eq!(stores(&back.members), [1, 2, 3]);
        assert_eq!(stores(&back.former), [4]);
    }

    #[test]
    fn an_exchange_that_is_given_up_leaves_the_members() {
        let begun = three().begin(exchange(&[4, 5], &[], 3), v(1)).unwrap();
        let at_once = begun.cancel(v(3)).unwrap();
        // Where both count, the old ones must have everything first.
        let back = begun.joint(v(2)).cancel(v(3)).unwrap();
        assert!(back.change.as_ref().is_some_and(|change| change.joint));
        assert!(at_once.cancel(v(4)).is_err());
        for given_up in [at_once, back.done(v(4))] {
            assert_eq!(stores(&given_up.members), [1, 2, 3]);
            assert!(given_up.is_original());
            assert_eq!(stores(&given_up.former), [4, 5]);
            assert_eq!(given_up.sync_replicas, 2);
        }
    }

    #[test]
    fn invalid_memberships_are_refused() {
        let table = [
            (exchange(&[], &[], 2), "nothing would change"),
            (exchange(&[4], &[7], 2), "is no zone of the volume"),
            (exchange(&[3], &[], 2), "already, at zone3:7101"),
            (exchange(&[], &[1, 2, 3], 1), "0 zones would hold"),
            (exchange(&[4], &[], 5), "5 synchronous of 4 copies"),
            (exchange(&[4], &[], 1), "be lost with it; use 2 to 4"),
        ];
        for (change, says) in table {
            let error = three().begin(change, v(1)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let mut twice = exchange(&[4, 5], &[], 3);
        twice.joining[1].store = id(4);
        assert!(three().begin(twice, v(1)).is_err());
        let busy = three().begin(exchange(&[4], &[], 3), v(1)).unwrap();
        let error = busy.begin(exchange(&[5], &[], 3), v(2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }

    #[test]
    fn as_many_copies_as_a_majority_needs_and_two_zones() {
        let members = |zones: &[u8]| -> Vec<Member> {
            let member = |(number, zone): (u64, &u8)| Member {
                zone: ZoneId(*zone),
                ..member(number)
            };
            (1..).zip(zones).map(member).collect()
        };
        for (zones, sync) in [
            (&[0, 1, 2][..], 2),
            (&[0, 1, 2, 3], 3),
            (&[0, 1, 2, 3, 4], 3),
            (&[0, 0, 1, 1, 2, 2], 4),
            (&[0, 0, 0, 1], 4),
            (&[0, 0, 0], 2),
            (&[0], 1),
        ] {
            assert_eq!(usual_sync_replicas(&members(zones)), sync, "{zones:?}");
            check(&members(zones), sync).unwrap();
        }
    }
}
