//! Who goes first when several standbys see the active die.
//!
//! All notice within moments of each other, and any of them may take over: the first to own the epoch
//! wins. So the better ones, as the records of all tell, are given a head start. Every node comes to
//! the same order from the same records, although none reads them at the moment another does: a
//! difference that a moment makes does not count. Invariant: nobody waits for a node whose record does
//! not move.

use std::cmp::Reverse;
use std::collections::HashMap;

use coordination::config::FailoverZone;
use coordination::records::{Member, MemberState, Role};
use dax::ids::NodeName;

/// Log that a record's age explains; two standbys that differ by less may each see the other ahead.
const ALIKE_BYTES: u64 = 16 << 20;

/// Rank of this standby among those that could take over.
#[derive(Debug, Clone)]
pub struct Ranking {
    me: NodeName,
    active: NodeName,
    /// What each record said at the last look.
    seen: HashMap<NodeName, (String, u64)>,
}

impl Ranking {
    /// Of a standby `me` that follows `active`.
    pub fn new(me: NodeName, active: NodeName) -> Ranking {
        Ranking {
            me,
            active,
            seen: HashMap::new(),
        }
    }

    /// Looks at the records; how many living standbys should go before this one.
    pub fn look(&mut self, members: Vec<Member>) -> u8 {
        let active = members.iter().find(|m| m.name == self.active);
        let zone = active.and_then(|active| active.tags.zone);
        // The own record as well, for others compare with that one, be it old: who cannot write its
        // record just now does not go first for that.
        let me = members.iter().find(|m| m.name == self.me).cloned();
        let alive: Vec<Member> = members
            .into_iter()
            .filter(|member| {
                let says = (member.incarnation.0.clone(), member.updated);
                let before = self.seen.insert(member.name.clone(), says.clone());
                before.is_some_and(|before| before != says)
            })
            .collect();
        me.map_or(0, |me| better_candidates(&me, zone, &alive))
    }
}

/// How many nodes should be let go before `me`, when the active in `zone` is gone. `others` are the
/// records of nodes that are alive; that of `me` among them is ignored.
pub fn better_candidates(me: &Member, zone: Option<u8>, others: &[Member]) -> u8 {
    let better = others
        .iter()
        .filter(|o| o.name != me.name && may_take_over(o) && rank(o, zone) < rank(me, zone))
        .count();
    u8::try_from(better).unwrap_or(u8::MAX)
}

/// True if a node would take over by itself.
pub fn may_take_over(member: &Member) -> bool {
    let ready = matches!(member.state, MemberState::Warm | MemberState::CatchingUp);
    member.role == Role::Standby && ready && !member.tags.nofailover && member.misfit.is_none()
}

/// Sorts candidates, best first: warm ones, then by priority, then those that like to follow an active
/// in that zone, then how far they are ([`ALIKE_BYTES`]), then by name.
pub(super) fn rank(member: &Member, zone: Option<u8>) -> impl Ord + '_ {
    (
        Reverse(member.state == MemberState::Warm),
        Reverse(member.tags.priority),
        Reverse(likes(member, zone)),
        Reverse(member.applied.0 / ALIKE_BYTES),
        &member.name,
    )
}

fn likes(member: &Member, zone: Option<u8>) -> bool {
    let (Some(wish), Some(own), Some(zone)) = (member.tags.failover_zone, member.tags.zone, zone)
    else {
        return false;
    };
    match wish {
        FailoverZone::Same => own == zone,
        FailoverZone::Other => own != zone,
    }
}

