//! What happens to a node, told from beginning to end.

mod orders;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A node, and the time that the story tells.
struct Node {
    machine: Machine,
    now: Duration,
}

impl Node {
    fn new(tags: Tags) -> Node {
        let limits = Limits::new(1500 * MS);
        Node {
            machine: Machine::new(name("me"), tags, limits),
            now: 100 * SECOND,
        }
    }

    fn standby(tags: Tags) -> Node {
        let mut node = Node::new(tags);
        node.look(1, ActiveState::Serving);
        node.look(2, ActiveState::Serving);
        assert_eq!(node.on(Event::Attached), State::CatchingUp);
        assert_eq!(node.on(Event::Level(true)), State::Warm);
        node
    }

    fn active() -> Node {
        let mut node = Node::standby(Tags::default());
        node.on(failover(None, false));
        node.on(Event::EpochOwned(Epoch(4)));
        for phase in [Phase::LogTail, Phase::Replay, Phase::Promote] {
            node.on(Event::PhaseDone(phase));
        }
        assert_eq!(node.machine.state(), State::Serving);
        node
    }

    fn on(&mut self, event: Event) -> State {
        self.effects(event);
        self.machine.state()
    }

    fn effects(&mut self, event: Event) -> Vec<Effect> {
        self.machine.on(event, self.now)
    }

    fn look(&mut self, counter: u64, state: ActiveState) -> State {
        self.on(Event::Seen(registry("other", counter, state)))
    }

    fn pause(&mut self, paused: bool) -> State {
        self.on(Event::Control {
            paused,
            standbys: None,
            fits: true,
        })
    }
}

fn tagged(change: impl FnOnce(&mut Tags)) -> Tags {
    let mut tags = Tags::default();
    change(&mut tags);
    tags
}

#[test]
fn a_node_joins_whoever_beats() {
    let mut node = Node::new(Tags::default());
    assert_eq!(node.look(1, ActiveState::Serving), State::Looking);
    assert_eq!(node.look(2, ActiveState::Serving), State::Attaching);
}

#[test]
fn a_node_serves_only_when_nobody_else_will() {
    let mut node = Node::new(Tags::default());
    let mut seen = registry("other", 1, ActiveState::Serving);
    seen.standby_alive = true;
    assert_eq!(node.on(Event::Seen(seen.clone())), State::Looking);
    node.now += 5 * SECOND;
    assert_eq!(
        node.on(Event::Seen(seen.clone())),
        State::Looking,
        "a standby will"
    );
    node.now += SECOND;
    assert_eq!(node.on(Event::Seen(seen)), State::TakingOver(Phase::Fence));
    let cause = node.machine.decision().map(|d| d.cause.clone());
    assert_eq!(cause, Some(Cause::Started));
}

/// A node copied with its name fenced the healthy active, and was fenced back, every few seconds for ever.
// hazard: NODE-13
#[test]
fn a_node_does_nothing_while_another_agent_serves_under_its_name() {
    let mut node = Node::new(Tags::default());
    let mut alarms = Vec::new();
    for counter in 5..100 {
        let seen = Event::Seen(registry("me", counter, ActiveState::Serving));
        alarms.extend(node.effects(seen));
        assert_eq!(node.machine.state(), State::Looking, "{counter}");
        node.now += 200 * MS;
    }
    assert!(
        matches!(&alarms[..], [Effect::Alarm(why)] if why.contains("under the name me")),
        "{alarms:?}"
    );
    assert_eq!(node.on(failover(None, false)), State::Looking);
    let gone = Event::Seen(registry("me", 99, ActiveState::Serving));
    node.on(gone.clone());
    node.now += 1500 * MS;
    assert_eq!(node.on(gone), State::TakingOver(Phase::Fence));
}

