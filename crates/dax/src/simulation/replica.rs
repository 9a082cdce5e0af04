//! A replica with a disk: what changes it waits in a queue until a commit makes it durable and
//! answers; a crash loses the queue, or leaves any part of it on the disk.
//!
//! The rules are those of [`Peer`], which is the durable state here. Reads see what is durable, as at
//! a real replica.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::SmallRng;

use super::contents::content_of;
use super::flaw::Flaw;
use super::history::{DAMAGED, Shelf};
use crate::client::core::Time;
use crate::client::core::tests::peer::{ConnId, Peer, Sent};
use crate::ids::{Epoch, StoreId};
use crate::membership::Membership;
use crate::storage::EpochGrant;
use crate::wire::{Request, Response, StoredBlock};

#[derive(Debug, Default)]
pub(crate) struct Replica {
    pub peer: Peer,
    /// Received, not durable.
    queue: Vec<(ConnId, u64, Request)>,
    /// The highest epoch under which each connection has spoken.
    announced: BTreeMap<ConnId, Epoch>,
    pub commit_at: Option<Time>,
    /// Its disk takes that long to make anything durable.
    pub slow_until: Time,
    pub up: bool,
    /// Its disk is empty, and nobody has told it to begin anew.
    pub empty: bool,
    /// What its directory held once: somebody has copied it.
    copy: Option<Box<Peer>>,
    /// It goes on with that copy, and has not been rebuilt.
    went_back: bool,
}

impl Replica {
    pub fn new(store: u64, flaw: Option<Flaw>) -> Replica {
        Replica {
            peer: Peer::new(store, flaw),
            up: true,
            ..Replica::default()
        }
    }

    /// Takes a request; gives what is answered at once, and whether a commit is due now, or later,
    /// if it changes anything.
    pub fn take(&mut self, conn: ConnId, id: u64, request: Request) -> (Vec<Sent>, Option<bool>) {
        let epoch = match &request {
            Request::Write(write) => Some(write.epoch),
            Request::OwnEpoch { epoch, .. } | Request::Promote { epoch, .. } => Some(*epoch),
            _ => None,
        };
        if let Some(epoch) = epoch {
            let announced = self.announced.entry(conn).or_default();
            *announced = epoch.max(*announced);
        }
        match request {
            Request::Write(_) => {
                self.queue.push((conn, id, request));
                let early = self.peer.flaw == Some(Flaw::AckBeforeCommit);
                let ack = Response::Ack {
                    upto: id,
                    commit: 0,
                };
                let ack = early.then_some((conn, 0, ack));
                (ack.into_iter().collect(), Some(false))
            }
            Request::Flush => (Vec::new(), Some(true)),
            Request::OwnEpoch { .. }
            | Request::Promote { .. }
            | Request::PutRecord { .. }
            | Request::Retain { .. }
            | Request::RemoveFiles { .. }
            | Request::RemoveBlocksBefore { .. }
            | Request::Inventory { .. }
            | Request::SetMembers { .. }
            | Request::Sightings { .. }
            | Request::WentBack { .. }
            | Request::Rebuilt { .. }
            | Request::RemoveVolume { .. } => {
                self.queue.push((conn, id, request));
                (Vec::new(), Some(true))
            }
            Request::Epoch
            | Request::Read { .. }
            | Request::GetRecord { .. }
            | Request::ListRecords { .. }
            | Request::Space
            | Request::Usage
            | Request::Know { .. }
            | Request::Ping
            | Request::Hello { .. }
            | Request::Proof { .. }
            | Request::CreateVolume { .. } => (self.peer.handle(conn, id, request), None),
        }
    }

    /// Which store it is.
    pub fn store(&self) -> StoreId {
        self.peer.store.expect("every replica here is a store")
    }

    /// A store that never heard of the volume.
    pub fn blank(store: u64, flaw: Option<Flaw>) -> Replica {
        Replica {
            empty: true,
            ..Replica::new(store, flaw)
        }
    }

    /// Makes everything durable, in the order received; gives the answers.
    pub fn commit(&mut self) -> Vec<Sent> {
        let before = self.peer.fence.grant().clone();
        let mut sent = Vec::new();
        for (conn, id, request) in std::mem::take(&mut self.queue) {
            if !matches!(request, Request::Write(_)) {
                // What comes after a write sees it.
                sent.extend(self.peer.commit());
            }
            sent.extend(self.handle(conn, id, request));
        }
        sent.extend(self.peer.commit());
        let now = self.peer.fence.grant();
        if *now != before {
            sent.extend(self.fenced(now));
        }
        sent
    }

