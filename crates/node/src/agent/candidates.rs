//! Who goes first when several standbys see the active die.
//!
//! All notice within moments of each other, and any of them may take over: the first to own the epoch
//! wins. So the better ones, as the records of all tell ([`better_candidates`]), are given a head start.
//! Invariant: nobody waits for a node whose record does not move, nor longer than [`HEAD_START_MAX`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::NodeName;
use dax::storage::Storage;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::Result;
use crate::records::{Member, Record, better_candidates};

/// How long each better one is given to own the epoch and say so.
const HEAD_START: Duration = Duration::from_millis(300);
const HEAD_START_MAX: Duration = Duration::from_secs(1);
/// How often the records are looked at: a living standby writes its own three times meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1500);

/// See the module.
pub(super) struct Candidates {
    ranking: Ranking,
    look_at: Instant,
    look: Option<JoinHandle<Result<Vec<Member>>>>,
}

impl Candidates {
    pub(super) fn new(me: NodeName) -> Candidates {
        Candidates {
            ranking: Ranking {
                me,
                seen: HashMap::new(),
                better: 0,
            },
            look_at: Instant::now(),
            look: None,
        }
    }

    /// How much later than the best one this node should take over.
    pub(super) fn head_start(&self) -> Duration {
        (HEAD_START * u32::from(self.ranking.better)).min(HEAD_START_MAX)
    }

    /// Keeps looking at the records; never returns. Can be dropped at any time and called again.
    pub(super) async fn watch(&mut self, storage: &Arc<dyn Storage>) -> Infallible {
        loop {
            if self.look.is_none() {
                tokio::time::sleep_until(self.look_at).await;
                self.look_at = Instant::now() + LOOK_EVERY;
                let storage = Arc::clone(storage);
                self.look = Some(tokio::spawn(async move {
                    Ok(Member::list(storage.as_ref()).await?)
                }));
            }
            let Some(look) = &mut self.look else { continue };
            let found = look.await;
            self.look = None;
            match found.expect("a look neither panics nor is cancelled") {
                Ok(members) => self.ranking.note(members),
                Err(error) => tracing::debug!(%error, "the nodes' records could not be read"),
            }
        }
    }
}

/// What the records tell (pure).
#[derive(Debug)]
struct Ranking {
    me: NodeName,
    /// What each record said at the last look.
    seen: HashMap<NodeName, (String, u64)>,
    /// How many should go first.
    better: u8,
}

impl Ranking {
    fn note(&mut self, members: Vec<Member>) {
        let alive: Vec<Member> = members
            .into_iter()
            .filter(|member| {
                let says = (member.incarnation.0.clone(), member.updated);
                let before = self.seen.insert(member.name.clone(), says.clone());
                before.is_some_and(|before| before != says)
            })
            .collect();
        // The own record as well: others compare with that one.
        let me = alive.iter().find(|member| member.name == self.me);
        self.better = me.map_or(0, |me| better_candidates(me, &alive));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{MemberState, Role, test_member};

    fn standby(name: &str, applied: u64, updated: u64) -> Member {
        let mut member = test_member(name, Role::Standby, MemberState::Warm);
        (member.applied, member.updated) = (volume::lsn::Lsn(applied), updated);
        member
    }

    #[test]
    fn only_the_living_are_waited_for() {
        let mut candidates = Candidates::new(NodeName::new("b").unwrap());
        let mut look = |updated: [u64; 3]| {
            let [a, b, c] = updated;
            candidates.ranking.note(vec![
                standby("a", 20, a),
                standby("b", 10, b),
                standby("c", 30, c),
            ]);
            candidates.head_start()
        };
        assert_eq!(look([1, 1, 1]), Duration::ZERO, "nobody moved yet");
        assert_eq!(look([2, 2, 2]), 2 * HEAD_START);
        assert_eq!(look([2, 3, 3]), HEAD_START, "a died");
        assert_eq!(look([2, 4, 3]), Duration::ZERO, "c died, too");
    }

    #[test]
    fn the_wait_is_bounded() {
        let mut candidates = Candidates::new(NodeName::new("z").unwrap());
        for updated in 1..=2 {
            let names = ["a", "b", "c", "d", "e", "f", "z"];
            let members = names.map(|name| standby(name, 1, updated));
            candidates.ranking.note(members.to_vec());
        }
        assert_eq!(candidates.head_start(), HEAD_START_MAX);
    }
}
