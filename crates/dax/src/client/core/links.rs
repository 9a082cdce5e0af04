//! One link per replica: what was sent on it, what is acknowledged, what has to be sent (again).
//!
//! ```text
//!             a flush, a tick, enough        acknowledged
//!   queue ───────────────▶ in flight (window) ───────────▶ done
//!     ▲                        │      │
//!     └──── connection lost ───┘      └─ refused: full ──▶ rests, then the queue again
//! ```
//!
//! Its parts: whose link it is ([`seats`]), [`writes`], [`lazy`] who are sent theirs later, what is [`missed`], and who is
//! [`unproven`].
//!
//! Invariant: what was in flight when a connection broke is sent again first.

mod lazy;
mod missed;
mod report;
mod seats;
mod unproven;
mod writes;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use crate::forms::Forms;
use crate::ids::{BlockKey, Generation, ReplicaId, StoreId, Version, ZoneId};
use crate::sightings::{Position, Sighting};
use crate::storage::VolumeSettings;
use crate::wire::Request;

use super::{Asker, Effect, Effects, OpId, Time};
use crate::writer::pending::{Dropped, Seq};
use crate::writer::{IdMap, ReplicaSet};

/// Bytes of blocks on the way to one replica; the rest waits in the queue.
const WINDOW_BYTES: usize = 16 << 20;

/// Bounds of the wait before another replica is asked, too.
const HEDGE_MIN: Time = Time::from_millis(20);
const HEDGE_MAX: Time = Time::from_millis(1000);

#[derive(Debug)]
struct InFlight {
    number: u64,
    what: Sent,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Sent {
    Write(Seq),
    Repair(BlockKey, Generation),
}

/// A question on its way.
#[derive(Debug)]
pub(crate) struct Asked {
    pub asker: Asker,
    pub at: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Link {
    address: String,
    zone: ZoneId,
    /// Which store answered here last.
    store: Option<StoreId>,
    /// The store that was turned away here last, because another entry leads to it, too.
    refused: Option<StoreId>,
    /// The store of the membership that belongs here.
    expected: Option<StoreId>,
    /// It is a member, or will be and counts already.
    votes: bool,
    /// Nobody is here any more.
    gone: bool,
    /// The membership that it keeps, as far as known.
    told: Version,
    /// It is being told a newer one.
    telling: bool,
    up: bool,
    /// How far the store is, as it says on this connection.
    position: Option<Position>,
    /// It went back, and does not know it yet.
    back: bool,
    /// It is met in a new run, of which others may know better.
    unproven: Option<unproven::Unproven>,
    /// It lost what it had and is being brought up to date: it takes writes, but counts in no quorum.
    rebuilding: bool,
    /// Which forms its release knows, if it was met.
    reads: Option<Forms>,
    /// It has accepted this handle's epoch since it was connected: its answers are under the fence.
    admitted: bool,
    round_trip: Option<Time>,
    heard: Time,
    pinged: Time,
    /// When it last acknowledged something, or had nothing to acknowledge.
    progress_at: Time,
    next_number: u64,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    queue: VecDeque<Seq>,
    /// Blocks of which a write was left out, with a newer one in the queue.
    skipped: HashSet<BlockKey>,
    resting: Vec<Seq>,
    rest_until: Time,
    flush_wanted: Seq,
    flushed: Seq,
    /// The first write that was sent behind later ones since the last flush: it was refused before.
    sent_late: Option<Seq>,
    /// The number of the first write that the last tick found flushed, and not acknowledged.
    unanswered: Option<u64>,
    /// Since when it has had no room for any write that it was sent.
    full_since: Option<Time>,
    /// Blocks whose writes it refuses, because it cannot read what it has of them: since when.
    refused_since: BTreeMap<(BlockKey, Generation), Time>,
    /// When those of them that it misses are sent to it again.
    refused_due: Time,
    /// It was late, and nobody counts on it until then.
    late_until: Time,
    /// How long it was not counted on the last time.
    late_rest: Time,
    last_sent: Seq,
    asked: IdMap<u64, Asked>,
    pending_bytes: u64,
    /// Writes given up for this replica because memory was short while it was away.
    missed: BTreeSet<(BlockKey, Generation)>,
    /// More than could be remembered.
    missed_unknown: u64,
    /// Repairs of missed writes that are being read.
    repairing: usize,
    trouble: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// Which replica each store is, for the life of this handle: what it acknowledged stays counted there.
    stores: BTreeMap<StoreId, ReplicaId>,
    next_id: u64,
    /// This handle owns an epoch.
    owned: bool,
    window_bytes: usize,
    linger_bytes: u64,
    trail_bytes: u64,
    /// Who is sent its writes with the next tick.
    lazy: ReplicaSet,
    /// Whoever has not accepted this handle's epoch answers, too: one of the simulation's flaws.
    #[cfg(test)]
    pub unadmitted_count: bool,
}

impl Links {
    pub fn new(addresses: &[String], settings: &VolumeSettings) -> Links {
        let link = |(replica, address): (u8, &String)| Link {
            address: address.clone(),
            zone: settings.zone_of(ReplicaId(replica)),
            votes: true,
            ..Link::default()
        };
        Links {
            links: (0..).zip(addresses).map(link).collect(),
            stores: BTreeMap::new(),
            next_id: 1,
            owned: false,
            window_bytes: WINDOW_BYTES,
            linger_bytes: writes::LINGER_BYTES,
            trail_bytes: writes::TRAIL_BYTES,
            lazy: ReplicaSet::default(),
            #[cfg(test)]
            unadmitted_count: false,
        }
    }

