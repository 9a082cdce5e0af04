//! The machine against its table, against stories, and against an abstract store.

mod cluster;
mod stories;

use std::collections::HashSet;

use super::table::{EventKind, TRANSITIONS, allows};
use super::*;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(super) fn other(health: Health) -> Leader {
    Leader::Other {
        name: name("other"),
        health,
    }
}

pub(super) fn suspect() -> Leader {
    other(Health::Suspect(Evidence::AgentGone))
}

pub(super) fn exited(clean: bool, redo_failed: bool) -> Event {
    Event::PostgresExited {
        clean,
        redo_failed,
        report: "signal 9".into(),
    }
}

fn leaders() -> Vec<Leader> {
    let vacant = |to: &str| other(Health::Vacant { to: Some(name(to)) });
    vec![
        Leader::Unknown,
        Leader::Never,
        Leader::Me,
        Leader::OwnPast,
        other(Health::Alive),
        other(Health::Unclear),
        suspect(),
        other(Health::Vacant { to: None }),
        vacant("me"),
        vacant("third"),
    ]
}

fn events() -> Vec<Event> {
    let reason = || "because".to_owned();
    let phases = [Phase::Fence, Phase::LogTail, Phase::Replay, Phase::Promote];
    let mut all = vec![
        Event::Tick,
        Event::Better(0),
        Event::Better(2),
        Event::Attached,
        Event::AttachFailed { reason: reason() },
        Event::CaughtUp,
        Event::FellBehind,
        Event::MustReattach { reason: reason() },
        Event::EpochOwned(Epoch(7)),
        Event::EpochLost,
        Event::StoreLost,
        Event::StoreBack,
        Event::Fenced,
        exited(true, false),
        exited(false, false),
        exited(false, true),
        Event::WarmStandbys(1),
        Event::Enlist,
        Event::Stop,
    ];
    for force in [false, true] {
        for to in [None, Some(name("me")), Some(name("third"))] {
            all.push(Event::FailoverRequested { to, force });
        }
    }
    all.extend(phases.map(Event::PhaseDone));
    all.extend(phases.map(|phase| Event::PhaseFailed {
        phase,
        reason: reason(),
    }));
    all.extend(leaders().into_iter().map(Event::Leader));
    all
}

/// A machine in `state`, with everything that can decide about transitions taken from `bits`.
fn machine(state: State, leader: Leader, bits: u32) -> Machine {
    let on = |bit: u32| bits & 1 << bit != 0;
    let tags = Tags {
        nofailover: on(0),
        spare: on(1),
        ..Tags::default()
    };
    let mut machine = Machine::new(name("me"), tags, Limits::default());
    machine.state = state;
    machine.vacant_since = on(2).then_some(Duration::ZERO);
    machine.leader = leader;
    machine.better = u8::from(on(3));
    machine.warm_standbys = usize::from(on(4));
    machine.attempts = if on(5) { 3 } else { 0 };
    machine.retry_at = if on(6) { 100 * SECOND } else { Duration::ZERO };
    machine.yield_until = machine.retry_at;
    machine.redo_failures = if on(7) { 5 } else { 0 };
    machine.came_from = if on(8) {
        State::CatchingUp
    } else {
        State::Standby
    };
    machine.epoch = state.owns_epoch().then_some(Epoch(6));
    machine
}

#[test]
fn every_transition_is_in_the_table_and_every_line_of_it_happens() {
    let mut happened = HashSet::new();
    for state in State::ALL {
        for (event, leader) in events()
            .iter()
            .flat_map(|e| leaders().into_iter().map(move |l| (e, l)))
        {
            for bits in 0..1 << 9 {
                let mut machine = machine(*state, leader.clone(), bits);
                machine.on(event.clone(), 50 * SECOND);
                let kind = EventKind::from(event);
                let to = machine.state();
                if to == *state {
                    continue;
                }
                assert!(allows(*state, kind, to), "{state} on {event:?} became {to}");
                happened.insert((*state, kind, to));
            }
        }
    }
    for t in TRANSITIONS {
        for from in t.from {
            assert!(
                t.to.iter().any(|to| happened.contains(&(*from, t.on, *to))),
                "never happens: {from} on {:?}",
                t.on
            );
        }
        for to in t.to {
            assert!(
                t.from
                    .iter()
                    .any(|from| happened.contains(&(*from, t.on, *to))),
                "never reached: {to} on {:?}",
                t.on
            );
        }
    }
}

#[test]
fn an_epoch_is_owned_exactly_in_the_states_that_say_so() {
    for state in State::ALL {
        for event in events() {
            for bits in 0..1 << 9 {
                let mut machine = machine(*state, other(Health::Alive), bits);
                machine.on(event.clone(), 50 * SECOND);
                let owns = machine.state().owns_epoch();
                // An active that stops still owns its epoch until PostgreSQL has ended.
                if machine.state() != State::Stopping {
                    assert_eq!(
                        machine.epoch().is_some(),
                        owns,
                        "{state} on {event:?}: {}",
                        machine.state()
                    );
                }
            }
        }
    }
}

#[test]
fn leaving_an_epoch_behind_is_told_and_forgotten() {
    for state in State::ALL.iter().filter(|s| s.owns_epoch()) {
        let mut machine = machine(*state, Leader::Me, 0);
        let effects = machine.on(exited(false, false), SECOND);
        assert!(
            effects.iter().any(|e| matches!(e, Effect::Announce(_))),
            "{state}"
        );
        assert!(
            effects.iter().any(|e| matches!(e, Effect::LastBeat(_))),
            "{state}"
        );
        assert!(effects.contains(&Effect::Drop), "{state}");
        assert_eq!(machine.epoch(), None);
    }
}

#[test]
fn attaching_always_follows_a_drop_or_a_start() {
    for state in State::ALL {
        for event in events() {
            for bits in 0..1 << 9 {
                let mut machine = machine(*state, other(Health::Alive), bits);
                let effects = machine.on(event.clone(), 50 * SECOND);
                let attach = effects.iter().position(|e| matches!(e, Effect::Attach(_)));
                let fresh = matches!(state, State::Starting | State::Spare | State::Backoff);
                if let (Some(attach), false) = (attach, fresh) {
                    let drop = effects.iter().position(|e| *e == Effect::Drop);
                    assert!(
                        drop.is_some_and(|d| d < attach),
                        "{state} on {event:?}: {effects:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_table_can_be_printed() {
    let text = table::markdown();
    assert_eq!(text.lines().count(), TRANSITIONS.len() + 2);
    assert!(text.contains("| taking over (fence) | EpochOwned | taking over (log_tail) |"));
}
