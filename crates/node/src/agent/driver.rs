//! Drives the machine: events of all tasks go in here, one after the other, and everybody who does
//! something for as long as the node is in some state hears of the change.

use std::time::Duration;

use coordination::channel::Request;
use coordination::records::unix_ms;
use coordination::records::{MemberState, Role};
use dax::error::describe;
use parking_lot::Mutex;
use pgserver::{ExitReport, PostgresError};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::error::AgentError;
use crate::machine::table::EventKind;
use crate::machine::{Ask, Decision, Effect, Event, Failure, Machine, SealChoice, State};

/// Something that an operator, or another node, asked for; the sender answers it.
pub(crate) struct Order {
    pub request: Request,
    pub answer: oneshot::Sender<Result<Value, String>>,
}

impl Order {
    /// True if anybody waits for the answer. Who was told that nobody answered has decided something else since.
    pub fn is_wanted(&self) -> bool {
        let is_wanted = !self.answer.is_closed();
        if !is_wanted {
            tracing::info!(request = ?self.request, "an order whose asker has gone is not carried out");
        }
        is_wanted
    }
}

pub(crate) struct MachineDriver {
    machine: Mutex<Machine>,
    states: watch::Sender<State>,
    /// What went wrong last, until the node is something again.
    trouble: Mutex<Option<String>>,
    /// Why the active's PostgreSQL is of no use although it runs.
    stands_still: Mutex<Option<&'static str>>,
    started: Instant,
}

impl MachineDriver {
    pub(crate) fn new(machine: Machine) -> MachineDriver {
        MachineDriver {
            states: watch::channel(machine.state()).0,
            machine: Mutex::new(machine),
            trouble: Mutex::new(None),
            stands_still: Mutex::new(None),
            started: Instant::now(),
        }
    }

    /// Time since the agent started, on its monotonic clock.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells the machine what happened; what it wants done besides, alarms apart.
    pub(crate) fn tell(&self, event: Event) -> Vec<Effect> {
        let what = EventKind::from(&event).words();
        let mut machine = self.machine.lock();
        let before = machine.state();
        let mut effects = machine.on(event, self.now());
        let after = machine.state();
        // Under the lock: the watchers see the changes in their order.
        if after != before {
            tracing::info!(was = %before, because = what, "this node is {after}");
            self.states.send_replace(after);
        }
        drop(machine);
        if after.is_candidate() || after == State::Serving || after == State::Spare {
            *self.trouble.lock() = None;
        }
        effects.retain(|effect| match effect {
            Effect::Alarm(why) => {
                tracing::error!("{why}");
                *self.trouble.lock() = Some(why.clone());
                false
            }
            _ => true,
        });
        effects
    }

    /// What the node is.
    pub(crate) fn state(&self) -> State {
        *self.states.borrow()
    }

    /// The same, to wait for a change.
    pub(crate) fn states(&self) -> watch::Receiver<State> {
        self.states.subscribe()
    }

    /// Waits until the node is in one of these states.
    pub(crate) async fn until(&self, wanted: impl FnMut(&State) -> bool) {
        // The sender lives as long as this does.
        let _ = self.states().wait_for(wanted).await;
    }

    /// As the node's record tells it.
    pub(crate) fn member(&self) -> (Role, MemberState) {
        let machine = self.machine.lock();
        (machine.role(), machine.state().of_member())
    }

    /// Why the node takes over.
    pub(crate) fn decision(&self) -> Option<Decision> {
        self.machine.lock().decision().cloned()
    }

