//! Re-protection (CAC-DB 5.2): how many standbys the active has, whether they could take over at once,
//! and which spare is enlisted when there are too few.
//!
//! Invariant: no spare is enlisted for a node that is alive, because that node becomes a standby by itself, unless it has
//! failed to for minutes. An enlisted spare stays a standby: sending it back would only be one more change.

use std::collections::HashMap;
use std::time::Duration;

use coordination::records::{Member, MemberState, Role};
use dax::ids::NodeName;
use serde::{Deserialize, Serialize};

use super::Limits;
use super::ranking::{choose_spare, may_take_over, rank};

/// The other nodes, as the active sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodesSeen {
    /// Every node with a record, and whether it is alive: subscribed, or its record moves.
    pub nodes: Vec<(Member, bool)>,
    /// The zone that the active is in.
    pub zone: Option<u8>,
}

/// How well the active is protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// No standby could take over at once.
    #[default]
    Unprotected,
    /// A standby could take over at once, but fewer of them than wanted.
    Degraded,
    /// As many standbys as wanted could take over at once.
    Protected,
}

/// What the active knows of its protection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protection {
    nodes_seen: NodesSeen,
    /// How many standbys there should be.
    pub wanted: usize,
    /// How many nodes are standbys, or will be by themselves.
    pub standbys: usize,
    /// How many of them could take over at once.
    pub warm: usize,
    /// Level of protection that these numbers amount to.
    pub level: Level,
    /// Time since which the level has been the same; `None` before the first count.
    pub since: Option<Duration>,
    /// How long the last loss of protection took to be made good.
    pub restored_after: Option<Duration>,
    /// Time since which the active has been less than protected.
    lost_at: Option<Duration>,
    enlisted: Option<(NodeName, Duration)>,
    /// Living nodes that are to be standbys, with the time since which they have not been warm.
    not_warm: HashMap<NodeName, Duration>,
}

impl Protection {
    /// Counts the standbys among `nodes_seen`. Returns the spare to enlist, if one should be.
    pub(super) fn count(
        &mut self,
        me: &NodeName,
        nodes_seen: NodesSeen,
        wanted: Option<usize>,
        limits: &Limits,
        now: Duration,
    ) -> Option<NodeName> {
        self.note_not_warm(me, &nodes_seen, now);
        let others = || nodes_seen.nodes.iter().filter(|(m, _)| m.name != *me);
        let alive = || others().filter(|(_, alive)| *alive).map(|(m, _)| m);
        // A living node that is no spare is a standby, or becomes one within the time limit.
        let stays = |m: &&Member| {
            let since = self.not_warm.get(&m.name);
            let tries = since.is_some_and(|at| now.saturating_sub(*at) < limits.warm_within);
            is_to_stand(m) && (replays(m) || tries)
        };
        self.standbys = alive().filter(stays).count();
        // A standby whose libraries sort text differently does not take over.
        let is_warm = |m: &Member| m.role == Role::Standby && m.state == MemberState::Warm;
        let warm = |m: &&Member| is_warm(m) && m.misfit.is_none();
        self.warm = alive().filter(warm).count();
        self.wanted = wanted.unwrap_or_else(|| {
            let meant = others().filter(|(m, _)| !m.tags.spare).count();
            meant.max(usize::from(others().next().is_some()))
        });
        self.judge(now);
        let pending = self.enlisted.take_if(|(name, at)| {
            let came = alive().any(|m| m.name == *name && m.role != Role::Spare);
            came || now.saturating_sub(*at) >= limits.enlisted_within
        });
        drop(pending);
        let spare = match self.enlisted {
            None if self.standbys < self.wanted => choose_spare(nodes_seen.zone, alive()).cloned(),
            _ => None,
        };
        self.nodes_seen = nodes_seen;
        self.enlisted = spare
            .clone()
            .map(|name| (name, now))
            .or(self.enlisted.take());
        spare
    }