#[test]
fn a_late_beat_of_an_earlier_life_is_waited_out() {
    let mut node = Node::new(Tags::default());
    let seen = |counter| Event::Seen(registry("me", counter, ActiveState::Serving));
    assert_eq!(node.effects(seen(5)), []);
    node.now += SECOND;
    assert_eq!(node.effects(seen(6)), []);
    node.now += SECOND;
    assert_eq!(node.on(seen(6)), State::Looking);
    node.now += SECOND;
    assert_eq!(node.on(seen(6)), State::TakingOver(Phase::Fence));
}

#[test]
fn an_empty_volume_is_started_at_once_but_not_by_who_may_not() {
    let empty = Registry {
        beat: None,
        standby_alive: false,
        standbys: 0,
    };
    let mut node = Node::new(Tags::default());
    let fence = State::TakingOver(Phase::Fence);
    assert_eq!(node.on(Event::Seen(empty.clone())), fence);
    let mut node = Node::new(tagged(|tags| tags.nofailover = true));
    let said = node.effects(Event::Seen(empty.clone()));
    assert!(matches!(&said[..], [Effect::Alarm(_)]), "{said:?}");
    assert_eq!(node.effects(Event::Seen(empty)), [], "said once");
    assert_eq!(node.on(failover(Some("me"), false)), fence);
}

#[test]
fn the_better_standby_goes_first() {
    let mut node = Node::standby(Tags::default());
    node.on(Event::Better(2));
    let since = node.now;
    assert_eq!(node.on(Event::Judged(suspect(since))), State::Warm);
    assert!(node.machine.awaits_turn());
    assert_eq!(node.machine.wake_at(), Some(since + 600 * MS));
    node.now += 599 * MS;
    assert_eq!(node.on(Event::Judged(suspect(since))), State::Warm);
    node.now += MS;
    assert_eq!(node.on(Event::Tick), State::TakingOver(Phase::Fence));
    let decision = node.machine.decision().unwrap();
    assert_eq!(decision.by, Decider::Automatic);
    let evidence = Evidence::AgentGone.to_string();
    assert_eq!(decision.cause, Cause::Failover { evidence });
}

#[test]
fn a_standby_that_cannot_tell_waits() {
    let mut node = Node::standby(Tags::default());
    node.on(Event::Better(1));
    let since = node.now;
    node.on(Event::Judged(suspect(since)));
    node.on(Event::Judged(Verdict::Blind { since }));
    node.now += 10 * SECOND;
    assert_eq!(node.on(Event::Tick), State::Warm);
    assert_eq!(node.machine.wake_at(), None);
}

#[test]
fn pause_and_nofailover_hold_a_standby_until_somebody_orders_it() {
    let mut paused = Node::standby(Tags::default());
    paused.pause(true);
    let nofailover = Node::standby(tagged(|tags| tags.nofailover = true));
    for mut node in [paused, nofailover] {
        let since = node.now;
        node.now += 60 * SECOND;
        assert_eq!(node.on(Event::Judged(suspect(since))), State::Warm);
        assert_eq!(node.on(Event::Vacant { to: None }), State::Warm);
        let mut named = Node {
            machine: node.machine.clone(),
            now: node.now,
        };
        let fence = State::TakingOver(Phase::Fence);
        let to = Some(name("me"));
        assert_eq!(named.on(Event::Vacant { to }), fence);
        let cause = &named.machine.decision().unwrap().cause;
        assert_eq!(*cause, Cause::Switchover);
        assert_eq!(node.on(failover(None, false)), fence);
        let decision = node.machine.decision().unwrap();
        assert_eq!(
            (&decision.cause, decision.by),
            (&Cause::Forced, Decider::Operator)
        );
    }
}

#[test]
fn the_end_of_a_pause_lets_it_happen() {
    let mut node = Node::standby(Tags::default());
    node.pause(true);
    let since = node.now;
    assert_eq!(node.on(Event::Judged(suspect(since))), State::Warm);
    node.pause(false);
    assert_eq!(node.on(Event::Tick), State::TakingOver(Phase::Fence));
    assert_eq!(
        node.pause(true),
        State::CatchingUp,
        "nothing was changed yet"
    );
    node.on(failover(None, false));
    assert_eq!(
        node.pause(true),
        State::TakingOver(Phase::Fence),
        "an order stands"
    );
}