/// The spare that should become a standby of an active in `active_zone`: one in another zone where
/// there is one (CAC-DB 5.2), then by priority, then by name. `alive` are nodes that are alive.
pub fn choose_spare<'m>(
    active_zone: Option<u8>,
    alive: impl IntoIterator<Item = &'m Member>,
) -> Option<&'m NodeName> {
    let same_zone = |m: &Member| active_zone.is_some() && m.tags.zone == active_zone;
    alive
        .into_iter()
        .filter(|m| m.role == Role::Spare && m.state != MemberState::Stopped)
        .min_by_key(|m| (same_zone(m), Reverse(m.tags.priority), &m.name))
        .map(|m| &m.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::member;
    use volume::lsn::Lsn;

    fn standby(name: &str) -> Member {
        member(name, Role::Standby, MemberState::Warm)
    }

    fn at(name: &str, applied: u64, updated: u64) -> Member {
        let mut member = standby(name);
        (member.applied, member.updated) = (Lsn(applied * ALIKE_BYTES), updated);
        member
    }

    #[test]
    fn every_node_agrees_on_who_goes_first() {
        let mut all = vec![standby("a"), standby("b"), standby("c"), standby("d")];
        all[1].tags.priority = 5;
        all[2].applied = Lsn(2 * ALIKE_BYTES);
        all[3].tags.nofailover = true;
        let order: Vec<u8> = all
            .iter()
            .map(|m| better_candidates(m, None, &all))
            .collect();
        assert_eq!(order[..3], [2, 0, 1]);
    }

    #[test]
    fn warm_goes_before_priority() {
        let mut all = vec![standby("a"), standby("b")];
        all[0].state = MemberState::CatchingUp;
        all[0].tags.priority = 9;
        assert_eq!(better_candidates(&all[0], None, &all), 1);
        all[1].state = MemberState::Failing;
        assert_eq!(better_candidates(&all[0], None, &all), 0);
    }

    #[test]
    fn among_equals_the_zone_decides_before_how_far_they_are() {
        let mut all = vec![standby("a"), standby("b"), standby("c")];
        for (zone, member) in (0..).zip(&mut all) {
            member.tags.zone = Some(zone);
        }
        all[0].applied = Lsn(2 * ALIKE_BYTES);
        all[1].tags.failover_zone = Some(FailoverZone::Other);
        all[2].tags.failover_zone = Some(FailoverZone::Same);
        let order = |zone| -> Vec<u8> {
            let better = |m| better_candidates(m, zone, &all);
            all.iter().map(better).collect()
        };
        assert_eq!(
            order(Some(2)),
            [2, 0, 1],
            "both like to, and b has the first name"
        );
        assert_eq!(order(Some(0)), [1, 0, 2], "b likes to follow another zone");
        assert_eq!(order(None), [0, 1, 2], "nothing is known: who is farthest");
    }

    #[test]
    fn dead_candidates_are_not_waited_for() {
        let name = |name| NodeName::new(name).unwrap();
        let mut ranking = Ranking::new(name("b"), name("old"));
        let mut look =
            |[a, b, c]: [u64; 3]| ranking.look(vec![at("a", 2, a), at("b", 1, b), at("c", 3, c)]);
        assert_eq!(look([1, 1, 1]), 0, "nobody moved yet");
        assert_eq!(look([2, 2, 2]), 2);
        assert_eq!(look([2, 3, 3]), 1, "a died");
        assert_eq!(look([2, 4, 3]), 0, "c died, too");
        assert_eq!(
            look([3, 4, 3]),
            1,
            "a is back; that the own record rests is no reason to go first"
        );
    }

    /// Two standbys, each of which saw the other's record when that was newer than its own, both went
    /// first, and the one that lost the race had to attach afresh.
    #[test]
    fn a_record_s_age_puts_nobody_ahead() {
        let mut all = vec![standby("a"), standby("b")];
        all[0].applied = Lsn(5 * ALIKE_BYTES + 7);
        for newer in [Lsn(5 * ALIKE_BYTES), Lsn(5 * ALIKE_BYTES + 1_000_000)] {
            all[1].applied = newer;
            assert_eq!(better_candidates(&all[0], None, &all), 0);
            assert_eq!(better_candidates(&all[1], None, &all), 1);
        }
    }

    #[test]
    fn a_spare_in_another_zone_is_preferred() {
        let mut all = vec![
            member("a", Role::Spare, MemberState::Starting),
            member("b", Role::Spare, MemberState::Starting),
            standby("c"),
        ];
        (all[0].tags.zone, all[1].tags.zone) = (Some(0), Some(1));
        let choose = |zone, from: &[Member]| choose_spare(zone, from).map(ToString::to_string);
        assert_eq!(choose(Some(0), &all).as_deref(), Some("b"));
        assert_eq!(choose(Some(1), &all).as_deref(), Some("a"));
        assert_eq!(choose(None, &all).as_deref(), Some("a"));
        assert_eq!(choose(None, &all[2..]), None);
    }
}
