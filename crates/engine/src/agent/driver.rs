//! Drives the machine: events of all tasks go in here, one after the other, and everybody who does something for as
//! long as the node is in some state hears of the change.

use std::time::Duration;

use coordination::records::{MemberState, Role};
use dax::error::describe;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::EngineError;
use crate::machine::{Ask, Decision, Effect, Event, Failure, Machine, State};

pub(crate) struct Driver {
    machine: Mutex<Machine>,
    states: watch::Sender<State>,
    /// What went wrong last, until the node serves or waits again.
    trouble: Mutex<Option<String>>,
    started: Instant,
}

impl Driver {
    pub(crate) fn new(machine: Machine) -> Driver {
        Driver {
            states: watch::channel(machine.state()).0,
            machine: Mutex::new(machine),
            trouble: Mutex::new(None),
            started: Instant::now(),
        }
    }

    /// Time since the agent started, on its monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells the machine what happened; the answer to a request, if it was one.
    pub(crate) fn tell(&self, event: Event) -> Option<Result<(), String>> {
        let mut machine = self.machine.lock();
        let before = machine.state();
        let effects = machine.on(event, self.now());
        let after = machine.state();
        // Under the lock: the watchers see the changes in their order.
        if after != before {
            tracing::info!(was = %before, "this node is {after}");
            self.states.send_replace(after);
        }
        drop(machine);
        if after == State::Serving {
            *self.trouble.lock() = None;
        }
        let mut reply = None;
        for effect in effects {
            match effect {
                Effect::Reply(answer) => reply = Some(answer),
                Effect::Alarm(why) => {
                    tracing::error!("{why}");
                    *self.trouble.lock() = Some(why);
                }
            }
        }
        reply
    }

    /// Puts a request to the machine.
    pub(crate) fn ask(&self, ask: Ask) -> Result<(), String> {
        let answer = self.tell(Event::Asked(ask));
        answer.unwrap_or_else(|| Err("this node has no answer".to_owned()))
    }

    /// What the node is.
    pub(crate) fn state(&self) -> State {
        *self.states.borrow()
    }

    /// Waits until the node is in one of these states.
    pub(crate) async fn until(&self, wanted: impl Fn(State) -> bool) {
        let mut states = self.states.subscribe();
        // The sender lives as long as this does.
        let _ = states.wait_for(|state| wanted(*state)).await;
    }

    /// The states, to wait for a change.
    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.states.subscribe()
    }

    /// Asks the machine something.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.machine.lock())
    }

    /// Why the node takes over.
    pub(crate) fn decision(&self) -> Option<Decision> {
        self.look(|machine| machine.decision().cloned())
    }

    /// What went wrong last.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// As the node's record tells it.
    pub(crate) fn member(&self) -> (Role, MemberState) {
        let role = if self.state().is_active() {
            Role::Active
        } else {
            Role::Spare
        };
        let state = match self.state() {
            State::Serving => MemberState::Serving,
            State::Waiting => MemberState::Warm,
            State::BackingOff | State::Clearing => MemberState::Failing,
            State::Stopping | State::Stopped => MemberState::Stopped,
            State::Fencing | State::Opening | State::Starting | State::HandingOver => {
                MemberState::Starting
            }
        };
        (role, state)
    }
}

/// What the machine wants to know of an error.
pub(super) fn failure(error: &EngineError) -> Failure {
    Failure {
        reason: format!("trying again: {}", chain(error)),
        superseded: error.is_superseded(),
        of_this_machine: error.is_of_this_machine(),
    }
}

fn chain(error: &EngineError) -> String {
    let text = describe(error);
    match error.hint() {
        Some(hint) => format!("{text} (hint: {hint})"),
        None => text,
    }
}
