//! Every transition is in the table, and every line of the table happens.

use std::collections::HashSet;
use std::path::Path;

use super::super::table::{EventKind, TRANSITIONS, allows, markdown};
use super::*;

fn registries() -> Vec<Registry> {
    let mut all = vec![Registry {
        beat: None,
        standby_alive: false,
        standbys: 0,
    }];
    for node in ["me", "other"] {
        for counter in [5, 6] {
            for state in [ActiveState::Serving, ActiveState::PostgresDead] {
                let quiet = registry(node, counter, state);
                all.push(Registry {
                    standby_alive: true,
                    standbys: 2,
                    ..quiet.clone()
                });
                all.push(quiet);
            }
        }
    }
    all
}

fn events() -> Vec<Event> {
    let reason = || "because".to_owned();
    let phases = [Phase::Fence, Phase::LogTail, Phase::Replay, Phase::Promote];
    let mut all = vec![
        Event::Tick,
        Event::Judged(Verdict::Alive),
        Event::Judged(Verdict::Blind { since: SECOND }),
        Event::Judged(suspect(SECOND)),
        Event::Judged(suspect(50 * SECOND)),
        Event::Better(2),
        Event::Attached,
        Event::Level(true),
        Event::Level(false),
        Event::MustReattach(reason()),
        Event::RedoWorked,
        Event::EpochOwned(Epoch(7)),
        Event::Superseded,
        Event::StoreLost,
        Event::StoreBack,
        Event::Restarted,
        Event::Asked(Ask::Enlist),
        Event::Asked(Ask::Restart),
        Event::Cleared,
        Event::NodesSeen(NodesSeen::default()),
        Event::Stop,
    ];
    for bit in [false, true] {
        all.push(Event::Control {
            paused: bit,
            standbys: bit.then_some(2),
            fits: true,
        });
        all.push(Event::PostgresExited {
            redo_failed: bit,
            report: reason(),
        });
        for superseded in [false, true] {
            for redo_failed in [false, true] {
                all.push(Event::Failed(Failure {
                    reason: reason(),
                    superseded,
                    redo_failed,
                    of_this_machine: bit,
                }));
            }
        }
        for to in [None, Some("me"), Some("third")] {
            all.push(failover(to, bit));
        }
    }
    for to in [None, Some(name("me")), Some(name("third"))] {
        all.push(Event::Vacant { to });
    }
    all.extend(phases.map(Event::PhaseDone));
    all.extend(registries().into_iter().map(Event::Seen));
    all
}

const BITS: u32 = 9;
const NOW: Duration = Duration::from_secs(50);

/// A machine in `state`, with everything that can decide about transitions taken from `bits`.
fn machine(state: State, bits: u32) -> Machine {
    let on = |bit: u32| bits & 1 << bit != 0;
    let tags = Tags {
        nofailover: on(0),
        spare: on(1),
        ..Tags::default()
    };
    let mut machine = Machine::new(name("me"), tags, Limits::new(SECOND));
    machine.paused = on(2);
    machine.wanted = on(3).then_some(1);
    machine.enlisted = on(4);
    machine.lived = on(5);
    machine.better = u8::from(on(6));
    machine.stands = state.is_candidate() || on(6);
    if on(7) {
        machine.state = State::Looking;
        machine.on(
            Event::Seen(registry("other", 5, ActiveState::PostgresDead)),
            Duration::ZERO,
        );
        machine.retry_at = 100 * SECOND;
    }
    machine.state = state;
    if state.is_candidate() && on(8) {
        machine.better = 3;
        machine.suspicion = None;
        machine.on(Event::Judged(suspect(NOW - SECOND / 2)), NOW - SECOND / 2);
        machine.better = 1;
    }
    if let State::TakingOver(phase) = state {
        let cause = match on(7) {
            true => Cause::Started,
            false => Cause::Failover {
                evidence: String::new(),
            },
        };
        machine.decision = Some(Decision {
            cause,
            by: Decider::Automatic,
        });
        machine.epoch = (phase > Phase::Fence).then_some(Epoch(6));
    }
    machine.state = state;
    machine.epoch = machine.epoch.or(owns(state).then_some(Epoch(6)));
    machine
}

