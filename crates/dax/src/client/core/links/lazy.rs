//! Lazy replicas: those beyond the k nearest, which are sent their writes a tick later.
//!
//! Any k replicas make a write durable. DAX 4 sends to all N at once and waits for the first k; whoever
//! is not needed then costs as much as the others. A lazy replica is sent what was written since the last tick
//! in one go: what was written over meanwhile never leaves, and the rest is one message, one commit and
//! one acknowledgement. The price: when one of the k stalls, the lazy replica helps a tick later.
//!
//! ```text
//!            everybody is whole, the k nearest answer in time
//!   none trails ───────────────────────────────────────────▶ N-k trail
//!       ▲                                                       │
//!       └── somebody is away, rebuilt or misses blocks; one of ─┘
//!           the k nearest left a flush unanswered for a tick
//! ```
//!
//! Invariant: a lazy replica is owed every write that the others are owed, in the same order; only when it is
//! sent is decided here, and the next tick is the latest.

use super::{Link, Links, Sent};
use crate::client::core::Time;
use crate::client::core::quorum::ReplicaSet;
use crate::ids::ReplicaId;

/// How long a replica that was late is not counted on: at first, and twice as long each time that it is
/// late again within the longest rest. One slow flush is soon forgotten, a slow replica is not.
const LATE_REST_MIN: Time = Time::from_millis(100);
const LATE_REST_MAX: Time = Time::from_secs(1);

impl Links {
    /// A tick: chooses anew who trails, where `sync` replicas make a write durable; nobody where no number
    /// says it. What has waited until now is to be sent.
    pub fn choose_lazy(&mut self, sync: Option<usize>, now: Time) {
        self.links
            .iter_mut()
            .for_each(|link| link.look_for_lateness(now));
        self.dismiss_lazy();
        let mut there = self.links.iter().filter(|link| !link.gone);
        if !self.owned || !there.all(Link::is_whole) {
            return;
        }
        let Some(sync) = sync else {
            return;
        };
        // Differences below a millisecond are no distance.
        let mut nearest: Vec<(bool, u128, ReplicaId)> = self
            .each()
            .filter(|(_, link)| !link.gone)
            .map(|(replica, link)| (now < link.late_until, link.distance().as_millis(), replica))
            .collect();
        nearest.sort_unstable();
        let (needed, rest) = nearest.split_at(sync.min(nearest.len()));
        if needed.iter().all(|(late, ..)| !late) {
            let lazy = rest.iter().map(|(.., replica)| *replica);
            lazy.for_each(|replica| self.lazy.insert(replica));
        }
    }

    #[cfg(test)]
    pub fn lazy(&self) -> ReplicaSet {
        self.lazy
    }

    /// Nobody trails any more.
    pub fn dismiss_lazy(&mut self) {
        self.lazy = ReplicaSet::default();
    }
}

impl Link {
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