    /// A node that fails again and again is a standby for moments, so only being warm resets its time.
    fn note_not_warm(&mut self, me: &NodeName, nodes_seen: &NodesSeen, now: Duration) {
        let before = std::mem::take(&mut self.not_warm);
        let alive = nodes_seen.nodes.iter().filter(|(_, alive)| *alive);
        let waiting = alive
            .map(|(member, _)| member)
            .filter(|m| m.name != *me && is_to_stand(m) && m.state != MemberState::Warm);
        self.not_warm = waiting
            .map(|m| (m.name.clone(), before.get(&m.name).copied().unwrap_or(now)))
            .collect();
    }

    fn judge(&mut self, now: Duration) {
        let level = match self.warm {
            0 => Level::Unprotected,
            warm if warm < self.wanted => Level::Degraded,
            _ => Level::Protected,
        };
        if level != Level::Protected {
            self.lost_at.get_or_insert(now);
        } else if let Some(lost) = self.lost_at.take() {
            self.restored_after = Some(now.saturating_sub(lost));
        }
        if self.since.is_none() || self.level != level {
            (self.level, self.since) = (level, Some(now));
        }
    }

    /// True if that node was a living standby, with a PostgreSQL that replays, at the last count.
    pub(super) fn could_follow(&self, name: &NodeName) -> bool {
        self.standbys_alive().any(|member| member.name == *name)
    }

    /// The standby to hand over to.
    pub(super) fn best_standby(&self) -> Option<NodeName> {
        let zone = self.nodes_seen.zone;
        self.standbys_alive()
            .filter(|member| may_take_over(member))
            .min_by(|a, b| rank(a, zone).cmp(&rank(b, zone)))
            .map(|member| member.name.clone())
    }

    fn standbys_alive(&self) -> impl Iterator<Item = &Member> {
        self.nodes_seen
            .nodes
            .iter()
            .filter(|(m, alive)| *alive && m.role == Role::Standby && replays(m))
            .map(|(member, _)| member)
    }
}

/// True if a living node is a standby, or is starting as one.
fn is_to_stand(member: &Member) -> bool {
    member.role != Role::Spare && member.state != MemberState::Stopped
}

