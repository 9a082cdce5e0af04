//! Stories of one node.

use std::time::Duration;

use coordination::detector::{Beat, Evidence, Verdict};
use coordination::records::{ActiveState, Cause};
use dax::ids::{Epoch, NodeName};

use super::{Ask, Effect, Event, Failure, LastBeat, Limits, Machine, Seen, State};

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn north() -> Machine {
    Machine::new(name("north"), false, Limits::default())
}

fn seen(node: &str, state: ActiveState, verdict: Verdict) -> Event {
    seen_behind(node, state, verdict, 0)
}

fn seen_behind(node: &str, state: ActiveState, verdict: Verdict, better: u8) -> Event {
    let beat = Beat {
        epoch: Epoch(4),
        counter: 7,
    };
    Event::Seen(Seen {
        beat: Some(LastBeat {
            node: name(node),
            beat,
            state,
        }),
        verdict,
        better,
    })
}

fn suspect() -> Verdict {
    Verdict::Suspect {
        since: at(0),
        evidence: Evidence::AgentGone,
    }
}

fn serving() -> Machine {
    let mut m = north();
    let nobody = Seen {
        beat: None,
        verdict: Verdict::Alive,
        better: 0,
    };
    m.on(Event::Seen(nobody), at(0));
    m.on(Event::EpochOwned(Epoch(1)), at(1));
    m.on(Event::Opened, at(2));
    assert_eq!(m.state(), State::Starting);
    m.on(Event::Ready, at(3));
    assert_eq!(m.state(), State::Serving);
    m
}

#[test]
fn the_first_node_of_a_new_volume_serves() {
    let m = serving();
    assert_eq!(m.decision().unwrap().cause, Cause::Started);
    assert_eq!(m.epoch(), Some(Epoch(1)));
}

#[test]
fn a_living_active_is_left_alone_and_a_dead_one_replaced() {
    let mut m = north();
    m.on(seen("south", ActiveState::Serving, Verdict::Alive), at(0));
    assert_eq!(m.state(), State::Waiting);
    m.on(seen("south", ActiveState::Serving, suspect()), at(200));
    assert_eq!(m.state(), State::Fencing);
    assert!(matches!(
        m.decision().unwrap().cause,
        Cause::Failover { .. }
    ));
}

#[test]
fn better_nodes_get_a_head_start() {
    let mut m = north();
    m.on(
        seen_behind("south", ActiveState::Serving, suspect(), 2),
        at(1000),
    );
    m.on(
        seen_behind("south", ActiveState::Serving, suspect(), 2),
        at(1500),
    );
    assert_eq!(m.state(), State::Waiting);
    m.on(
        seen_behind("south", ActiveState::Serving, suspect(), 2),
        at(1600),
    );
    assert_eq!(m.state(), State::Fencing);
}

#[test]
fn in_a_pause_nobody_takes_over_but_by_order() {
    let mut m = north();
    m.on(Event::Paused(true), at(0));
    let effects = m.on(seen("south", ActiveState::Serving, suspect()), at(100));
    assert!(matches!(&effects[..], [Effect::Alarm(why)] if why.contains("paused")));
    let again = m.on(seen("south", ActiveState::Serving, suspect()), at(300));
    assert!(again.is_empty(), "it is said once");
    let order = Ask::Failover {
        to: None,
        force: false,
    };
    let effects = m.on(Event::Asked(order), at(400));
    assert_eq!(effects, [Effect::Reply(Ok(()))]);
    assert_eq!(m.state(), State::Fencing);
}

#[test]
fn an_agent_that_was_restarted_goes_on_where_it_was() {
    let mut m = north();
    m.on(Event::Paused(true), at(0));
    m.on(seen("north", ActiveState::Serving, Verdict::Alive), at(0));
    assert_eq!(m.state(), State::Fencing);
}