    /// Asks the machine something.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&self.machine.lock())
    }

    /// How long an active that shows nothing is waited for, from now on.
    pub(crate) fn be_patient(&self, timeout: Duration) {
        self.machine.lock().be_patient(timeout);
    }

    /// True if the next attach starts at the seal before the last one.
    pub(crate) fn before_last(&self) -> bool {
        self.look(Machine::seal_choice) == SealChoice::BeforeLast
    }

    /// Puts an order to the machine and passes its answer on.
    pub(crate) fn order(&self, order: Order) {
        if !order.is_wanted() {
            return;
        }
        let ask = match order.request {
            Request::Failover { to, force } => Ask::Failover { to, force },
            Request::Enlist => Ask::Enlist,
            Request::Restart
            | Request::Reinitialize
            | Request::Reload { .. }
            | Request::Exchange { .. }
            | Request::CancelExchange
            | Request::InVolume { .. }
            | Request::Checkpoint => {
                let why = format!("this node is {} and cannot do that now", self.state());
                // Whoever asked may have gone.
                let _ = order.answer.send(Err(why));
                return;
            }
            // Status and the end of an upgrade are the board's.
            Request::Status | Request::FinishUpgrade | Request::Unknown(_) => {
                let why = "this release does not know that request".to_owned();
                // Whoever asked may have gone.
                let _ = order.answer.send(Err(why));
                return;
            }
        };
        for effect in self.tell(Event::Asked(ask)) {
            if let Effect::Reply(reply) = effect {
                let answer = reply.map(|()| json!({ "state": self.state().to_string() }));
                // The order stands all the same.
                let _ = order.answer.send(answer);
                return;
            }
        }
    }

    /// The active's PostgreSQL lets nobody in, and why that is bad; or it does again.
    pub(crate) fn server_stands_still(&self, why: Option<&'static str>) {
        *self.stands_still.lock() = why;
    }

    /// Adds to a status what the machine knows.
    pub(crate) fn describe(&self, status: &mut Value) {
        let now = self.now();
        let machine = self.machine.lock();
        status["role"] = json!(machine.role());
        status["state"] = json!(machine.state().of_member());
        status["stage"] = json!(machine.state().to_string());
        status["paused"] = json!(machine.paused());
        if let Some(trouble) = self.trouble.lock().as_ref() {
            status["error"] = json!(trouble);
        }
        if let Some(why) = *self.stands_still.lock()
            && machine.state().is_active()
        {
            // Health checks send nobody here. The node's record stays as it is: it serves, for all that others know.
            status["state"] = json!(MemberState::Failing);
            status["error"] = json!(why);
        }
        if machine.state().is_active() {
            let p = machine.protection();
            let ago = p.since.map_or(Duration::ZERO, |at| now.saturating_sub(at));
            status["protection"] = json!({
                "protected": p.warm > 0,
                "level": p.level,
                "since_unix_ms": unix_ms().saturating_sub(ago.as_millis() as u64),
                "wanted": p.wanted,
                "standbys": p.standbys,
                "warm": p.warm,
                "restored_after_ms": p.restored_after.map(|took| took.as_millis() as u64),
            });
        }
    }
}

/// What the machine wants to know of an error.
pub(crate) fn failure(error: &AgentError) -> Failure {
    let report = match error {
        AgentError::Postgres(PostgresError::Exited(report)) => Some(report),
        _ => None,
    };
    Failure {
        reason: format!(
            "this life of the node failed; trying again: {}",
            chain(error)
        ),
        superseded: error.is_superseded(),
        redo_failed: report.is_some_and(ExitReport::redo_failed),
        of_this_machine: error.is_of_this_machine(),
    }
}

fn chain(error: &AgentError) -> String {
    let text = describe(error);
    match error.hint() {
        Some(hint) => format!("{text} (hint: {hint})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use coordination::config::Tags;
    use dax::ids::{Epoch, NodeName};
    use volume::error::Error;

    use super::*;
    use crate::machine::{Limits, Phase};

    fn serving() -> MachineDriver {
        let limits = Limits::new(Duration::from_secs(1));
        let me = NodeName::new("north").unwrap();
        let driver = MachineDriver::new(Machine::new(me, Tags::default(), limits));
        driver.tell(Event::Seen(crate::machine::Registry {
            beat: None,
            standby_alive: false,
            standbys: 0,
        }));
        driver.tell(Event::EpochOwned(Epoch(1)));
        for phase in [Phase::LogTail, Phase::Replay, Phase::Promote] {
            driver.tell(Event::PhaseDone(phase));
        }
        assert_eq!(driver.state(), State::Serving);
        driver
    }

    // hazard: NODE-14
    #[test]
    fn an_active_whose_server_stands_still_does_not_say_that_it_serves() {
        let driver = serving();
        let described = || {
            let mut status = json!({});
            driver.describe(&mut status);
            (status["state"].clone(), status["error"].clone())
        };
        assert_eq!(described(), (json!("serving"), Value::Null));
        driver.server_stands_still(Some("it does not answer"));
        assert_eq!(described(), (json!("failing"), json!("it does not answer")));
        assert_eq!(driver.member(), (Role::Active, MemberState::Serving));
        driver.server_stands_still(None);
        assert_eq!(described(), (json!("serving"), Value::Null));
    }

    /// It owned the highest epoch, and the log said that another node did; nobody heard why the takeover had ended.
    // hazard: NODE-20
    #[test]
    fn a_lost_claim_is_a_failure_and_no_race_lost() {
        let failure = failure(&AgentError::Volume(Error::ClaimLost));
        assert!(!failure.superseded);
        assert!(failure.reason.contains("claim"), "{}", failure.reason);
    }
}