#[test]
fn in_a_pause_who_served_goes_on_unless_its_server_died() {
    for (state, then) in [
        (ActiveState::Serving, State::TakingOver(Phase::Fence)),
        (
            ActiveState::Released { to: None },
            State::TakingOver(Phase::Fence),
        ),
        (ActiveState::PostgresDead, State::Looking),
    ] {
        let mut node = Node::new(Tags::default());
        node.pause(true);
        let seen = Event::Seen(registry("me", 1, state));
        node.on(seen.clone());
        node.now += 10 * SECOND;
        assert_eq!(node.on(seen), then);
    }
}

#[test]
fn in_a_pause_another_node_gets_ready_and_waits() {
    let mut node = Node::new(Tags::default());
    node.pause(true);
    node.look(1, ActiveState::PostgresDead);
    node.now += 10 * SECOND;
    assert_eq!(node.look(1, ActiveState::PostgresDead), State::Attaching);
}

#[test]
fn a_lost_race_leads_to_the_winner() {
    let mut node = Node::standby(Tags::default());
    node.on(Event::Judged(suspect(node.now)));
    let lost = Failure {
        superseded: true,
        ..Failure::default()
    };
    let lost = Event::Failed(lost);
    assert_eq!(node.effects(lost.clone()), [], "nothing is wrong");
    assert_eq!(node.machine.state(), State::CatchingUp, "it goes on");
    assert_eq!(node.machine.decision(), None);

    let mut too_late = Node::standby(Tags::default());
    too_late.on(Event::Judged(suspect(too_late.now)));
    too_late.on(Event::EpochOwned(Epoch(4)));
    assert_eq!(too_late.on(lost.clone()), State::Discarding);
    assert_eq!(too_late.on(Event::Cleared), State::Looking);

    let mut nothing_runs = Node::new(Tags::default());
    nothing_runs.look(1, ActiveState::PostgresDead);
    nothing_runs.now += 10 * SECOND;
    nothing_runs.look(1, ActiveState::PostgresDead);
    assert_eq!(
        nothing_runs.machine.state(),
        State::TakingOver(Phase::Fence)
    );
    assert_eq!(nothing_runs.on(lost), State::Discarding);
}

#[test]
fn a_standby_goes_on_with_the_next_active() {
    let mut node = Node::standby(Tags::default());
    assert_eq!(node.on(Event::Superseded), State::CatchingUp);
    assert_eq!(node.on(Event::Level(true)), State::Warm);
}

#[test]
fn failures_in_a_row_wait_longer_each_and_success_forgets_them() {
    let mut node = Node::standby(Tags::default());
    for wait in [100, 200, 400, 800, 1600, 3200, 5000, 5000].map(|ms| ms * MS) {
        let died = Event::PostgresExited {
            redo_failed: true,
            report: "signal 9".into(),
        };
        assert_eq!(node.on(died), State::Discarding);
        assert_eq!(node.machine.seal_choice(), SealChoice::BeforeLast);
        assert_eq!(node.on(Event::Cleared), State::BackingOff);
        assert_eq!(node.machine.wake_at(), Some(node.now + wait));
        node.now += wait;
        assert_eq!(node.on(Event::Tick), State::Looking);
        node.look(1, ActiveState::Serving);
        node.look(2, ActiveState::Serving);
        node.on(Event::Attached);
    }
    node.on(Event::Level(true));
    node.on(Event::RedoWorked);
    assert_eq!(node.machine.seal_choice(), SealChoice::Last);
    node.on(Event::PostgresExited {
        redo_failed: false,
        report: "signal 9".into(),
    });
    node.on(Event::Cleared);
    assert_eq!(node.machine.wake_at(), Some(node.now + 100 * MS));
}