fn owns(state: State) -> bool {
    match state {
        State::TakingOver(phase) => phase > Phase::Fence,
        State::Serving | State::Stalled | State::Restarting | State::HandingOver => true,
        _ => false,
    }
}

/// Calls `look` with every state, event and setting: the machine after it, and what it said.
fn everywhere(mut look: impl FnMut(State, &Event, &Machine, &[Effect])) {
    let events = events();
    for state in State::ALL {
        for bits in 0..1 << BITS {
            let before = machine(*state, bits);
            for event in &events {
                let mut machine = before.clone();
                let effects = machine.on(event.clone(), NOW);
                look(*state, event, &machine, &effects);
            }
        }
    }
}

#[test]
fn every_transition_is_in_the_table_and_every_line_of_it_happens() {
    let mut happened = HashSet::new();
    everywhere(|from, event, machine, _| {
        let (kind, to) = (EventKind::from(event), machine.state());
        if to != from {
            assert!(allows(from, kind, to), "{from} on {event:?} became {to}");
            happened.insert((from, kind, to));
        }
    });
    let happens = |from, on, to| happened.contains(&(from, on, to));
    for t in TRANSITIONS {
        for from in t.from {
            let any = t.to.iter().any(|to| happens(*from, t.on, *to));
            assert!(any, "never happens: {from} on {:?}", t.on);
        }
        for to in t.to {
            let any = t.from.iter().any(|from| happens(*from, t.on, *to));
            assert!(any, "never reached: {to} on {:?}", t.on);
        }
    }
}

#[test]
fn an_epoch_is_owned_exactly_in_the_states_that_say_so() {
    everywhere(|from, event, machine, _| {
        // An active that stops, or whose life just ended, owns its epoch until nothing is left of it.
        if !matches!(
            machine.state(),
            State::Stopping | State::Discarding | State::Fenced
        ) {
            let (owned, to) = (machine.epoch().is_some(), machine.state());
            assert_eq!(owned, owns(to), "{from} on {event:?}: {to}");
        }
    });
}

#[test]
fn orders_get_exactly_one_answer() {
    everywhere(|from, event, _, effects| {
        let answers = effects.iter().filter(|e| matches!(e, Effect::Reply(_)));
        let asked = matches!(event, Event::Asked(_));
        assert_eq!(answers.count(), usize::from(asked), "{from} on {event:?}");
    });
}

#[test]
fn orders_alone_override_pause_and_nofailover() {
    everywhere(|from, event, machine, _| {
        let took = machine.state() == State::TakingOver(Phase::Fence) && machine.state() != from;
        let held = machine.paused() || machine.tags.nofailover;
        let ordered = matches!(event, Event::Asked(_) | Event::Vacant { .. });
        if took && held && !ordered {
            let cause = machine.decision().map(|d| d.cause.clone());
            assert_eq!(cause, Some(Cause::Started), "{from} on {event:?}");
        }
    });
}

/// `docs/understand/failover.md` holds the table between two markers. `UPDATE_DOCS=1` writes it.
#[test]
fn the_documentation_prints_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/understand/failover.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- transitions -->\n", "<!-- end of transitions -->");
    let (before, rest) = text.split_once(begin).expect("the marker");
    let (printed, after) = rest.split_once(end).expect("the marker at the end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let new = format!("{before}{begin}{}{end}{after}", markdown());
        std::fs::write(&path, new).unwrap();
        return;
    }
    assert_eq!(
        printed,
        markdown(),
        "docs/understand/failover.md differs from the code: UPDATE_DOCS=1 cargo test -p node machine"
    );
}