    /// The simulation's blocks are small, so what may wait is, too.
    #[cfg(test)]
    pub fn set_window(&mut self, window_bytes: usize) {
        self.window_bytes = window_bytes;
        self.linger_bytes = window_bytes as u64 / 2;
        self.trail_bytes = window_bytes as u64;
    }

    fn link(&mut self, replica: ReplicaId) -> &mut Link {
        &mut self.links[usize::from(replica.0)]
    }

    fn each(&self) -> impl Iterator<Item = (ReplicaId, &Link)> {
        (0u8..).map(ReplicaId).zip(&self.links)
    }

    /// Replicas with a connection.
    pub fn up(&self) -> ReplicaSet {
        self.those(|link| link.up)
    }

    fn those(&self, wanted: impl Fn(&Link) -> bool) -> ReplicaSet {
        let mut those = ReplicaSet::default();
        self.each()
            .filter(|(_, link)| wanted(link))
            .for_each(|(replica, _)| those.insert(replica));
        those
    }

    /// Replicas whose answers count. For an epoch's owner only those that have accepted it: another one
    /// may still take a write of the dead epoch after it answered, which would then be durable
    /// without any reader of the new epoch having seen it.
    pub fn askable(&self) -> ReplicaSet {
        self.those(|link| {
            link.up && link.votes && !link.rebuilding && (link.admitted || !self.owned)
        })
    }

    /// Replicas with a say in who owns an epoch.
    pub fn voters(&self) -> ReplicaSet {
        self.those(|link| link.up && link.votes && !link.rebuilding)
    }

    /// Replicas that have accepted this handle's epoch, rebuilding ones included.
    pub fn admitted(&self) -> ReplicaSet {
        self.those(|link| link.up && link.admitted)
    }

    /// Connected replicas that are being brought up to date from nothing.
    pub fn rebuilding(&self) -> ReplicaSet {
        self.those(|link| link.up && link.rebuilding)
    }

