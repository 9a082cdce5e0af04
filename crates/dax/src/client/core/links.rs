//! One link per replica: what was sent on it, what is acknowledged, what has to be sent (again).
//!
//! ```text
//!             a flush, a tick, enough        acknowledged
//!   queue ───────────────▶ in flight (window) ───────────▶ done
//!     ▲                        │      │
//!     └──── connection lost ───┘      └─ refused: full ──▶ rests, then the queue again
//! ```
//!
//! A write is durable when somebody says `Flush`, and who writes a page does not wait for it. So writes stay in
//! the queue until a flush needs them, enough have gathered, or the next tick: sent one by one, each
//! would cost a system call here and a wake-up in every zone.
//!
//! Invariants: a replica gets the writes of one connection in the order they were made; what was in
//! flight when a connection broke is sent again first.

mod spares;

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, ZoneId};
use crate::storage::{ReplicaStatus, VolumeSettings};
use crate::wire::{BlockWrite, Request};

use super::quorum::ReplicaSet;
use super::{Asker, Effect, Effects, OpId, Time};
use crate::writer::pending::{Dropped, Pending, Seq};

/// Bytes of blocks on the way to one replica; the rest waits in the queue.
const WINDOW_BYTES: usize = 16 << 20;

/// So many bytes do not wait until somebody needs them, nor do so many that a spare is owed.
const LINGER_BYTES: u64 = 128 << 10;
const TRAIL_BYTES: u64 = 256 << 10;

/// Missed writes that are remembered for a replica (about 24 MiB).
const MISSED_MAX: usize = 1 << 20;

/// Repairs of one replica at a time, and bytes on the way to it above which none is started.
const REPAIRS: usize = 16;
const REPAIR_BYTES: usize = 1 << 20;

/// How long a refused write rests before it is sent again.
const REFUSED_REST: Time = Time::from_millis(500);

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
    up: bool,
    /// It lost what it had and is being brought up to date: it takes writes, but counts in no quorum.
    rebuilding: bool,
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
    resting: Vec<Seq>,
    rest_until: Time,
    flush_wanted: Seq,
    flushed: Seq,
    /// The number of the first write that the last tick found flushed, and not acknowledged.
    unanswered: Option<u64>,
    /// It was late, and nobody counts on it until then.
    late_until: Time,
    /// How long it was not counted on the last time.
    late_rest: Time,
    last_sent: Seq,
    asked: HashMap<u64, Asked>,
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
    next_id: u64,
    /// This handle owns an epoch.
    owned: bool,
    window_bytes: usize,
    /// Who is sent its writes with the next tick.
    spares: ReplicaSet,
}

impl Links {
    pub fn new(addresses: &[String], settings: &VolumeSettings) -> Links {
        let link = |(replica, address): (u8, &String)| Link {
            address: address.clone(),
            zone: settings.zone_of(ReplicaId(replica)),
            ..Link::default()
        };
        Links {
            links: (0..).zip(addresses).map(link).collect(),
            next_id: 1,
            owned: false,
            window_bytes: WINDOW_BYTES,
            spares: ReplicaSet::default(),
        }
    }

    #[cfg(test)]
    pub fn set_window(&mut self, window_bytes: usize) {
        self.window_bytes = window_bytes;
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
        self.those(|link| link.up && !link.rebuilding && (link.admitted || !self.owned))
    }

