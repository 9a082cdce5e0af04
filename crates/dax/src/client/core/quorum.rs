//! Sets of replicas, how large quorums are, and the one way to ask replicas and count answers.
//!
//! Invariants: every read quorum meets every set of k replicas; every epoch quorum meets every other,
//! every read quorum's complement is too small for a sync, and so is the complement of an epoch
//! quorum: once an epoch is owned, no older writer finds k replicas.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::{Error, ErrorKind};
use crate::ids::ReplicaId;
use crate::storage::{Protocol, VolumeSettings};
use crate::wire::{Request, Response};
pub(crate) use crate::writer::ReplicaSet;

use super::links::Links;
use super::{Asker, Effects, Event, Time, unexpected};

/// Who the members are at a time, and how many of them make which quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Roster {
    /// Those that hold a copy of each block (the paper's N).
    pub members: ReplicaSet,
    /// Copies that make a write durable (the paper's k).
    pub sync: usize,
}

impl Roster {
    /// The roster of so many members under a protocol, `sync` of which a volume was made with.
    pub fn new(members: ReplicaSet, sync: u8, protocol: Protocol) -> Roster {
        let sync = match protocol {
            Protocol::WriteAll => members.len(),
            Protocol::Quorum | Protocol::StrongOptimistic => sync.into(),
            Protocol::BasicOptimistic => 1,
        };
        Roster { members, sync }
    }

    fn replicas(self) -> usize {
        self.members.len()
    }

    /// Meets every set of k replicas.
    pub fn read(self) -> usize {
        self.replicas() - self.sync + 1
    }

    /// For records.
    pub fn majority(self) -> usize {
        self.replicas() / 2 + 1
    }

    /// For epochs: meets every other epoch quorum, and every set of k replicas.
    pub fn epoch(self) -> usize {
        self.majority().max(self.read())
    }

    /// How many other replicas must have been compared before one that had lost everything counts
    /// again. It meets every set of k replicas, every majority and every epoch quorum that the lost
    /// one was part of, without counting it: what it knew and forgot, one of these knows.
    pub fn rebuild(self) -> usize {
        let least = self.sync.min(self.majority()).min(self.epoch());
        self.replicas() - least + 1
    }

    /// Meets every quorum of this roster: what all of these know, nobody who counts by it can miss.
    pub fn full(self) -> usize {
        self.epoch().max(self.sync)
    }

    /// True if `enough` of these are members.
    pub fn has(self, replicas: ReplicaSet, enough: usize) -> bool {
        replicas.intersection(self.members).len() >= enough
    }
}

/// Which sets of replicas make which quorum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quorums {
    now: Roster,
    /// While members change: a quorum is one of both.
    next: Option<Roster>,
}

impl Quorums {
    /// The first replicas, as many as the settings say.
    pub fn new(settings: &VolumeSettings) -> Quorums {
        let members = ReplicaSet::first(settings.replicas.into());
        Quorums {
            now: Roster::new(members, settings.sync_replicas, settings.protocol),
            next: None,
        }
    }

    /// The quorums of a roster, or of two at once.
    pub fn joint(now: Roster, next: Option<Roster>) -> Quorums {
        Quorums { now, next }
    }

    fn has(self, replicas: ReplicaSet, enough: impl Fn(Roster) -> usize) -> bool {
        let mut rosters = [Some(self.now), self.next].into_iter().flatten();
        rosters.all(|roster| roster.has(replicas, enough(roster)))
    }

    /// All replicas that have a copy of each block.
    pub fn all(self) -> ReplicaSet {
        let next = self.next.map_or(self.now.members, |next| next.members);
        self.now.members.union(next)
    }

    /// How many replicas a write waits for, if any so many will do.
    pub fn sync(self) -> Option<usize> {
        self.next.is_none().then_some(self.now.sync)
    }

    /// How many replicas a read by quorum asks first.
    pub fn read_spread(self) -> usize {
        match self.next {
            None => self.now.read(),
            Some(_) => self.all().len(),
        }
    }