// hazard: ENGINE-8
#[test]
fn a_server_that_ends_is_started_in_place_but_not_for_ever() {
    let mut m = serving();
    for ending in 0..3 {
        m.on(Event::ServerEnded("signal 11".into()), at(1000 + ending));
        assert_eq!(m.state(), State::Starting);
        assert_eq!(m.epoch(), Some(Epoch(1)), "under the same epoch");
        m.on(Event::Ready, at(1000 + ending));
    }
    m.on(Event::ServerEnded("signal 11".into()), at(2000));
    assert_eq!(m.state(), State::Clearing);
    m.on(Event::Cleared, at(2100));
    m.on(Event::Tick, at(3000));
    m.on(
        seen("north", ActiveState::PostgresDead, Verdict::Alive),
        at(3000),
    );
    assert_eq!(m.state(), State::Waiting, "another node is let go first");
    m.on(
        seen("north", ActiveState::PostgresDead, Verdict::Alive),
        at(12_500),
    );
    assert_eq!(m.state(), State::Fencing, "there is none");
}

#[test]
fn a_higher_epoch_ends_it_at_once() {
    let mut m = serving();
    m.on(Event::Superseded, at(100));
    assert_eq!(m.state(), State::Clearing);
    m.on(Event::Cleared, at(200));
    assert_eq!(m.state(), State::Waiting);
    assert_eq!(m.epoch(), None);
}

#[test]
fn a_handover_names_its_successor_and_stands_back() {
    let mut m = serving();
    let order = Ask::Failover {
        to: Some(name("south")),
        force: false,
    };
    m.on(Event::Asked(order), at(1000));
    assert_eq!(m.state(), State::HandingOver);
    assert_eq!(m.successor(), Some(&name("south")));
    m.on(Event::Cleared, at(1500));
    let released = ActiveState::Released {
        to: Some(name("south")),
    };
    m.on(seen("north", released.clone(), Verdict::Alive), at(2000));
    assert_eq!(m.state(), State::Waiting, "the successor has its time");
    m.on(seen("north", released.clone(), Verdict::Alive), at(12_000));
    assert_eq!(m.state(), State::Fencing, "it never came");
    // And whom it names goes at once, also in a pause.
    let mut south = Machine::new(name("south"), true, Limits::default());
    south.on(Event::Paused(true), at(0));
    south.on(seen_behind("north", released, Verdict::Alive, 3), at(10));
    assert_eq!(south.state(), State::Fencing);
    assert_eq!(south.decision().unwrap().cause, Cause::Switchover);
}

#[test]
fn faults_of_the_host_stop_a_node_that_never_served() {
    let mut m = north();
    let failure = Failure {
        reason: "no such program".into(),
        of_this_machine: true,
        superseded: false,
    };
    m.on(seen("south", ActiveState::Serving, suspect()), at(0));
    m.on(Event::Failed(failure.clone()), at(1));
    assert_eq!(m.state(), State::Stopping);
    let mut m = serving();
    m.on(Event::Failed(failure), at(1));
    assert_eq!(
        m.state(),
        State::Clearing,
        "it worked before, and may again"
    );
}

#[test]
fn a_loser_of_the_race_says_nothing_and_looks_again() {
    let mut m = north();
    m.on(seen("south", ActiveState::Serving, suspect()), at(0));
    let failure = Failure {
        superseded: true,
        ..Failure::default()
    };
    assert!(m.on(Event::Failed(failure), at(10)).is_empty());
    m.on(Event::Cleared, at(20));
    m.on(Event::Tick, at(500));
    assert_eq!(m.state(), State::Waiting);
}

#[test]
fn a_node_that_stops_clears_first() {
    let mut m = serving();
    m.on(Event::Stop, at(10));
    assert_eq!(m.state(), State::Stopping);
    m.on(Event::Cleared, at(20));
    assert_eq!(m.state(), State::Stopped);
    let order = Ask::Restart;
    let effects = m.on(Event::Asked(order), at(30));
    assert!(matches!(&effects[..], [Effect::Reply(Err(_))]));
}