    /// Replicas whose acknowledgements make a write synced. One that is being rebuilt has forgotten
    /// which epoch it had accepted: an owner who has been deposed, and does not know it, could bring
    /// it up and complete a sync with it. So could one that has forgotten it with an earlier copy of its directory
    /// ([`unproven`]).
    pub fn counting(&self) -> ReplicaSet {
        self.those(|link| link.votes && !link.rebuilding && link.unproven.is_none())
    }

    /// True if a replica said that it counts in no quorum yet; returns what it said before.
    pub fn set_rebuilding(&mut self, replica: ReplicaId, rebuilding: bool) -> bool {
        std::mem::replace(&mut self.link(replica).rebuilding, rebuilding)
    }

    /// A connection stands, to a store that is so far; `back` if it went back and is to be told. Whether this is
    /// another run of it than the one before.
    pub fn stands(&mut self, replica: ReplicaId, position: Option<Position>, back: bool) -> bool {
        let link = self.link(replica);
        let run = |position: &Option<Position>| position.as_ref().map(|p| p.runs.current());
        let begun_anew = run(&position) != run(&link.position);
        (link.position, link.back) = (position, back);
        if begun_anew {
            self.doubt(replica);
        }
        begun_anew
    }

    /// The stores whose connections stand, and how far they are; without those that went back and are to be told.
    pub fn positions(&self) -> impl Iterator<Item = (ReplicaId, Option<StoreId>, &Position)> {
        let those = self.each().filter(|(_, link)| link.up && !link.back);
        those.filter_map(|(replica, link)| Some((replica, link.store, link.position.as_ref()?)))
    }

    /// A store has made this commit; which one it is, and in which run, if it is where it should be.
    pub fn advance(&mut self, replica: ReplicaId, commit: u64) -> Option<(StoreId, u64, u64)> {
        let link = self.link(replica);
        let position = link.position.as_mut().filter(|_| !link.back)?;
        position.commit = position.commit.max(commit);
        Some((link.store?, position.runs.current()?, position.commit))
    }

    /// How far a store says that it is which went back and is to be told so, in the run that speaks.
    pub fn back_at(&self, replica: ReplicaId) -> Option<Sighting> {
        let link = &self.links[usize::from(replica.0)];
        let position = link.position.as_ref().filter(|_| link.back)?;
        Some(Sighting {
            store: link.store?,
            run: position.runs.current()?,
            commit: position.commit,
        })
    }

    /// A store knows that it went back, and tells its commits as so much further; where it is now.
    pub fn back_over(&mut self, replica: ReplicaId, lift: u64) -> Option<Sighting> {
        let at = self.back_at(replica)?;
        let link = self.link(replica);
        link.back = false;
        let position = link.position.as_mut()?;
        position.runs = position.runs.forgiven(at.run, lift);
        position.commit = position.commit.max(lift);
        Some(Sighting {
            commit: position.commit,
            ..at
        })
    }

    /// The stores that have ever been met where somebody is expected.
    pub fn stores(&self) -> Vec<StoreId> {
        let there = self.links.iter().filter(|link| !link.gone);
        there
            .filter_map(|link| link.store.or(link.expected))
            .collect()
    }

    /// The replicas that have lost what they acknowledged, as one's arrival shows: its own, and that of the entry
    /// that led to the same store before.
    pub fn emptied_by(
        &self,
        replica: ReplicaId,
        store: Option<StoreId>,
        rebuilding: bool,
    ) -> ReplicaSet {
        let mut emptied = ReplicaSet::default();
        if self.is_other_disk(replica, store, rebuilding) {
            emptied.insert(replica);
            let refused = self.links[usize::from(replica.0)].refused;
            if let Some(twin) = refused.and_then(|store| self.stores.get(&store)) {
                emptied.insert(*twin);
            }
        }
        emptied
    }

