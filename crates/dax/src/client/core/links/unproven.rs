//! Stores met in a new run, until it is certain that nobody knows of an acknowledgement that they have lost.
//!
//! ```text
//!   a new run ──▶ unproven ──a quorum, it and those who answered what was asked since──▶ proven
//! ```
//!
//! Invariant: what an unproven store acknowledges does not count. Had it gone back to an earlier copy of its directory,
//! it could have forgotten a higher epoch that it had accepted; with an acknowledgement that another store gave before
//! that epoch it would make a write of a deposed owner durable, which no reader of the higher epoch has seen. Whoever
//! knows better says so before it answers anything, and some store of every quorum does.

use crate::ids::ReplicaId;
use crate::writer::ReplicaSet;

use super::Links;

/// Since when, and who has answered.
#[derive(Debug)]
pub(super) struct Unproven {
    /// Questions with this id and later ones are asked since.
    since: u64,
    answered: ReplicaSet,
}

impl Links {
    /// The replica is met in a new run.
    pub(super) fn doubt(&mut self, replica: ReplicaId) {
        let since = self.next_id;
        self.link(replica).unproven = Some(Unproven {
            since,
            answered: ReplicaSet::default(),
        });
    }

    /// A replica has answered the question with this id.
    pub(super) fn note_answer(&mut self, replica: ReplicaId, id: u64) {
        let unproven = self.links.iter_mut().filter_map(|l| l.unproven.as_mut());
        for doubt in unproven.filter(|doubt| doubt.since <= id) {
            doubt.answered.insert(replica);
        }
    }

    /// Takes those for proven who, with those who count and have answered since, are enough; says whether there is one.
    pub fn prove(&mut self, is_enough: impl Fn(ReplicaSet) -> bool) -> bool {
        let voters = self.voters();
        let mut is_news = false;
        for (replica, link) in (0u8..).map(ReplicaId).zip(&mut self.links) {
            let Some(doubt) = &link.unproven else {
                continue;
            };
            let mut those = doubt.answered.intersection(voters);
            those.insert(replica);
            if is_enough(those) {
                link.unproven = None;
                is_news = true;
            }
        }
        is_news
    }
}
