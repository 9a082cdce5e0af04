//! What zones are told for their own good (retention, removal): best effort, in order per zone,
//! again when a zone that was away returns.
//!
//! Invariant: a chore is complete for its caller once no connected zone still works on it; it stays
//! here until every zone has done it, or until too many wait (space is then not given back in a zone
//! that was away very long).

use std::collections::VecDeque;

use crate::ids::ZoneId;
use crate::wire::Request;

use super::links::Links;
use super::quorum::ZoneSet;
use super::{Asker, Effects, OpId, Time};

/// More chores than this are not kept for zones that are away.
const KEPT_MAX: usize = 4096;

#[derive(Debug)]
struct Chore {
    number: u64,
    op: OpId,
    request: Request,
    /// Zones that have not done it.
    left: ZoneSet,
    /// Zones of those that were told on the present connection.
    told: ZoneSet,
}

#[derive(Debug, Default)]
pub(super) struct Chores {
    chores: VecDeque<Chore>,
    next: u64,
}

impl Chores {
    pub fn add(&mut self, op: OpId, request: Request, zones: ZoneSet) {
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
            left: zones,
            told: ZoneSet::default(),
        });
    }

    /// Tells a connected zone what it was not told yet.
    pub fn send(&mut self, zone: ZoneId, now: Time, links: &mut Links, out: &mut Effects) {
        for chore in &mut self.chores {
            if chore.left.contains(zone) && !chore.told.contains(zone) {
                chore.told.insert(zone);
                let asker = Asker::Chore(chore.number);
                links.ask(zone, asker, chore.request.clone(), now, out);
            }
        }
    }

    /// A zone answered. Returns the operation to look at again.
    pub fn replied(&mut self, zone: ZoneId, number: u64, done: bool) -> Vec<OpId> {
        let Some(chore) = self.chores.iter_mut().find(|c| c.number == number) else {
            return Vec::new();
        };
        chore.told.remove(zone);
        if done {
            chore.left.remove(zone);
        }
        let op = chore.op;
        self.chores.retain(|c| !c.left.is_empty());
        vec![op]
    }

    /// A zone went down: it is told again when it returns.
    pub fn lost(&mut self, zone: ZoneId) {
        self.chores.iter_mut().for_each(|c| c.told.remove(zone));
    }

    /// Whether no connected zone still works on the operation's chores.
    pub fn is_done(&self, op: OpId) -> bool {
        self.chores
            .iter()
            .filter(|c| c.op == op)
            .all(|c| c.told.is_empty())
    }
}
