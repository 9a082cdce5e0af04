//! What operators ask of an active.

use super::*;

#[test]
fn an_active_hands_over_to_a_living_standby_only() {
    let mut node = Node::active();
    for (to, force) in [(None, false), (Some("third"), false), (Some("me"), true)] {
        assert_eq!(node.on(failover(to, force)), State::Serving);
    }
    let third = member("third", Role::Standby, MemberState::Warm);
    let nodes_seen = NodesSeen {
        nodes: vec![(third, true)],
        zone: None,
    };
    node.on(Event::NodesSeen(nodes_seen));
    assert_eq!(node.on(failover(None, false)), State::HandingOver);
    assert_eq!(node.machine.successor(), Some(&name("third")));
    assert_eq!(node.on(Event::Cleared), State::Looking);
}

/// A planned switchover to a node that could not take over was an outage for nothing.
// hazard: NODE-16
#[test]
fn an_active_hands_over_by_name_to_who_replays_unless_forced() {
    use MemberState::{CatchingUp, Failing, Starting, Warm};
    for (state, force, then) in [
        (Warm, false, State::HandingOver),
        (CatchingUp, false, State::HandingOver),
        (Starting, false, State::Serving),
        (Failing, false, State::Serving),
        (Failing, true, State::HandingOver),
    ] {
        let mut node = Node::active();
        node.on(Event::NodesSeen(NodesSeen {
            nodes: vec![(member("third", Role::Standby, state), true)],
            zone: None,
        }));
        assert_eq!(node.on(failover(Some("third"), force)), then, "{state:?}");
    }
}

// A switchover that was asked of an active without zones was once a failover: its PostgreSQL was killed.
// hazard: NODE-17
#[test]
fn an_active_without_zones_hands_over_by_force_only() {
    let mut node = Node::active();
    node.on(Event::NodesSeen(NodesSeen {
        nodes: vec![(member("third", Role::Standby, MemberState::Warm), true)],
        zone: None,
    }));
    node.on(Event::StoreLost);
    let refused = node.effects(failover(Some("third"), false));
    assert!(
        matches!(&refused[..], [Effect::Reply(Err(why))] if why.contains("too few zones")),
        "{refused:?}"
    );
    assert_eq!(node.on(failover(Some("third"), true)), State::HandingOver);
}

#[test]
fn an_active_that_restarts_says_so_until_it_serves() {
    let mut node = Node::active();
    assert_eq!(node.on(Event::Asked(Ask::Restart)), State::Restarting);
    assert_eq!(node.machine.role(), Role::Active);
    assert_eq!(node.machine.state().of_member(), MemberState::Restarting);
    assert_eq!(node.on(failover(None, true)), State::Restarting, "later");
    assert_eq!(node.on(Event::StoreLost), State::Restarting);
    assert_eq!(node.on(Event::Restarted), State::Serving);

    node.on(Event::StoreLost);
    let refused = node.effects(Event::Asked(Ask::Restart));
    assert!(matches!(&refused[..], [Effect::Reply(Err(_))]));
    node.on(Event::StoreBack);

    node.on(Event::Asked(Ask::Restart));
    let died = Event::PostgresExited {
        redo_failed: false,
        report: "killed".to_owned(),
    };
    assert_eq!(node.on(died), State::Discarding);
    assert_eq!(
        Node::standby(Tags::default()).on(Event::Asked(Ask::Restart)),
        State::Warm
    );
}