    /// True if a replica that arrives has another disk than the one that acknowledged what this handle sent
    /// there: another store, or one that has begun anew. One of the version before does not say which store it
    /// is; of it, whoever is being rebuilt may be another one each time.
    fn is_other_disk(&self, replica: ReplicaId, store: Option<StoreId>, rebuilding: bool) -> bool {
        let link = &self.links[usize::from(replica.0)];
        match link.store.zip(store) {
            Some((known, store)) if known != store => true,
            Some(_) => rebuilding && !link.rebuilding,
            None => rebuilding,
        }
    }

    /// The replica, which is not connected yet, is owed all these writes, in order.
    pub fn owe(&mut self, replica: ReplicaId, writes: &[(Seq, usize)]) {
        let link = self.link(replica);
        debug_assert!(
            link.in_flight.is_empty(),
            "nothing is sent before it arrives"
        );
        link.resting.clear();
        link.queue = writes.iter().map(|(seq, _)| *seq).collect();
        link.pending_bytes = writes.iter().map(|(_, bytes)| *bytes as u64).sum();
    }

    /// This handle owns an epoch from now on.
    pub fn own(&mut self) {
        self.owned = true;
    }

    /// The replica has accepted this handle's epoch.
    pub fn admit(&mut self, replica: ReplicaId) {
        self.link(replica).admitted = true;
    }

    /// A new epoch is proposed: nobody has accepted it yet.
    pub fn propose(&mut self) {
        self.links.iter_mut().for_each(|link| link.admitted = false);
    }

    /// The replica of `among` with the shortest measured round trip; the first of the unmeasured.
    pub fn nearest(&self, among: ReplicaSet) -> Option<ReplicaId> {
        let distance = |replica: &ReplicaId| self.links[usize::from(replica.0)].distance();
        among.iter().min_by_key(distance)
    }

    /// How long to wait for these replicas before another is asked, too.
    pub fn hedge_delay(&self, waiting: ReplicaSet) -> Time {
        let round_trip = |replica: ReplicaId| self.links[usize::from(replica.0)].round_trip;
        let slowest = waiting.iter().filter_map(round_trip).max();
        (slowest.unwrap_or_default() * 3).clamp(HEDGE_MIN, HEDGE_MAX)
    }

    /// Sends a question; its answer goes to `asker`.
    pub fn ask(
        &mut self,
        replica: ReplicaId,
        asker: Asker,
        request: Request,
        now: Time,
        out: &mut Effects,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let asked = Asked { asker, at: now };
        self.link(replica).asked.insert(id, asked);
        out.push(Effect::Send {
            replica,
            id,
            request,
        });
    }

    /// Whose question an answer belongs to, if anybody still waits for it.
    pub fn answered(&mut self, replica: ReplicaId, id: u64) -> Option<Asked> {
        let asked = self.link(replica).asked.remove(&id)?;
        self.note_answer(replica, id);
        Some(asked)
    }

    /// Answers to what the operation asked before do not reach it any more.
    pub fn forget_asked(&mut self, op: OpId) {
        for link in &mut self.links {
            link.asked.retain(|_, asked| asked.asker != Asker::Op(op));
        }
    }

    /// The same for what any operation asked.
    pub fn forget_all_asked(&mut self) {
        for link in &mut self.links {
            link.asked
                .retain(|_, asked| !matches!(asked.asker, Asker::Op(_)));
        }
    }

    /// Notes that a replica is alive, and how far away it is.
    pub fn heard(&mut self, replica: ReplicaId, now: Time) {
        self.link(replica).heard = now;
    }

    pub fn measured(&mut self, replica: ReplicaId, round_trip: Time) {
        let link = self.link(replica);
        // Down at once, up slowly: an answer that queued behind a burst says nothing of distance.
        link.round_trip = Some(match link.round_trip {
            Some(known) if known < round_trip => known + (round_trip - known) / 32,
            _ => round_trip,
        });
    }