    /// Replicas with a say in who owns an epoch.
    pub fn voters(&self) -> ReplicaSet {
        self.up().without(self.rebuilding())
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
    /// it up and complete a sync with it.
    pub fn counting(&self) -> ReplicaSet {
        let all = ReplicaSet::first(self.links.len());
        all.without(self.those(|link| link.rebuilding))
    }

    /// Whether a replica said that it counts in no quorum yet.
    pub fn set_rebuilding(&mut self, replica: ReplicaId, rebuilding: bool) {
        self.link(replica).rebuilding = rebuilding;
    }

    /// Whether nothing that the replica misses is known, or on its way to it.
    pub fn is_mended(&self, replica: ReplicaId) -> bool {
        let link = &self.links[usize::from(replica.0)];
        let repair = |f: &InFlight| matches!(f.what, Sent::Repair(..));
        link.missed.is_empty() && link.repairing == 0 && !link.in_flight.iter().any(repair)
    }

    /// A scrub found that the replica misses a block; its queue is kept as writes given up are.
    pub fn note_missed(&mut self, replica: ReplicaId, key: BlockKey, generation: Generation) {
        self.link(replica).missed(key, generation);
    }

    /// Everything that the replica missed is being looked for: what could not be remembered counts
    /// no more.
    pub fn forget_unknown(&mut self, replica: ReplicaId) {
        self.link(replica).missed_unknown = 0;
    }

    /// Whether more was missed than could be remembered: only a scrub finds it.
    pub fn misses_unknown(&self, replica: ReplicaId) -> bool {
        self.links[usize::from(replica.0)].missed_unknown > 0
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
        self.link(replica).asked.remove(&id)
    }

    /// Answers to what the operation asked before do not reach it any more.
    pub fn forget_asked(&mut self, op: OpId) {
        for link in &mut self.links {
            link.asked.retain(|_, asked| asked.asker != Asker::Op(op));
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

    pub fn connected(&mut self, replica: ReplicaId, now: Time) {
        let link = self.link(replica);
        link.up = true;
        link.heard = now;
        link.pinged = now;
        link.progress_at = now;
        link.next_number = 1;
        link.flushed = 0;
        link.last_sent = 0;
        link.unanswered = None;
        link.rest_until = Time::ZERO;
        link.trouble = None;
        link.wake_refused(now);
    }

    /// What was in flight goes back to the front of the queue.
    pub fn disconnected(&mut self, replica: ReplicaId, why: String) {
        let link = self.link(replica);
        link.up = false;
        link.admitted = false;
        link.trouble = Some(why);
        link.asked.clear();
        let lost = std::mem::take(&mut link.in_flight);
        link.in_flight_bytes = 0;
        lost.into_iter().rev().for_each(|f| match f.what {
            Sent::Write(seq) => link.queue.push_front(seq),
            Sent::Repair(key, generation) => link.missed(key, generation),
        });
    }

    /// A replica that cannot be used, and why.
    pub fn set_trouble(&mut self, replica: ReplicaId, why: Option<String>) {
        self.link(replica).trouble = why;
    }

    /// Puts a new write at the end of each of its replicas' queues.
    pub fn write(&mut self, seq: Seq, bytes: usize, replicas: ReplicaSet) {
        for replica in replicas.iter() {
            let link = self.link(replica);
            link.queue.push_back(seq);
            link.pending_bytes += bytes as u64;
        }
    }

    /// Whether nobody needs what is queued for the replica yet: it can wait for the next tick.
    pub fn can_wait(&self, replica: ReplicaId) -> bool {
        let link = &self.links[usize::from(replica.0)];
        if self.spares.contains(replica) {
            return link.queued_bytes() < TRAIL_BYTES;
        }
        let needed = link
            .queue
            .front()
            .is_some_and(|first| *first <= link.flush_wanted);
        !needed && link.queued_bytes() < LINGER_BYTES
    }

    /// Sends queued writes while the window has room, and a flush if somebody waits for one.
    pub fn pump(
        &mut self,
        replica: ReplicaId,
        epoch: Epoch,
        pending: &mut Pending,
        quorums: super::Quorums,
        out: &mut Effects,
    ) {
        let (window_bytes, counting) = (self.window_bytes, self.counting());
        let link = self.link(replica);
        if !link.up {
            return;
        }
        while link.in_flight_bytes < window_bytes
            && let Some(seq) = link.queue.pop_front()
        {
            if pending.is_superfluous(seq, replica) {
                let bytes = pending.get(seq).map_or(0, |e| e.data.len());
                pending.ack(seq, replica, counting, quorums.sync);
                link.pending_bytes = link.pending_bytes.saturating_sub(bytes as u64);
                continue;
            }
            let Some(entry) = pending.get(seq).filter(|e| e.missing.contains(replica)) else {
                continue;
            };
            let number = link.next_number;
            link.next_number += 1;
            link.last_sent = link.last_sent.max(seq);
            let bytes = entry.data.len();
            link.in_flight_bytes += bytes;
            let what = Sent::Write(seq);
            link.in_flight.push_back(InFlight {
                number,
                what,
                bytes,
            });
            out.push(Effect::Send {
                replica,
                id: number,
                request: Request::Write(BlockWrite {
                    epoch,
                    key: entry.key,
                    generation: entry.generation,
                    version: entry.version,
                    checksum: entry.checksum,
                    data: entry.data.clone(),
                }),
            });
        }
        link.flush(replica, out);
    }

    /// Somebody waits for everything up to `upto`.
    pub fn want_flush(&mut self, upto: Seq) {
        for link in &mut self.links {
            link.flush_wanted = link.flush_wanted.max(upto);
        }
    }

    /// Has what the replica was sent flushed, if somebody waits for it.
    pub fn flush(&mut self, replica: ReplicaId, out: &mut Effects) {
        self.link(replica).flush(replica, out);
    }

    /// The writes that this acknowledgement covers.
    pub fn acked(&mut self, replica: ReplicaId, upto: u64, now: Time) -> Vec<Seq> {
        let link = self.link(replica);
        link.progress_at = now;
        let mut acked = Vec::new();
        while let Some(done) = link.in_flight.pop_front_if(|f| f.number <= upto) {
            link.in_flight_bytes -= done.bytes;
            link.pending_bytes = link.pending_bytes.saturating_sub(done.bytes as u64);
            if let Sent::Write(seq) = done.what {
                acked.push(seq);
            }
        }
        acked
    }

    /// A write had no effect: it rests, then it is sent again.
    pub fn refused(&mut self, replica: ReplicaId, number: u64, why: String, now: Time) {
        let link = self.link(replica);
        let Ok(index) = link.in_flight.binary_search_by_key(&number, |f| f.number) else {
            return;
        };
        let Some(refused) = link.in_flight.remove(index) else {
            return;
        };
        link.in_flight_bytes -= refused.bytes;
        link.trouble = Some(why);
        link.rest_until = now + REFUSED_REST;
        match refused.what {
            Sent::Write(seq) => link.resting.push(seq),
            Sent::Repair(key, generation) => link.missed(key, generation),
        }
    }

    /// Puts refused writes that have rested back into the queue; the replicas where that happened.
    pub fn wake_refused(&mut self, now: Time) -> ReplicaSet {
        let mut woken = ReplicaSet::default();
        for (replica, link) in (0u8..).map(ReplicaId).zip(&mut self.links) {
            if link.wake_refused(now) {
                woken.insert(replica);
            }
        }
        woken
    }

    /// Replicas that are down, and replicas that have acknowledged nothing for `stuck`: there, synced
    /// writes may be given up.
    pub fn away(&self, now: Time, stuck: Time) -> ReplicaSet {
        let is_stuck =
            |l: &Link| !l.in_flight.is_empty() && now.saturating_sub(l.progress_at) > stuck;
        self.those(|link| !link.up || is_stuck(link))
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

    /// Blocks were removed: nobody misses them.
    pub fn forget_missed(&mut self, removed: impl Fn(FileId, BlockIndex) -> bool) {
        for link in &mut self.links {
            link.missed.retain(|(key, _)| !removed(key.file, key.block));
        }
    }

    /// Something that a replica missed and may be sent now: it is there, and has nothing else to do.
    pub fn next_repair(&mut self, now: Time) -> Option<(ReplicaId, BlockKey, Generation)> {
        for (replica, link) in (0u8..).map(ReplicaId).zip(&mut self.links) {
            let idle = link.up && link.queue.is_empty() && now >= link.rest_until;
            if idle
                && link.in_flight_bytes < REPAIR_BYTES
                && link.repairing < REPAIRS
                && let Some((key, generation)) = link.missed.pop_first()
            {
                link.repairing += 1;
                return Some((replica, key, generation));
            }
        }
        None
    }

    /// The repair's block was read, or could not be.
    pub fn repair_ended(&mut self, replica: ReplicaId) {
        let link = self.link(replica);
        link.repairing = link.repairing.saturating_sub(1);
    }

    /// Sends a missed block.
    pub fn repair(&mut self, replica: ReplicaId, write: BlockWrite, out: &mut Effects) {
        let link = self.link(replica);
        if !link.up {
            link.missed(write.key, write.generation);
            return;
        }
        let number = link.next_number;
        link.next_number += 1;
        let bytes = write.data.len();
        link.in_flight_bytes += bytes;
        link.pending_bytes += bytes as u64;
        let what = Sent::Repair(write.key, write.generation);
        link.in_flight.push_back(InFlight {
            number,
            what,
            bytes,
        });
        out.push(Effect::Send {
            replica,
            id: number,
            request: Request::Write(write),
        });
    }

    /// Forgets all writes (the writer is fenced).
    pub fn clear(&mut self) {
        for link in &mut self.links {
            link.queue.clear();
            link.in_flight.clear();
            link.resting.clear();
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

    pub fn status(&self) -> Vec<ReplicaStatus> {
        let status = |(replica, link): (ReplicaId, &Link)| ReplicaStatus {
            replica,
            zone: link.zone,
            address: link.address.clone(),
            up: link.up,
            round_trip: link.round_trip,
            pending_bytes: link.pending_bytes,
            missed_blocks: link.missed.len() as u64 + link.missed_unknown,
            scrub_wanted: link.missed_unknown > 0,
            rebuilding: link.rebuilding,
            trouble: link.trouble.clone(),
        };
        self.each().map(status).collect()
    }
}

impl Link {
    /// The measured round trip; farthest if there is none yet.
    fn distance(&self) -> Time {
        self.round_trip.unwrap_or(Time::MAX)
    }

    /// Bytes of writes that were not sent yet.
    fn queued_bytes(&self) -> u64 {
        self.pending_bytes
            .saturating_sub(self.in_flight_bytes as u64)
    }

    fn flush(&mut self, replica: ReplicaId, out: &mut Effects) {
        let mut writes = self.in_flight.iter();
        let first = writes.find_map(|f| match f.what {
            Sent::Write(seq) => Some(seq),
            Sent::Repair(..) => None,
        });
        let waited_for = first.is_some_and(|first| first <= self.flush_wanted);
        if waited_for && self.last_sent > self.flushed && self.flush_wanted > self.flushed {
            self.flushed = self.last_sent;
            out.push(Effect::Send {
                replica,
                id: 0,
                request: Request::Flush,
            });
        }
    }

    fn wake_refused(&mut self, now: Time) -> bool {
        if self.resting.is_empty() || now < self.rest_until {
            return false;
        }
        let mut rested = std::mem::take(&mut self.resting);
        rested.sort_unstable();
        // Sent again out of order: a flush must follow them, too.
        self.flushed = 0;
        self.trouble = None;
        rested
            .into_iter()
            .rev()
            .for_each(|seq| self.queue.push_front(seq));
        true
    }

    fn missed(&mut self, key: BlockKey, generation: Generation) {
        if self.missed.len() < MISSED_MAX {
            self.missed.insert((key, generation));
        } else {
            self.missed_unknown += 1;
        }
    }
}
