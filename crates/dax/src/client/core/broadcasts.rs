//! What replicas are told for their own good (retention, removal): best effort, in order per replica,
//! again when a replica that was away returns.
//!
//! Invariant: a broadcast is complete for its caller once no connected replica still works on it; it stays
//! here until every replica has done it, or until too many wait (space is then not given back at a
//! replica that was away very long).

use std::collections::VecDeque;

use crate::ids::ReplicaId;
use crate::wire::Request;

use super::links::Links;
use super::quorum::ReplicaSet;
use super::{Asker, Effects, OpId, Time};

/// More broadcasts than this are not kept for replicas that are away.
const KEPT_MAX: usize = 4096;

#[derive(Debug)]
struct Broadcast {
    number: u64,
    op: OpId,
    request: Request,
    /// Replicas that have not done it.
    left: ReplicaSet,
    /// Replicas of those that were told on the present connection.
    told: ReplicaSet,
}

#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    broadcasts: VecDeque<Broadcast>,
    next: u64,
}

impl Broadcasts {
    pub fn add(&mut self, op: OpId, request: Request, replicas: ReplicaSet) {
        if matches!(request, Request::Retain { .. }) {
            // Only the latest counts.
            self.broadcasts
                .retain(|c| !matches!(c.request, Request::Retain { .. }));
        }
        if self.broadcasts.len() >= KEPT_MAX {
            self.broadcasts.pop_front();
        }
        self.next += 1;
        self.broadcasts.push_back(Broadcast {
            number: self.next,
            op,
            request,
            left: replicas,
            told: ReplicaSet::default(),
        });
    }

    /// Tells a connected replica what it was not told yet.
    pub fn send(&mut self, replica: ReplicaId, now: Time, links: &mut Links, out: &mut Effects) {
        for broadcast in &mut self.broadcasts {
            if broadcast.left.contains(replica) && !broadcast.told.contains(replica) {
                broadcast.told.insert(replica);
                let asker = Asker::Broadcast(broadcast.number);
                links.ask(replica, asker, broadcast.request.clone(), now, out);
            }
        }
    }

    /// A replica answered. Returns the operation to look at again.
    pub fn replied(&mut self, replica: ReplicaId, number: u64, done: bool) -> Vec<OpId> {
        let Some(broadcast) = self.broadcasts.iter_mut().find(|c| c.number == number) else {
            return Vec::new();
        };
        broadcast.told.remove(replica);
        if done {
            broadcast.left.remove(replica);
        }
        let op = broadcast.op;
        self.broadcasts.retain(|c| !c.left.is_empty());
        vec![op]
    }

    /// A replica is gone for good.
    pub fn forget(&mut self, replica: ReplicaId) {
        for broadcast in &mut self.broadcasts {
            broadcast.left.remove(replica);
            broadcast.told.remove(replica);
        }
        self.broadcasts.retain(|c| !c.left.is_empty());
    }

    /// A replica went down: it is told again when it returns.
    pub fn lost(&mut self, replica: ReplicaId) {
        self.broadcasts
            .iter_mut()
            .for_each(|c| c.told.remove(replica));
    }

    /// True if no connected replica still works on the operation's broadcasts.
    pub fn is_done(&self, op: OpId) -> bool {
        self.broadcasts
            .iter()
            .filter(|c| c.op == op)
            .all(|c| c.told.is_empty())
    }
}
