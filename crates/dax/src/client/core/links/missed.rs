//! What replicas miss: writes given up for one that was away, and how it gets them later.
//!
//! Invariant: what a replica misses is known, on its way to it, or counted as unknown, which only a scrub ends.

use super::{InFlight, Link, Links, Sent};
use crate::client::core::{Effects, Time};
use crate::ids::{BlockIndex, BlockKey, FileId, Generation, ReplicaId};
use crate::wire::BlockWrite;

/// Missed writes that are remembered for a replica (about 24 MiB).
const MISSED_MAX: usize = 1 << 20;

/// Repairs of one replica at a time, and bytes on the way to it above which none is started.
const REPAIRS: usize = 16;
const REPAIR_BYTES: usize = 1 << 20;

impl Links {
    /// A scrub found that the replica misses a block; its queue is kept as writes given up are.
    pub fn note_missed(&mut self, replica: ReplicaId, key: BlockKey, generation: Generation) {
        self.link(replica).missed(key, generation);
    }

    /// Everything that the replica missed is being looked for: what could not be remembered counts
    /// no more.
    pub fn forget_unknown(&mut self, replica: ReplicaId) {
        self.link(replica).missed_unknown = 0;
    }

    /// True if more was missed than could be remembered: only a scrub finds it.
    pub fn misses_unknown(&self, replica: ReplicaId) -> bool {
        self.links[usize::from(replica.0)].missed_unknown > 0
    }

    /// True if nothing that the replica misses is known, or on its way to it.
    pub fn is_mended(&self, replica: ReplicaId) -> bool {
        let link = &self.links[usize::from(replica.0)];
        let repair = |f: &InFlight| matches!(f.what, Sent::Repair(..));
        link.missed.is_empty() && link.repairing == 0 && !link.in_flight.iter().any(repair)
    }

    /// Blocks were removed: nobody misses them.
    pub fn forget_missed(&mut self, removed: impl Fn(FileId, BlockIndex) -> bool) {
        for link in &mut self.links {
            link.missed.retain(|(key, _)| !removed(key.file, key.block));
        }
    }

    /// Something that a replica missed and may be sent now: it is there, and has nothing to do that anybody waits
    /// for.
    pub fn next_repair(&mut self, now: Time) -> Option<(ReplicaId, BlockKey, Generation)> {
        for (replica, link) in (0u8..).map(ReplicaId).zip(&mut self.links) {
            let waits = link.queue.is_empty() || link.can_linger(self.linger_bytes);
            let idle = link.up && waits && now >= link.rest_until;
            if idle
                && link.in_flight_bytes < REPAIR_BYTES
                && link.repairing < REPAIRS
                && let Some((key, generation)) = link.next_missed(now)
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
        link.pending_bytes += write.data.len() as u64;
        let what = Sent::Repair(write.key, write.generation);
        link.send(replica, what, write, out);
    }
}

impl Link {
    /// Takes one of the blocks that it misses: those that it refuses come last, and only now and then.
    fn next_missed(&mut self, now: Time) -> Option<(BlockKey, Generation)> {
        let may_try = self.refused_since.is_empty() || now >= self.refused_due;
        let mut missed = self.missed.iter();
        let next = missed.find(|block| may_try || !self.refused_since.contains_key(block));
        let next = next.copied()?;
        self.missed.remove(&next);
        Some(next)
    }

    /// A repair had no effect: the block is missed again, and pending no more.
    pub(super) fn repair_failed(&mut self, key: BlockKey, generation: Generation, bytes: usize) {
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes as u64);
        self.missed(key, generation);
    }

    pub(super) fn missed(&mut self, key: BlockKey, generation: Generation) {
        if self.missed.len() < MISSED_MAX {
            self.missed.insert((key, generation));
        } else {
            self.missed_unknown += 1;
        }
    }
}