    pub fn connected(&mut self, replica: ReplicaId, reads: Forms, now: Time) {
        let link = self.link(replica);
        link.reads = Some(reads);
        link.up = true;
        link.heard = now;
        link.pinged = now;
        link.progress_at = now;
        link.next_number = 1;
        link.flushed = 0;
        link.sent_late = None;
        link.last_sent = 0;
        link.unanswered = None;
        link.full_since = None;
        link.refused_since.clear();
        link.rest_until = Time::ZERO;
        link.trouble = None;
        link.wake_refused(now);
    }

    /// What was in flight goes back into the queue.
    pub fn disconnected(&mut self, replica: ReplicaId, why: String) {
        let link = self.link(replica);
        link.up = false;
        link.admitted = false;
        link.telling = false;
        link.trouble = Some(why);
        link.asked.clear();
        link.in_flight_bytes = 0;
        let mut lost = Vec::new();
        for f in std::mem::take(&mut link.in_flight) {
            match f.what {
                Sent::Write(seq) => lost.push(seq),
                Sent::Repair(key, generation) => link.repair_failed(key, generation, f.bytes),
            }
        }
        link.queue_again(lost);
    }

    /// A replica that cannot be used, and why.
    pub fn set_trouble(&mut self, replica: ReplicaId, why: Option<String>) {
        self.link(replica).trouble = why;
    }

    /// Replicas that are down, and replicas that for `stuck` have acknowledged nothing, or have had no room for anything: there, synced
    /// writes may be given up.
    pub fn away(&self, now: Time, stuck: Time) -> ReplicaSet {
        let is_stuck =
            |l: &Link| !l.in_flight.is_empty() && now.saturating_sub(l.progress_at) > stuck;
        self.those(|link| !link.up || is_stuck(link) || link.is_full(now, stuck))
    }

    /// True if the replica has for `stuck` refused something: everything, because it has no room, or the writes of a
    /// block of which it cannot read what it has.
    pub fn refuses(&self, replica: ReplicaId, now: Time, stuck: Time) -> bool {
        let link = &self.links[usize::from(replica.0)];
        let mut since = link.refused_since.values();
        link.is_full(now, stuck) || since.any(|since| now.saturating_sub(*since) > stuck)
    }

    /// A write is not waited for any more; `missed` if the replicas should have had it.
    pub fn dropped(&mut self, write: &Dropped, missed: bool) {
        for replica in write.replicas.iter() {
            let link = self.link(replica);
            link.pending_bytes = link.pending_bytes.saturating_sub(write.bytes as u64);
            if missed {
                link.missed(write.key, write.generation);
            }
        }
    }

    /// Forgets all writes (the writer is fenced).
    pub fn clear(&mut self) {
        for link in &mut self.links {
            link.queue.clear();
            link.in_flight.clear();
            link.resting.clear();
            link.refused_since.clear();
            link.missed.clear();
            link.in_flight_bytes = 0;
            link.pending_bytes = 0;
        }
    }

    /// Replicas to ping now (`every` so often), and replicas that were silent for too long.
    pub fn watch(&mut self, now: Time, every: Time, timeout: Time) -> (ReplicaSet, ReplicaSet) {
        let (mut ping, mut silent) = (ReplicaSet::default(), ReplicaSet::default());
        for (replica, link) in (0u8..).map(ReplicaId).zip(&mut self.links) {
            if !link.up {
                continue;
            }
            if link.in_flight.is_empty() {
                link.progress_at = now;
            }
            if now.saturating_sub(link.heard) > timeout {
                silent.insert(replica);
            } else if now.saturating_sub(link.pinged) >= every {
                link.pinged = now;
                ping.insert(replica);
            }
        }
        (ping, silent)
    }
}

impl Link {
    fn is_full(&self, now: Time, stuck: Time) -> bool {
        self.full_since
            .is_some_and(|since| now.saturating_sub(since) > stuck)
    }

    /// The measured round trip; farthest if there is none yet.
    fn distance(&self) -> Time {
        self.round_trip.unwrap_or(Time::MAX)
    }
}