fn replays(member: &Member) -> bool {
    matches!(member.state, MemberState::Warm | MemberState::CatchingUp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::member;

    /// How long a node may try to become warm.
    const TRIES: u64 = 120;

    fn name(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn spare(name: &str) -> Member {
        let mut member = member(name, Role::Spare, MemberState::Starting);
        member.tags.spare = true;
        member
    }

    fn standby(name: &str, state: MemberState) -> Member {
        member(name, Role::Standby, state)
    }

    fn count(
        protection: &mut Protection,
        nodes: &[(Member, bool)],
        wanted: Option<usize>,
        now: u64,
    ) -> Option<String> {
        let nodes_seen = NodesSeen {
            nodes: nodes.to_vec(),
            zone: Some(0),
        };
        let limits = Limits::new(at(1));
        let enlisted = protection.count(&name("a"), nodes_seen, wanted, &limits, at(now));
        enlisted.map(|name| name.to_string())
    }

    #[test]
    fn a_dead_standby_is_replaced_by_a_spare_once() {
        let mut p = Protection::default();
        let warm = |name| standby(name, MemberState::Warm);
        assert_eq!(
            count(&mut p, &[(warm("b"), true), (spare("s"), true)], None, 0),
            None
        );
        assert_eq!(
            (p.level, p.wanted, p.restored_after),
            (Level::Protected, 1, None)
        );
        let dead = [(warm("b"), false), (spare("s"), true), (spare("t"), true)];
        assert_eq!(count(&mut p, &dead, None, 5).as_deref(), Some("s"));
        assert_eq!((p.level, p.since), (Level::Unprotected, Some(at(5))));
        assert_eq!(count(&mut p, &dead, None, 6), None, "it was asked");
        let mut came = standby("s", MemberState::CatchingUp);
        came.tags.spare = true;
        let came = |state| {
            let mut came = came.clone();
            came.state = state;
            [(warm("b"), false), (came, true), (spare("t"), true)]
        };
        assert_eq!(count(&mut p, &came(MemberState::CatchingUp), None, 7), None);
        assert_eq!(count(&mut p, &came(MemberState::Warm), None, 8), None);
        assert_eq!((p.level, p.restored_after), (Level::Protected, Some(at(3))));
    }

    #[test]
    fn a_spare_that_does_not_come_is_asked_again() {
        let mut p = Protection::default();
        let nodes = [(standby("b", MemberState::Warm), false), (spare("s"), true)];
        assert!(count(&mut p, &nodes, None, 0).is_some());
        assert!(count(&mut p, &nodes, None, 9).is_none());
        assert!(count(&mut p, &nodes, None, 10).is_some());
    }

    #[test]
    fn spares_are_not_enlisted_for_a_node_that_comes_back() {
        let mut p = Protection::default();
        // It was the active, and looks around now.
        let back = [
            (standby("b", MemberState::Starting), true),
            (spare("s"), true),
        ];
        assert_eq!(count(&mut p, &back, None, 0), None);
        assert_eq!(p.level, Level::Unprotected);
    }

    /// A standby whose disk was read-only started over every few seconds for weeks, and the spare beside it did nothing.
    // hazard: NODE-19
    #[test]
    fn a_spare_is_enlisted_for_a_node_that_fails_again_and_again() {
        use MemberState::{CatchingUp, Failing, Starting, Warm};
        let mut p = Protection::default();
        let seen = |state| [(standby("b", state), true), (spare("s"), true)];
        count(&mut p, &seen(Warm), None, 0);
        for (second, state) in (1..TRIES).zip([Failing, Starting, CatchingUp].iter().cycle()) {
            assert_eq!(count(&mut p, &seen(*state), None, second), None);
        }
        assert_eq!(
            count(&mut p, &seen(CatchingUp), None, TRIES + 1),
            None,
            "it replays"
        );
        let enlisted = count(&mut p, &seen(Failing), None, TRIES + 1);
        assert_eq!((enlisted.as_deref(), p.standbys), (Some("s"), 0));
        assert_eq!(
            count(&mut p, &seen(Starting), None, TRIES + 2),
            None,
            "once"
        );
    }

    #[test]
    fn a_node_that_was_warm_may_try_for_as_long_again() {
        let mut p = Protection::default();
        let seen = |state| [(standby("b", state), true), (spare("s"), true)];
        count(&mut p, &seen(MemberState::Failing), None, 0);
        count(&mut p, &seen(MemberState::Warm), None, TRIES - 1);
        assert_eq!(
            count(&mut p, &seen(MemberState::Failing), None, TRIES),
            None
        );
        let later = 2 * TRIES - 1;
        assert_eq!(
            count(&mut p, &seen(MemberState::Failing), None, later),
            None
        );
        assert!(count(&mut p, &seen(MemberState::Failing), None, later + 1).is_some());
    }

    #[test]
    fn the_wanted_number_decides_if_there_is_one() {
        let mut p = Protection::default();
        let nodes = [
            (standby("b", MemberState::Warm), true),
            (spare("s"), true),
            (spare("t"), false),
        ];
        assert_eq!(count(&mut p, &nodes, Some(2), 0).as_deref(), Some("s"));
        assert_eq!(p.level, Level::Degraded);
        assert_eq!(count(&mut p, &nodes, Some(1), 20), None);
        assert_eq!(p.level, Level::Protected);
    }

    #[test]
    fn a_node_alone_is_not_protected_and_wants_nobody() {
        let mut p = Protection::default();
        assert_eq!(count(&mut p, &[], None, 0), None);
        assert_eq!((p.level, p.wanted), (Level::Unprotected, 0));
    }

    #[test]
    fn a_handover_goes_to_the_best_that_may() {
        let mut p = Protection::default();
        let mut tagged = standby("b", MemberState::Warm);
        tagged.tags.nofailover = true;
        let nodes = [
            (tagged, true),
            (standby("c", MemberState::CatchingUp), true),
            (standby("d", MemberState::Warm), true),
            (standby("e", MemberState::Warm), false),
        ];
        count(&mut p, &nodes, None, 0);
        assert_eq!(p.best_standby(), Some(name("d")));
        assert!(p.could_follow(&name("b")) && !p.could_follow(&name("e")));
    }
}
