//! Writes on their way to a replica: when they are sent, flushed, acknowledged, refused.
//!
//! A write is durable when somebody says `Flush`, and who writes a page does not wait for it. So writes stay in
//! the queue until a flush needs them, enough have gathered, or the next tick: sent one by one, each
//! would cost a system call here and a wake-up in every zone.
//!
//! Invariant: a replica gets the writes of one connection in the order they were made, and a flush after
//! those that it is for.

use super::{InFlight, Link, Links, Sent};
use crate::client::core::quorum::ReplicaSet;
use crate::client::core::{Effect, Effects, Time};
use crate::error::ErrorKind;
use crate::forms::Forms;
use crate::ids::{BlockKey, Epoch, Generation, ReplicaId};
use crate::wire::{Base, BlockWrite, Request};
use crate::writer::pending::{Entry, Pending, Seq};

/// So many bytes do not wait until somebody needs them, nor do so many that a lazy replica is owed.
pub(super) const LINGER_BYTES: u64 = 128 << 10;
pub(super) const TRAIL_BYTES: u64 = 256 << 10;

/// How long a refused write rests before it is sent again.
const REFUSED_REST: Time = Time::from_millis(500);

/// How often a block that a replica refuses again and again is sent to it.
const REFUSED_AGAIN: Time = Time::from_secs(5);
/// So many such blocks of a replica are told from others.
const REFUSED_MAX: usize = 1 << 16;

impl Links {
    /// Puts a new write at the end of each of its replicas' queues.
    pub fn write(&mut self, seq: Seq, bytes: usize, replicas: ReplicaSet) {
        for replica in replicas.iter() {
            let link = self.link(replica);
            link.queue.push_back(seq);
            link.pending_bytes += bytes as u64;
        }
    }

    /// True if nobody needs what is queued for the replica yet: it can wait for the next tick.
    pub fn can_wait(&self, replica: ReplicaId) -> bool {
        let link = &self.links[usize::from(replica.0)];
        match self.lazy.contains(replica) {
            true => link.queued_bytes() < self.trail_bytes,
            false => link.can_linger(self.linger_bytes),
        }
    }

    /// Sends queued writes while the window has room, and a flush if somebody waits for one; what a newer
    /// write makes superfluous at the replica is left out if it `may_skip`.
    pub fn pump(
        &mut self,
        replica: ReplicaId,
        epoch: Epoch,
        pending: &mut Pending,
        may_skip: bool,
        out: &mut Effects,
    ) {
        let window_bytes = self.window_bytes;
        let link = self.link(replica);
        if !link.up {
            return;
        }
        while link.in_flight_bytes < window_bytes
            && let Some(seq) = link.queue.pop_front()
        {
            if may_skip && pending.is_superfluous(seq, replica) {
                if let Some(entry) = pending.get(seq) {
                    let bytes = entry.data.len() as u64;
                    link.pending_bytes = link.pending_bytes.saturating_sub(bytes);
                    link.skipped.insert(entry.key);
                }
                pending.ack(seq, replica, |_| true);
                continue;
            }
            let Some(entry) = pending.get(seq).filter(|e| e.missing.contains(replica)) else {
                continue;
            };
            let base = entry.base.filter(|base| link.has_base(entry, base));
            let write = BlockWrite {
                epoch,
                key: entry.key,
                generation: entry.generation,
                version: entry.version,
                checksum: entry.checksum,
                base,
                data: entry
                    .data
                    .slice(base.map_or(0, |base| base.bytes as usize)..),
            };
            if seq < link.last_sent {
                link.sent_late = Some(link.sent_late.map_or(seq, |late| late.min(seq)));
            }
            link.last_sent = link.last_sent.max(seq);
            link.send(replica, Sent::Write(seq), write, out);
        }
        if link.queue.is_empty() {
            link.skipped.clear();
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
            link.full_since = None;
            match done.what {
                Sent::Write(seq) => acked.push(seq),
                Sent::Repair(key, generation) => {
                    let _ = link.refused_since.remove(&(key, generation));
                }
            }
        }
        acked
    }

    /// The replica has a later write of the same block, and needs this one no more.
    pub fn covered(&mut self, replica: ReplicaId, seq: Seq, bytes: usize) {
        let link = self.link(replica);
        // One that is on its way is counted when it is answered.
        let is_in_flight = |sent: &InFlight| matches!(sent.what, Sent::Write(s) if s == seq);
        if !link.in_flight.iter().any(is_in_flight) {
            link.pending_bytes = link.pending_bytes.saturating_sub(bytes as u64);
        }
    }

    /// The write that was sent under this number and is not answered yet.
    pub fn sent_as(&self, replica: ReplicaId, number: u64) -> Option<Seq> {
        let in_flight = &self.links[usize::from(replica.0)].in_flight;
        let found = in_flight.binary_search_by_key(&number, |f| f.number);
        match in_flight.get(found.ok()?)?.what {
            Sent::Write(seq) => Some(seq),
            Sent::Repair(..) => None,
        }
    }

