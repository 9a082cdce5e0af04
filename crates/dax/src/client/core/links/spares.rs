//! Spares: the replicas beyond the k nearest, which are sent their writes a tick later.
//!
//! Any k replicas make a write durable. DAX 4 sends to all N at once and waits for the first k; whoever
//! is not needed then costs as much as the others. A spare is sent what was written since the last tick
//! in one go: what was written over meanwhile never leaves, and the rest is one message, one commit and
//! one acknowledgement. The price: when one of the k stalls, the spare helps a tick later.
//!
//! ```text
//!            everybody is whole, the k nearest answer in time
//!   none trails ───────────────────────────────────────────▶ N-k trail
//!       ▲                                                       │
//!       └── somebody is away, rebuilt or misses blocks; one of ─┘
//!           the k nearest left a flush unanswered for a tick
//! ```
//!
//! Invariant: a spare is owed every write that the others are owed, in the same order; only when it is
//! sent is decided here, and the next tick is the latest.

use super::{Link, Links, Sent};
use crate::client::core::Time;
use crate::client::core::quorum::ReplicaSet;
use crate::ids::ReplicaId;

/// So many bytes do not wait for a tick.
const TRAIL_BYTES: u64 = 256 << 10;

/// How long a replica that was late is not counted on: at first, and twice as long each time that it is
/// late again within the longest rest. One slow flush is soon forgotten, a slow replica is not.
const LATE_REST_MIN: Time = Time::from_millis(100);
const LATE_REST_MAX: Time = Time::from_secs(1);

impl Links {
    /// Whether the replica's writes wait for the next tick.
    pub fn trails(&self, replica: ReplicaId) -> bool {
        let link = &self.links[usize::from(replica.0)];
        self.spares.contains(replica) && link.queued_bytes() < TRAIL_BYTES
    }

    /// A tick: chooses anew who trails, where `sync` replicas make a write durable. Whoever trailed until
    /// now is to be sent what has waited.
    pub fn choose_spares(&mut self, sync: usize, now: Time) -> ReplicaSet {
        self.links
            .iter_mut()
            .for_each(|link| link.look_for_lateness(now));
        let trailed = self.dismiss_spares();
        if !self.owned || !self.links.iter().all(Link::is_whole) {
            return trailed;
        }
        // Differences below a millisecond are no distance.
        let mut nearest: Vec<(bool, u128, ReplicaId)> = self
            .each()
            .map(|(replica, link)| (now < link.late_until, link.distance().as_millis(), replica))
            .collect();
        nearest.sort_unstable();
        let (needed, spare) = nearest.split_at(sync.min(nearest.len()));
        if needed.iter().all(|(late, ..)| !late) {
            let spares = spare.iter().map(|(.., replica)| *replica);
            spares.for_each(|replica| self.spares.insert(replica));
        }
        trailed
    }

    #[cfg(test)]
    pub fn has_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Nobody trails any more; these did.
    pub fn dismiss_spares(&mut self) -> ReplicaSet {
        std::mem::take(&mut self.spares)
    }
}

impl Link {
    /// Bytes of writes that were not sent yet.
    fn queued_bytes(&self) -> u64 {
        self.pending_bytes
            .saturating_sub(self.in_flight_bytes as u64)
    }

    /// It can be one of the k that everything waits for.
    fn is_whole(&self) -> bool {
        let misses = !self.missed.is_empty() || self.missed_unknown > 0;
        self.up && self.admitted && !self.rebuilding && !misses && self.resting.is_empty()
    }

    /// Late is who has not answered a flush that the last tick saw already.
    fn look_for_lateness(&mut self, now: Time) {
        let flushed = |sent: &Sent| matches!(sent, Sent::Write(seq) if *seq <= self.flushed);
        let first = self.in_flight.front().filter(|f| flushed(&f.what));
        let first = first.map(|f| f.number);
        if first.is_some() && first == self.unanswered {
            self.rest_from_lateness(now);
        }
        self.unanswered = first;
    }

    fn rest_from_lateness(&mut self, now: Time) {
        let again = now < self.late_until + LATE_REST_MAX;
        self.late_rest = match again {
            true => (self.late_rest * 2).clamp(LATE_REST_MIN, LATE_REST_MAX),
            false => LATE_REST_MIN,
        };
        self.late_until = now + self.late_rest;
    }
}
