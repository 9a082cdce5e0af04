//! Reports of each replica, for people.

use super::{Link, Links};
use crate::ids::ReplicaId;
use crate::storage::ReplicaStatus;

impl Links {
    /// All replicas that somebody is at, zone by zone.
    pub fn status(&self) -> Vec<ReplicaStatus> {
        let status = |(replica, link): (ReplicaId, &Link)| ReplicaStatus {
            replica,
            zone: link.zone,
            address: link.address.clone(),
            store: link.store,
            up: link.up,
            round_trip: link.round_trip,
            pending_bytes: link.pending_bytes,
            missed_blocks: link.missed.len() as u64 + link.missed_unknown,
            scrub_wanted: link.missed_unknown > 0,
            rebuilding: link.rebuilding,
            reads: link.reads,
            full: link.full_since.is_some(),
            trouble: link.trouble.clone(),
        };
        let there = self.each().filter(|(_, link)| !link.gone);
        let mut status: Vec<ReplicaStatus> = there.map(status).collect();
        status.sort_by_key(|replica| replica.zone);
        status
    }
}