    /// True if a write that these have is durable.
    pub fn is_synced(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, |roster| roster.sync)
    }

    /// True if these know every write that is durable.
    pub fn is_read(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, Roster::read)
    }

    /// True if these suffice for a record.
    pub fn is_majority(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, Roster::majority)
    }

    /// True if an epoch that these have accepted is owned.
    pub fn is_epoch(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, Roster::epoch)
    }

    /// True if these meet every quorum; see [`Roster::full`].
    pub fn is_full(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, Roster::full)
    }

    /// True if what these have is all that a replica can have forgotten; see [`Roster::rebuild`].
    pub fn is_rebuild(self, replicas: ReplicaSet) -> bool {
        self.has(replicas, Roster::rebuild)
    }
}

/// How long to wait before a replica that answered with a passing error is asked again.
const RETRY: Time = Time::from_millis(100);

/// A question put to replicas, and who has answered.
///
/// ```text
///   not asked ──ask──▶ waiting ──answer──▶ answered
///       ▲                 │ │
///       └──replica went down─┘ └─error, damage──▶ resting ──after RETRY──▶ not asked
/// ```
///
/// Damage is believed for as long as it was seen: from the first damaged answer of a replica to its last one without a
/// sound one in between. Before and after that its copy may be mended.
#[derive(Debug)]
pub(crate) struct Round<R> {
    pub request: Request,
    pub replies: Vec<(ReplicaId, R)>,
    /// How many replicas should have been asked by now.
    pub spread: usize,
    waiting: ReplicaSet,
    /// Whose copy was damaged, each time that it was asked, and from when to when.
    damaged: BTreeMap<ReplicaId, RangeInclusive<Time>>,
    resting: ReplicaSet,
    retry_at: Time,
    widen_at: Option<Time>,
}

impl<R> Round<R> {
    /// Asks the `spread` nearest replicas first, more as time passes.
    pub fn new(request: Request, spread: usize) -> Round<R> {
        Round {
            request,
            replies: Vec::new(),
            spread,
            waiting: ReplicaSet::default(),
            damaged: BTreeMap::new(),
            resting: ReplicaSet::default(),
            retry_at: Time::ZERO,
            widen_at: None,
        }
    }

    /// Replicas whose copy was damaged when they answered last.
    pub fn damaged(&self) -> ReplicaSet {
        self.damaged.keys().copied().collect()
    }

    /// True if nobody of `all` is left to ask: who has not answered was damaged, all of them at one moment. A copy that
    /// was damaged when the first ones were asked may have been mended by the time that the last one was.
    pub fn is_exhausted(&self, all: ReplicaSet) -> bool {
        if !all.without(self.replied().union(self.damaged())).is_empty() {
            return false;
        }
        let from = self.damaged.values().map(|seen| seen.start()).max();
        let to = self.damaged.values().map(|seen| seen.end()).min();
        from <= to
    }

    /// Members changed: what was answered counts no more, and everybody is asked again.
    pub fn restart(&mut self) {
        self.replies.clear();
        self.waiting = ReplicaSet::default();
        self.damaged.clear();
        self.resting = ReplicaSet::default();
        self.widen_at = None;
    }

    /// Replicas whose answer is on its way, as far as known.
    pub fn waiting(&self) -> ReplicaSet {
        self.waiting
    }

    /// Replicas that could not answer and are asked again later.
    pub fn resting(&self) -> ReplicaSet {
        self.resting
    }

    /// Replicas that answered.
    pub fn replied(&self) -> ReplicaSet {
        self.replies.iter().map(|(replica, _)| *replica).collect()
    }

    /// Replicas whose reply is such.
    pub fn those(&self, such: impl Fn(&R) -> bool) -> ReplicaSet {
        let those = self.replies.iter().filter(|(_, reply)| such(reply));
        those.map(|(replica, _)| *replica).collect()
    }

