//! One link per zone: what was sent on it, what is acknowledged, what has to be sent (again).
//!
//! ```text
//!             connected                      acknowledged
//!   queue ───────────────▶ in flight (window) ───────────▶ done
//!     ▲                        │      │
//!     └──── connection lost ───┘      └─ refused: full ──▶ rests, then the queue again
//! ```
//!
//! Invariants: a zone gets the writes of one connection in the order they were made; what was in
//! flight when a connection broke is sent again first.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ZoneId};
use crate::storage::ZoneStatus;
use crate::wire::{BlockWrite, Request};

use super::pending::{Dropped, Pending, Seq};
use super::quorum::ZoneSet;
use super::{Asker, Effect, Effects, OpId, Time};

/// Bytes of blocks on the way to one zone; the rest waits in the queue.
const WINDOW_BYTES: usize = 16 << 20;

/// Missed writes that are remembered for a zone (about 24 MiB).
const MISSED_MAX: usize = 1 << 20;

/// Repairs of one zone at a time, and bytes on the way to it above which none is started.
const REPAIRS: usize = 16;
const REPAIR_BYTES: usize = 1 << 20;

/// How long a refused write rests before it is sent again.
const REFUSED_REST: Time = Time::from_millis(500);

/// Bounds of the wait before another zone is asked, too.
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
    up: bool,
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
    last_sent: Seq,
    asked: HashMap<u64, Asked>,
    pending_bytes: u64,
    /// Writes given up for this zone because memory was short while it was away.
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
}

impl Links {
    pub fn new(addresses: &[String]) -> Links {
        let link = |address: &String| Link {
            address: address.clone(),
            ..Link::default()
        };
        Links {
            links: addresses.iter().map(link).collect(),
            next_id: 1,
            owned: false,
        }
    }

    fn link(&mut self, zone: ZoneId) -> &mut Link {
        &mut self.links[usize::from(zone.0)]
    }

    fn each(&self) -> impl Iterator<Item = (ZoneId, &Link)> {
        (0u8..).map(ZoneId).zip(&self.links)
    }

    /// Zones with a connection.
    pub fn up(&self) -> ZoneSet {
        let mut up = ZoneSet::default();
        self.each()
            .filter(|(_, l)| l.up)
            .for_each(|(zone, _)| up.insert(zone));
        up
    }

    /// Zones whose answers count. For an epoch's owner only those that have accepted it: another one
    /// may still take a write of the dead epoch after it answered, which would then be durable
    /// without any reader of the new epoch having seen it.
    pub fn askable(&self) -> ZoneSet {
        let mut askable = ZoneSet::default();
        self.each()
            .filter(|(_, l)| l.up && (l.admitted || !self.owned))
            .for_each(|(zone, _)| askable.insert(zone));
        askable
    }

    /// This handle owns an epoch from now on.
    pub fn own(&mut self) {
        self.owned = true;
    }

    /// The zone has accepted this handle's epoch.
    pub fn admit(&mut self, zone: ZoneId) {
        self.link(zone).admitted = true;
    }

    /// A new epoch is proposed: nobody has accepted it yet.
    pub fn propose(&mut self) {
        self.links.iter_mut().for_each(|link| link.admitted = false);
    }

    /// The zone of `among` with the shortest measured round trip; the first of the unmeasured.
    pub fn nearest(&self, among: ZoneSet) -> Option<ZoneId> {
        let distance = |zone: &ZoneId| {
            let link = &self.links[usize::from(zone.0)];
            link.round_trip.unwrap_or(Time::MAX)
        };
        among.iter().min_by_key(distance)
    }

    /// How long to wait for these zones before another is asked, too.
    pub fn hedge_delay(&self, waiting: ZoneSet) -> Time {
        let round_trip = |zone: ZoneId| self.links[usize::from(zone.0)].round_trip;
        let slowest = waiting.iter().filter_map(round_trip).max();
        (slowest.unwrap_or_default() * 3).clamp(HEDGE_MIN, HEDGE_MAX)
    }

