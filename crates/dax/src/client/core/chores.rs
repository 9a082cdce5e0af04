//! What replicas are told for their own good (retention, removal): best effort, in order per replica,
//! again when a replica that was away returns.
//!
//! Invariant: a chore is complete for its caller once no connected replica still works on it; it stays
//! here until every replica has done it, or until too many wait (space is then not given back at a
//! replica that was away very long).

use std::collections::VecDeque;

use crate::ids::ReplicaId;
use crate::wire::Request;

use super::links::Links;
use super::quorum::ReplicaSet;
use super::{Asker, Effects, OpId, Time};

/// More chores than this are not kept for replicas that are away.
const KEPT_MAX: usize = 4096;

#[derive(Debug)]
struct Chore {
    number: u64,
    op: OpId,
    request: Request,
    /// Replicas that have not done it.
    left: ReplicaSet,
    /// Replicas of those that were told on the present connection.
    told: ReplicaSet,
}

#[derive(Debug, Default)]
pub(super) struct Chores {
    chores: VecDeque<Chore>,
    next: u64,
}

impl Chores {
    pub fn add(&mut self, op: OpId, request: Request, replicas: ReplicaSet) {
        if matches!(request, Request::Retain { .. }) {
            // Only the latest counts.
            self.chores
                .retain(|c| !matches!(c.request, Request::Retain { .. }));
        }
        if self.chores.len() >= KEPT_MAX {
            self.chores.pop_front();
        }
        self.next += 1;
        self.chores.push_back(Chore {
            number: self.next,
            op,
            request,
            left: replicas,
            told: ReplicaSet::default(),
        });
    }

    /// Tells a connected replica what it was not told yet.
    pub fn send(&mut self, replica: ReplicaId, now: Time, links: &mut Links, out: &mut Effects) {
        for chore in &mut self.chores {
            if chore.left.contains(replica) && !chore.told.contains(replica) {
                chore.told.insert(replica);
                let asker = Asker::Chore(chore.number);
                links.ask(replica, asker, chore.request.clone(), now, out);
            }
        }
    }

    /// A replica answered. Returns the operation to look at again.
    pub fn replied(&mut self, replica: ReplicaId, number: u64, done: bool) -> Vec<OpId> {
        let Some(chore) = self.chores.iter_mut().find(|c| c.number == number) else {
            return Vec::new();
        };
        chore.told.remove(replica);
        if done {
            chore.left.remove(replica);
        }
        let op = chore.op;
        self.chores.retain(|c| !c.left.is_empty());
        vec![op]
    }

    /// A replica is gone for good.
    pub fn forget(&mut self, replica: ReplicaId) {
        for chore in &mut self.chores {
            chore.left.remove(replica);
            chore.told.remove(replica);
        }
        self.chores.retain(|c| !c.left.is_empty());
    }

    /// A replica went down: it is told again when it returns.
    pub fn lost(&mut self, replica: ReplicaId) {
        self.chores.iter_mut().for_each(|c| c.told.remove(replica));
    }

    /// Whether no connected replica still works on the operation's chores.
    pub fn is_done(&self, op: OpId) -> bool {
        self.chores
            .iter()
            .filter(|c| c.op == op)
            .all(|c| c.told.is_empty())
    }
}