    /// Asks whom it is time to ask.
    pub fn ask(&mut self, now: Time, asker: Asker, links: &mut Links, out: &mut Effects) {
        // Whoever proposes an epoch asks everybody; accepting it is what admits a replica.
        let among = match self.request {
            Request::OwnEpoch { .. } | Request::Epoch => links.voters(),
            Request::Inventory { .. } => links.admitted(),
            #[cfg(test)]
            _ if links.unadmitted_count => links.voters(),
            _ => links.askable(),
        };
        if !self.resting.is_empty() && now >= self.retry_at {
            self.resting = ReplicaSet::default();
        }
        if self.widen_at.is_some_and(|at| now >= at) {
            self.widen_at = None;
            self.spread += 1;
        }
        loop {
            let busy = self.waiting.union(self.replied());
            if busy.len() >= self.spread {
                break;
            }
            let Some(replica) = links.nearest(among.without(busy.union(self.resting))) else {
                break;
            };
            self.waiting.insert(replica);
            links.ask(replica, asker, self.request.clone(), now, out);
        }
        if self.widen_at.is_none() && !self.waiting.is_empty() {
            self.widen_at = Some(now + links.hedge_delay(self.waiting));
        }
    }

    /// Counts an answer.
    pub fn answer(&mut self, replica: ReplicaId, reply: R) {
        self.waiting.remove(replica);
        self.forget(replica);
        self.replies.push((replica, reply));
    }

    /// The replica's copy is damaged: another one is asked, and this one again later, when it may have been mended.
    pub fn spoiled(&mut self, replica: ReplicaId, now: Time) {
        let since = self.damaged.get(&replica).map_or(now, |seen| *seen.start());
        self.damaged.insert(replica, since..=now);
        self.rest(replica, now);
    }

    /// Takes an event of a round that waits for plain answers; `read` gives back what is none.
    pub fn take(
        &mut self,
        event: Event,
        now: Time,
        read: impl FnOnce(Response) -> Result<R, Response>,
    ) -> crate::Result<()> {
        match event {
            Event::Reply(replica, reply) => match read(reply) {
                Ok(answer) => self.answer(replica, answer),
                Err(Response::Error { kind, message }) => {
                    self.error(replica, kind, message, now)
                        .map_or(Ok(()), Err)?;
                }
                Err(other) => return Err(unexpected(replica, &other)),
            },
            Event::Lost(replica) => self.lost(replica),
            Event::Emptied(replica) => self.forget(replica),
            Event::Start | Event::Wake | Event::Synced => {}
        }
        Ok(())
    }

    /// The replica went down.
    pub fn lost(&mut self, replica: ReplicaId) {
        self.waiting.remove(replica);
    }

    /// The replica lost its disk: what it answered for is there no more, and it is asked again.
    pub fn forget(&mut self, replica: ReplicaId) {
        self.damaged.remove(&replica);
        self.replies.retain(|(r, _)| *r != replica);
    }

    fn rest(&mut self, replica: ReplicaId, now: Time) {
        self.waiting.remove(replica);
        self.resting.insert(replica);
        self.retry_at = now + RETRY;
    }

    /// The replica answered with an error: it is asked again later, unless asking again cannot help.
    pub fn error(
        &mut self,
        replica: ReplicaId,
        kind: ErrorKind,
        message: String,
        now: Time,
    ) -> Option<Error> {
        match kind {
            ErrorKind::Invalid | ErrorKind::Protocol => Some(Error::new(kind, message)),
            _ => {
                self.rest(replica, now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums_meet() {
        for replicas in 1..=9 {
            for sync in 1..=replicas {
                let q = Roster {
                    members: ReplicaSet::first(replicas),
                    sync,
                };
                assert!(q.read() + sync > replicas);
                assert!(q.epoch() + sync > replicas);
                assert!(2 * q.epoch() > replicas);
                assert!(2 * q.majority() > replicas);
                assert!(q.epoch() <= replicas);
                // Where one replica may be lost at all, the others suffice to rebuild it.
                let tolerated = (sync - 1).min(replicas - sync);
                if tolerated > 0 {
                    assert!(q.rebuild() < replicas);
                }
                for quorum in [sync, q.read(), q.majority(), q.epoch()] {
                    assert!(q.full() + quorum > replicas);
                }
                assert!(q.full() <= replicas);
                for quorum in [sync, q.majority(), q.epoch()] {
                    assert!((quorum - 1) + q.rebuild() > replicas - 1);
                }
            }
        }
    }
}