/// Redo had failed from the last seal, and the attach at the one before it for another reason. When there was a newer one,
/// the one before that was the bad one.
// hazard: SEAL-1
#[test]
fn a_seal_is_passed_over_only_while_redo_fails() {
    let failed = |redo_failed| {
        Event::Failed(Failure {
            reason: "because".into(),
            redo_failed,
            ..Failure::default()
        })
    };
    let mut node = Node::standby(Tags::default());
    node.on(failed(true));
    assert_eq!(node.machine.seal_choice(), SealChoice::BeforeLast);
    assert_eq!(node.on(failed(false)), State::Discarding);
    assert_eq!(
        node.machine.seal_choice(),
        SealChoice::BeforeLast,
        "its end"
    );
    node.on(Event::Cleared);
    node.now += 10 * SECOND;
    assert_eq!(node.on(Event::Tick), State::Looking);
    node.look(1, ActiveState::Serving);
    assert_eq!(node.look(2, ActiveState::Serving), State::Attaching);
    node.on(failed(false));
    assert_eq!(node.machine.seal_choice(), SealChoice::Last);
}

#[test]
fn a_machine_that_cannot_run_a_node_ends_it_only_the_first_time() {
    let broken = || {
        Event::Failed(Failure {
            reason: "no FUSE".into(),
            of_this_machine: true,
            ..Failure::default()
        })
    };
    let mut node = Node::new(Tags::default());
    node.look(1, ActiveState::Serving);
    assert_eq!(node.on(broken()), State::Stopping);
    assert_eq!(
        Node::standby(Tags::default()).on(broken()),
        State::Discarding
    );
}

#[test]
fn a_spare_waits_until_it_is_needed_and_stays_then() {
    let mut node = Node::new(tagged(|tags| tags.spare = true));
    assert_eq!(node.machine.role(), Role::Spare);
    node.look(1, ActiveState::Serving);
    assert_eq!(node.look(2, ActiveState::Serving), State::Spare);
    assert!(
        node.effects(failover(None, false))
            .iter()
            .any(|e| matches!(e, Effect::Reply(Err(why)) if why.contains("spare")))
    );
    assert_eq!(node.on(Event::Asked(Ask::Enlist)), State::Attaching);
    node.on(Event::Superseded);
    node.on(Event::Failed(Failure {
        superseded: true,
        ..Failure::default()
    }));
    node.on(Event::Cleared);
    node.look(3, ActiveState::Serving);
    assert_eq!(
        node.look(4, ActiveState::Serving),
        State::Attaching,
        "no flapping"
    );
}

#[test]
fn a_spare_serves_when_everybody_else_is_gone() {
    let mut node = Node::new(tagged(|tags| tags.spare = true));
    node.look(1, ActiveState::Serving);
    assert_eq!(node.look(2, ActiveState::Serving), State::Spare);
    for _ in 0..10 {
        node.now += SECOND;
        if node.look(2, ActiveState::Serving) == State::TakingOver(Phase::Fence) {
            return;
        }
    }
    panic!("it is {}", node.machine.state());
}

#[test]
fn a_returning_node_is_a_spare_where_there_are_enough_standbys() {
    let mut node = Node::new(Tags::default());
    node.on(Event::Control {
        paused: false,
        standbys: Some(1),
        fits: true,
    });
    let mut seen = registry("other", 1, ActiveState::Serving);
    seen.standbys = 1;
    node.on(Event::Seen(seen.clone()));
    seen.beat.as_mut().unwrap().beat.counter = 2;
    assert_eq!(node.on(Event::Seen(seen)), State::Spare);
}

#[test]
fn an_active_without_zones_stalls_and_goes_on_or_is_fenced() {
    let mut node = Node::active();
    assert_eq!(node.on(Event::StoreLost), State::Stalled);
    assert_eq!(node.machine.state().of_member(), MemberState::Serving);
    assert_eq!(node.on(Event::StoreBack), State::Serving);
    node.on(Event::StoreLost);
    assert_eq!(node.on(Event::Superseded), State::Fenced);
    assert_eq!(node.machine.epoch(), None);
    assert_eq!(node.on(Event::Cleared), State::Looking);
}