    /// A write had no effect: it rests, then it is sent again.
    pub fn refused(
        &mut self,
        replica: ReplicaId,
        number: u64,
        (kind, why): (ErrorKind, String),
        pending: &Pending,
        now: Time,
    ) {
        let link = self.link(replica);
        if kind == ErrorKind::Full {
            link.full_since.get_or_insert(now);
        }
        let Some(refused) = link.take_in_flight(number) else {
            return;
        };
        link.trouble = Some(why);
        link.rest_until = now + REFUSED_REST;
        let block = match refused.what {
            Sent::Write(seq) => {
                link.resting.push(seq);
                pending.get(seq).map(|entry| (entry.key, entry.generation))
            }
            Sent::Repair(key, generation) => {
                link.repair_failed(key, generation, refused.bytes);
                Some((key, generation))
            }
        };
        if let Some(block) = block.filter(|_| kind == ErrorKind::Unavailable)
            && link.refused_since.len() < REFUSED_MAX
        {
            link.refused_since.entry(block).or_insert(now);
            link.refused_due = now + REFUSED_AGAIN;
        }
    }

    /// The replica has taken a write of the block.
    pub fn took(&mut self, replica: ReplicaId, key: BlockKey, generation: Generation) {
        let refused = &mut self.link(replica).refused_since;
        if !refused.is_empty() {
            refused.remove(&(key, generation));
        }
    }

    /// Writes that rest because the replica has refused them for `stuck`, for a reason that may never pass.
    pub fn refused_for(
        &self,
        replica: ReplicaId,
        pending: &Pending,
        now: Time,
        stuck: Time,
    ) -> Vec<Seq> {
        let link = &self.links[usize::from(replica.0)];
        if link.refused_since.is_empty() {
            return Vec::new();
        }
        let is_long = |seq: &&Seq| {
            let entry = pending.get(**seq);
            let since = entry.and_then(|e| link.refused_since.get(&(e.key, e.generation)));
            since.is_some_and(|since| now.saturating_sub(*since) > stuck)
        };
        link.resting.iter().filter(is_long).copied().collect()
    }

    /// A write was refused because the replica does not have what it begins with: which one, back in the queue.
    pub fn refused_base(&mut self, replica: ReplicaId, number: u64) -> Option<Seq> {
        let link = self.link(replica);
        let refused = link.take_in_flight(number)?;
        match refused.what {
            Sent::Write(seq) => {
                link.queue_again([seq]);
                // Sent again out of order: a flush must follow it, too.
                link.flushed = 0;
                Some(seq)
            }
            // Repairs are whole.
            Sent::Repair(key, generation) => {
                link.repair_failed(key, generation, refused.bytes);
                None
            }
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
}

impl Link {
    /// True if the replica has what a write of this entry begins with, as far as known. One that was left out is what the
    /// next one of its block begins with.
    fn has_base(&mut self, entry: &Entry, base: &Base) -> bool {
        let left_out = base.generation == entry.generation && self.skipped.remove(&entry.key);
        self.reads.is_some_and(Forms::allows_parts) && !left_out
    }

    /// What is in flight under this number is not any more.
    fn take_in_flight(&mut self, number: u64) -> Option<InFlight> {
        let found = self.in_flight.binary_search_by_key(&number, |f| f.number);
        let taken = self.in_flight.remove(found.ok()?)?;
        self.in_flight_bytes -= taken.bytes;
        Some(taken)
    }

    /// Bytes of writes that were not sent yet.
    fn queued_bytes(&self) -> u64 {
        self.pending_bytes
            .saturating_sub(self.in_flight_bytes as u64)
    }

    /// Nobody waits for what is queued, and it is little.
    pub(super) fn can_linger(&self, linger_bytes: u64) -> bool {
        let first = self.queue.front();
        let needed = first.is_some_and(|first| *first <= self.flush_wanted);
        !needed && self.queued_bytes() < linger_bytes
    }

    /// Puts a block on its way: numbered, and in flight until it is acknowledged.
    pub(super) fn send(
        &mut self,
        replica: ReplicaId,
        what: Sent,
        write: BlockWrite,
        out: &mut Effects,
    ) {
        let number = self.next_number;
        self.next_number += 1;
        let bytes = write.whole_bytes();
        self.in_flight_bytes += bytes;
        self.in_flight.push_back(InFlight {
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

    fn flush(&mut self, replica: ReplicaId, out: &mut Effects) {
        let mut writes = self.in_flight.iter();
        let first = writes.find_map(|f| match f.what {
            Sent::Write(seq) => Some(seq),
            Sent::Repair(..) => None,
        });
        let waited_for = first.is_some_and(|first| first <= self.flush_wanted);
        let is_new = self.last_sent > self.flushed && self.flush_wanted > self.flushed;
        // It is behind those that were sent before, in the order of which `first` is.
        let late = self.sent_late.is_some_and(|late| late <= self.flush_wanted);
        if waited_for && is_new || late {
            self.sent_late = None;
            self.flushed = self.last_sent;
            out.push(Effect::Send {
                replica,
                id: 0,
                request: Request::Flush,
            });
        }
    }

    pub(super) fn wake_refused(&mut self, now: Time) -> bool {
        if self.resting.is_empty() || now < self.rest_until {
            return false;
        }
        let rested = std::mem::take(&mut self.resting);
        self.queue_again(rested);
        // Sent again out of order: a flush must follow them, too.
        self.flushed = 0;
        self.trouble = None;
        true
    }

    /// Queues what was sent already, where it was before: in the order in which it was written.
    pub(super) fn queue_again(&mut self, sent: impl IntoIterator<Item = Seq>) {
        self.queue.extend(sent);
        self.queue.make_contiguous().sort_unstable();
    }
}