    /// Sends a question; its answer goes to `asker`.
    pub fn ask(
        &mut self,
        zone: ZoneId,
        asker: Asker,
        request: Request,
        now: Time,
        out: &mut Effects,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let asked = Asked { asker, at: now };
        self.link(zone).asked.insert(id, asked);
        out.push(Effect::Send { zone, id, request });
    }

    /// Whose question an answer belongs to, if anybody still waits for it.
    pub fn answered(&mut self, zone: ZoneId, id: u64) -> Option<Asked> {
        self.link(zone).asked.remove(&id)
    }

    /// Answers to what the operation asked before do not reach it any more.
    pub fn forget_asked(&mut self, op: OpId) {
        for link in &mut self.links {
            link.asked.retain(|_, asked| asked.asker != Asker::Op(op));
        }
    }

    /// Notes that a zone is alive, and how far away it is.
    pub fn heard(&mut self, zone: ZoneId, now: Time) {
        self.link(zone).heard = now;
    }

    pub fn measured(&mut self, zone: ZoneId, round_trip: Time) {
        let link = self.link(zone);
        // Down at once, up slowly: an answer that queued behind a burst says nothing of distance.
        link.round_trip = Some(match link.round_trip {
            Some(known) if known < round_trip => known + (round_trip - known) / 32,
            _ => round_trip,
        });
    }

    pub fn connected(&mut self, zone: ZoneId, now: Time) {
        let link = self.link(zone);
        link.up = true;
        link.heard = now;
        link.pinged = now;
        link.progress_at = now;
        link.next_number = 1;
        link.flushed = 0;
        link.last_sent = 0;
        link.rest_until = Time::ZERO;
        link.trouble = None;
        link.wake_refused(now);
    }