    /// Takes one request; one that went back and is rebuilt counts again.
    fn handle(&mut self, conn: ConnId, id: u64, request: Request) -> Vec<Sent> {
        let rebuilt = matches!(request, Request::Rebuilt { .. });
        let sent = self.peer.handle(conn, id, request);
        self.went_back &= !rebuilt || self.peer.rebuilding;
        sent
    }

    /// Tells those who spoke under a lower epoch.
    fn fenced(&self, now: &EpochGrant) -> Vec<Sent> {
        let lower = self.announced.iter().filter(|(_, e)| **e < now.epoch);
        let tell = |(conn, _): (&ConnId, &Epoch)| {
            let grant = now.clone();
            (*conn, 0, Response::Fenced { grant })
        };
        lower.map(tell).collect()
    }

    /// Stops. Of what was not durable, anything may have reached the disk; nobody is told.
    pub fn crash(&mut self, torn: bool, rng: &mut SmallRng) {
        self.up = false;
        self.commit_at = None;
        self.announced.clear();
        for (conn, id, request) in std::mem::take(&mut self.queue) {
            if torn && rng.random_ratio(1, 2) {
                self.handle(conn, id, request);
                self.peer.commit();
            }
        }
        self.peer.hang_up();
    }

    /// Loses its disk; it goes on with an empty one, as another store.
    pub fn lose_disk(&mut self, store: u64) {
        let (flaw, below) = (self.peer.flaw, self.peer.below.take());
        self.peer = Peer::new(store, flaw);
        if let Some(below) = below {
            self.peer.lie_over(below.lost());
        }
        self.queue.clear();
        self.empty = true;
        self.copy = None;
        self.went_back = false;
    }

    /// Somebody copies its directory, as it is on the disk.
    pub fn copy(&mut self) {
        self.copy = Some(Box::new(self.peer.clone()));
    }

    /// The number of the last commit that the copy has.
    pub fn copied_commit(&self) -> Option<u64> {
        let copy = self
            .copy
            .as_ref()
            .filter(|copy| copy.store == self.peer.store);
        copy.map(|copy| copy.position.commit)
    }

    /// The members that the copy has.
    pub fn copied_members(&self) -> Option<&Membership> {
        self.copy.as_ref()?.membership.as_deref()
    }

    /// The copy takes the directory's place. It is down.
    pub fn go_back(&mut self) {
        if let Some(copy) = self.copy.take() {
            self.peer = *copy;
            self.peer.hang_up();
            self.peer.crash();
            self.queue.clear();
            self.went_back = true;
        }
    }

    /// Is told that the volume exists and that it has lost it.
    pub fn begin_anew(&mut self, membership: Option<Membership>) {
        self.empty = false;
        self.peer.membership = membership.map(Box::new);
        self.peer.rebuilding = self.peer.flaw != Some(Flaw::RebuildingCounts);
    }

    /// Damages the `n`-th stored copy; false if there is none.
    pub fn damage(&mut self, n: u64) -> bool {
        let index = n.checked_rem(self.peer.blocks.len() as u64);
        let copy = index.and_then(|i| self.peer.blocks.values_mut().nth(i as usize));
        copy.is_some_and(|block| {
            block.checksum ^= 1;
            true
        })
    }

    /// From now on the disk does not read the `n`-th stored copy; false if there is none.
    pub fn spoil(&mut self, n: u64) -> bool {
        let index = n.checked_rem(self.peer.blocks.len() as u64);
        let slot = index.and_then(|i| self.peer.blocks.keys().nth(i as usize));
        let slot = slot.copied();
        self.peer.bad.extend(slot);
        slot.is_some()
    }

    /// True if every copy fits its checksum.
    pub fn is_intact(&self) -> bool {
        let mut blocks = self.peer.blocks.iter();
        blocks.all(|((key, _), block)| block.is_intact(*key))
    }

    /// True if it counts in quorums, or will once it is up.
    pub fn counts(&self) -> bool {
        !self.empty && !self.peer.rebuilding && !self.went_back
    }

    /// What it has durably; none if it does not count.
    pub fn shelf(&self) -> Option<Shelf> {
        let content = |key, block: &StoredBlock| match block.is_intact(key) {
            true => content_of(&block.data),
            false => DAMAGED,
        };
        let slots = self.peer.blocks.iter();
        let slots = slots.map(|(slot, block)| (*slot, content(slot.0, block)));
        self.counts().then(|| slots.collect())
    }
}