    /// What was in flight goes back to the front of the queue.
    pub fn disconnected(&mut self, zone: ZoneId, why: String) {
        let link = self.link(zone);
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

    /// A zone that cannot be used, and why.
    pub fn set_trouble(&mut self, zone: ZoneId, why: Option<String>) {
        self.link(zone).trouble = why;
    }

    /// Puts a new write at the end of each of its zones' queues and sends what fits.
    pub fn write(&mut self, seq: Seq, bytes: usize, zones: ZoneSet) {
        for zone in zones.iter() {
            let link = self.link(zone);
            link.queue.push_back(seq);
            link.pending_bytes += bytes as u64;
        }
    }

    /// Sends queued writes while the window has room, and a flush if somebody waits for one.
    pub fn pump(
        &mut self,
        zone: ZoneId,
        epoch: Epoch,
        pending: &mut Pending,
        quorums: super::Quorums,
        out: &mut Effects,
    ) {
        let link = self.link(zone);
        if !link.up {
            return;
        }
        while link.in_flight_bytes < WINDOW_BYTES
            && let Some(seq) = link.queue.pop_front()
        {
            if pending.is_superfluous(seq, zone) {
                let bytes = pending.get(seq).map_or(0, |e| e.data.len());
                pending.ack(seq, zone, quorums.replicas, quorums.sync);
                link.pending_bytes = link.pending_bytes.saturating_sub(bytes as u64);
                continue;
            }
            let Some(entry) = pending.get(seq).filter(|e| e.missing.contains(zone)) else {
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
                zone,
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
        link.flush(zone, out);
    }

    /// Somebody waits for everything up to `upto`.
    pub fn want_flush(&mut self, upto: Seq, out: &mut Effects) {
        for (zone, link) in (0u8..).map(ZoneId).zip(&mut self.links) {
            link.flush_wanted = link.flush_wanted.max(upto);
            if link.up {
                link.flush(zone, out);
            }
        }
    }

    /// The writes that this acknowledgement covers.
    pub fn acked(&mut self, zone: ZoneId, upto: u64, now: Time) -> Vec<Seq> {
        let link = self.link(zone);
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
    pub fn refused(&mut self, zone: ZoneId, number: u64, why: String, now: Time) {
        let link = self.link(zone);
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

    /// Puts refused writes that have rested back into the queue; the zones where that happened.
    pub fn wake_refused(&mut self, now: Time) -> ZoneSet {
        let mut woken = ZoneSet::default();
        for (zone, link) in (0u8..).map(ZoneId).zip(&mut self.links) {
            if link.wake_refused(now) {
                woken.insert(zone);
            }
        }
        woken
    }

    /// Zones that are down, and zones that have acknowledged nothing for `stuck`: there, synced
    /// writes may be given up.
    pub fn away(&self, now: Time, stuck: Time) -> ZoneSet {
        let mut away = ZoneSet::default();
        let is_stuck =
            |l: &Link| !l.in_flight.is_empty() && now.saturating_sub(l.progress_at) > stuck;
        self.each()
            .filter(|(_, l)| !l.up || is_stuck(l))
            .for_each(|(zone, _)| away.insert(zone));
        away
    }

    /// A write is not waited for any more; `missed` if the zones should have had it.
    pub fn dropped(&mut self, write: &Dropped, missed: bool) {
        for zone in write.zones.iter() {
            let link = self.link(zone);
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

    /// Something that a zone missed and may be sent now: it is there, and has nothing else to do.
    pub fn next_repair(&mut self, now: Time) -> Option<(ZoneId, BlockKey, Generation)> {
        for (zone, link) in (0u8..).map(ZoneId).zip(&mut self.links) {
            let idle = link.up && link.queue.is_empty() && now >= link.rest_until;
            if idle
                && link.in_flight_bytes < REPAIR_BYTES
                && link.repairing < REPAIRS
                && let Some((key, generation)) = link.missed.pop_first()
            {
                link.repairing += 1;
                return Some((zone, key, generation));
            }
        }
        None
    }

    /// The repair's block was read, or could not be.
    pub fn repair_ended(&mut self, zone: ZoneId) {
        let link = self.link(zone);
        link.repairing = link.repairing.saturating_sub(1);
    }

    /// Sends a missed block.
    pub fn repair(&mut self, zone: ZoneId, write: BlockWrite, out: &mut Effects) {
        let link = self.link(zone);
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
            zone,
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

    /// Zones to ping now (`every` so often), and zones that were silent for too long.
    pub fn watch(&mut self, now: Time, every: Time, timeout: Time) -> (ZoneSet, ZoneSet) {
        let (mut ping, mut silent) = (ZoneSet::default(), ZoneSet::default());
        for (zone, link) in (0u8..).map(ZoneId).zip(&mut self.links) {
            if !link.up {
                continue;
            }
            if link.in_flight.is_empty() {
                link.progress_at = now;
            }
            if now.saturating_sub(link.heard) > timeout {
                silent.insert(zone);
            } else if now.saturating_sub(link.pinged) >= every {
                link.pinged = now;
                ping.insert(zone);
            }
        }
        (ping, silent)
    }

    pub fn status(&self) -> Vec<ZoneStatus> {
        let status = |(zone, link): (ZoneId, &Link)| ZoneStatus {
            zone,
            address: link.address.clone(),
            up: link.up,
            round_trip: link.round_trip,
            pending_bytes: link.pending_bytes,
            trouble: link.trouble.clone().or_else(|| link.missed_note()),
        };
        self.each().map(status).collect()
    }
}

impl Link {
    fn flush(&mut self, zone: ZoneId, out: &mut Effects) {
        let mut writes = self.in_flight.iter();
        let first = writes.find_map(|f| match f.what {
            Sent::Write(seq) => Some(seq),
            Sent::Repair(..) => None,
        });
        let waited_for = first.is_some_and(|first| first <= self.flush_wanted);
        if waited_for && self.last_sent > self.flushed && self.flush_wanted > self.flushed {
            self.flushed = self.last_sent;
            out.push(Effect::Send {
                zone,
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

    fn missed_note(&self) -> Option<String> {
        let missed = self.missed.len() as u64 + self.missed_unknown;
        (missed > 0).then(|| format!("lacks {missed} writes made while it was away"))
    }
}
