//! What a node that hosts a server of any kind is, and what it does next.
//!
//! Invariants: the server runs only under an epoch that this node was granted in this life, and is stopped
//! as soon as a higher one is known to exist. Nobody takes over by itself while the cluster is paused or the
//! node is tagged `nofailover`; an operator's order overrides both, never the epoch. Several nodes may *want*
//! the volume at once: the epoch's grant makes one of them its owner (DAX 4.3).
//!
//! ```text
//!                 nobody serves, or the active is gone        granted      mounted       ready
//!   Waiting ─────────────────────────────────────────▶ Fencing ────▶ Opening ────▶ Starting ────▶ Serving
//!     ▲  ▲                                                │            │             │  ▲           │ │
//!     │  └── BackingOff ◀── failed, somebody was faster ──┴────────────┴─────────────┘  └───────────┘ │
//!     │           ▲                                                             its server ended:     │
//!     │           └──────────────── Clearing ◀─────── a higher epoch, too many restarts ──── restarted│
//!     │                                ▲                                                     in place │
//!     └────────────────────────────────┴────────── HandingOver ◀──────── an operator's order ─────────┘
//!   any ──▶ Stopping ──▶ Stopped
//! ```
//!
//! The paper restarts a database cold where its storage is (DAX 6): so does this. There is no standby whose
//! memory is warm; whoever waits holds nothing but a look at the registry, and any number may wait.
//!
//! The state says what there is to do; the driver ([`crate::agent`]) does it and tells what happened. Pure:
//! time is a [`Duration`] since some moment of the caller's monotonic clock.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use coordination::detector::{Beat, Evidence, Verdict};
use coordination::records::{ActiveState, Cause, Decider};
use dax::ids::{Epoch, NodeName};

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Holds nothing and watches the active, or looks for one.
    Waiting,
    /// Owns a new epoch, which fences every older writer.
    Fencing,
    /// Reads the latest state of the volume and mounts it.
    Opening,
    /// Starts the server and waits until it is ready.
    Starting,
    /// The server is ready.
    Serving,
    /// Stops the server cleanly so that another node takes over.
    HandingOver,
    /// Kills the server and takes the mount away.
    Clearing,
    /// Waits before it looks again.
    BackingOff,
    /// Stops for good, cleanly if it serves.
    Stopping,
    /// Done.
    Stopped,
}

impl State {
    /// True if this node owns the volume, or is about to.
    pub fn is_active(self) -> bool {
        matches!(
            self,
            State::Fencing | State::Opening | State::Starting | State::Serving | State::HandingOver
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Waiting => "waiting",
            State::Fencing => "taking over (fence)",
            State::Opening => "taking over (open)",
            State::Starting => "taking over (start)",
            State::Serving => "serving",
            State::HandingOver => "handing over",
            State::Clearing => "clearing",
            State::BackingOff => "backing off",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
        })
    }
}

/// The last heartbeat, as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastBeat {
    /// Who wrote it.
    pub node: NodeName,
    /// Which one it is.
    pub beat: Beat,
    /// What its writer was doing.
    pub state: ActiveState,
}

/// What the registry and the failure detector say to a node that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The last heartbeat, if there ever was one.
    pub beat: Option<LastBeat>,
    /// What the failure detector thinks of whoever wrote it.
    pub verdict: Verdict,
    /// Living nodes that should go first.
    pub better: u8,
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Make `to` the active (whoever can, if `None`).
    Failover {
        /// Node that is to take over; any, if `None`.
        to: Option<NodeName>,
        /// Without the cooperation of the present active.
        force: bool,
    },
    /// Stop the server cleanly and start it again, under the same epoch.
    Restart,
}

/// Why something could not be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// Another node owns the volume: nothing is wrong.
    pub superseded: bool,
    /// Something about this machine must change first.
    pub of_this_machine: bool,
}

/// What happens to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A waiting node looked at the registry.
    Seen(Seen),
    /// True if operators have paused the cluster.
    Paused(bool),
    /// [`State::Fencing`]: the epoch is this node's.
    EpochOwned(Epoch),
    /// [`State::Opening`]: the volume is mounted.
    Opened,
    /// [`State::Starting`]: the server says that it is ready.
    Ready,
    /// What the state asks for failed.
    Failed(Failure),
    /// The server ended without being asked.
    ServerEnded(String),
    /// A higher epoch than the one owned exists.
    Superseded,
    /// An operator asks for something; answered by [`Effect::Reply`].
    Asked(Ask),
    /// The server and the mount of this life are gone.
    Cleared,
    /// This node shall stop for good.
    Stop,
}

/// What the driver must do at once, besides what the state asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Answer who asked: it will be tried, or why not.
    Reply(Result<(), String>),
    /// An operator must look at this.
    Alarm(String),
}

/// Why this node takes over, or took over; for the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Reason of the takeover, for the history.
    pub cause: Cause,
    /// True if an operator or the node itself decided.
    pub by: Decider,
}

/// Times and numbers that the machine decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long each better candidate is given to own the epoch.
    pub head_start: Duration,
    /// After a handover, or a server that ended again and again, this node leaves the place to others for so long.
    pub stand_back: Duration,
    /// A server that ends more often than `restarts_max` times within this time is not restarted in place.
    pub restarts_within: Duration,
    /// See `restarts_within`.
    pub restarts_max: u32,
    /// The wait after the first failure; each further one in a row waits twice as long.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_start: Duration::from_millis(300),
            stand_back: Duration::from_secs(10),
            restarts_within: Duration::from_secs(300),
            restarts_max: 3,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}

/// The state machine of one node.
#[derive(Debug, Clone)]
pub struct Machine {
    me: NodeName,
    nofailover: bool,
    limits: Limits,
    state: State,
    paused: bool,
    /// The epoch that this life owns.
    epoch: Option<Epoch>,
    /// Since when nobody is thought to serve.
    vacant_since: Option<Duration>,
    /// Why this node takes over, or took over.
    decision: Option<Decision>,
    /// Whom a handover names.
    successor: Option<NodeName>,
    /// Until then this node leaves the place to others.
    stands_back_until: Duration,
    /// When the server ended by itself, lately.
    endings: Vec<Duration>,
    /// Failures in a row.
    failures: u32,
    retry_at: Duration,
    /// What comes after [`State::Clearing`] is to wait a while.
    backs_off: bool,
    /// It was said why nobody takes over.
    held: bool,
    stops: bool,
    /// A server has been ready on this node since its agent started.
    served: bool,
    /// A rule that the simulation takes away, to see that its absence is noticed.
    #[cfg(test)]
    flaw: Option<simulation::Flaw>,
}

impl Machine {
    /// A node that has just started.
    pub fn new(me: NodeName, nofailover: bool, limits: Limits) -> Machine {
        Machine {
            #[cfg(test)]
            flaw: None,
            me,
            nofailover,
            limits,
            state: State::Waiting,
            paused: false,
            epoch: None,
            vacant_since: None,
            decision: None,
            successor: None,
            stands_back_until: Duration::ZERO,
            endings: Vec::new(),
            failures: 0,
            retry_at: Duration::ZERO,
            backs_off: false,
            held: false,
            stops: false,
            served: false,
        }
    }

    /// What the node is.
    pub fn state(&self) -> State {
        self.state
    }

    /// The epoch that this life owns.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Why this node takes over, or took over.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Whom a handover names, if it names anybody.
    pub fn successor(&self) -> Option<&NodeName> {
        self.successor.as_ref()
    }

    /// True if operators have paused the cluster.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// When the state may change by time alone.
    pub fn wake_at(&self) -> Option<Duration> {
        (self.state == State::BackingOff).then_some(self.retry_at)
    }

    /// Something happened.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        if self.state == State::Stopped {
            return refuse(event, "this node has stopped");
        }
        match event {
            Event::Tick => self.tick(now),
            Event::Seen(seen) => return self.seen(&seen, now),
            Event::Paused(paused) => {
                self.paused = paused;
                self.held &= paused || self.nofailover;
            }
            Event::EpochOwned(epoch) if self.state == State::Fencing => {
                self.epoch = Some(epoch);
                self.state = State::Opening;
            }
            Event::Opened if self.state == State::Opening => self.state = State::Starting,
            Event::Ready if self.state == State::Starting => {
                self.state = State::Serving;
                self.failures = 0;
                self.served = true;
            }
            Event::Failed(failure) => return self.failed(failure),
            Event::ServerEnded(report) => return self.server_ended(&report, now),
            Event::Superseded => self.superseded(),
            Event::Asked(ask) => return vec![Effect::Reply(self.asked(ask, now))],
            Event::Cleared => self.cleared(now),
            Event::Stop => self.stop(),
            Event::EpochOwned(_) | Event::Opened | Event::Ready => {}
        }
        Vec::new()
    }

    fn tick(&mut self, now: Duration) {
        if self.state == State::BackingOff && now >= self.retry_at {
            self.wait();
        }
    }

    fn wait(&mut self) {
        self.state = State::Waiting;
        self.vacant_since = None;
    }

    fn seen(&mut self, seen: &Seen, now: Duration) -> Vec<Effect> {
        if self.state != State::Waiting {
            return Vec::new();
        }
        let Some(cause) = self.vacancy(seen) else {
            self.vacant_since = None;
            self.held = false;
            return Vec::new();
        };
        let since = *self.vacant_since.get_or_insert(now);
        let named = self.is_named(seen);
        // Whom a handover named is not kept waiting, and does not ask whether it may.
        if !named {
            let turn = since + self.limits.head_start * u32::from(seen.better);
            if now < turn.max(self.stands_back_until) {
                return Vec::new();
            }
            if let Some(why) = self.holds_back(seen) {
                return self.hold(why);
            }
        }
        let by = match cause {
            Cause::Switchover => Decider::Operator,
            _ => Decider::Automatic,
        };
        self.take_over(Decision { cause, by });
        Vec::new()
    }

    /// Why nobody serves, if that is so.
    fn vacancy(&self, seen: &Seen) -> Option<Cause> {
        let Some(last) = &seen.beat else {
            return Some(Cause::Started);
        };
        if let ActiveState::Released { to } = &last.state {
            let ordered = to.is_some();
            return Some(if ordered {
                Cause::Switchover
            } else {
                Cause::Started
            });
        }
        // An earlier life of this node does not beat any more.
        if last.node == self.me {
            return Some(Cause::Started);
        }
        match (&seen.verdict, last.state.is_vacant()) {
            (Verdict::Suspect { evidence, .. }, _) => Some(Cause::Failover {
                evidence: evidence.to_string(),
            }),
            (_, true) => Some(Cause::Failover {
                evidence: Evidence::Announced("its server ended".to_owned()).to_string(),
            }),
            _ => None,
        }
    }

    fn is_named(&self, seen: &Seen) -> bool {
        let last = seen.beat.as_ref().map(|last| &last.state);
        matches!(last, Some(ActiveState::Released { to: Some(to) }) if *to == self.me)
    }

    /// Why this node does not take over by itself, if so.
    fn holds_back(&self, seen: &Seen) -> Option<&'static str> {
        // Who served last goes on where it was.
        let own = seen.beat.as_ref().is_some_and(|last| last.node == self.me);
        #[cfg(test)]
        if self.flaw == Some(simulation::Flaw::IgnoresPause) {
            return None;
        }
        if self.paused && seen.beat.is_some() && !own {
            return Some("the cluster is paused");
        }
        (self.nofailover && !own).then_some("this node is tagged nofailover")
    }

    fn hold(&mut self, why: &str) -> Vec<Effect> {
        if self.held {
            return Vec::new();
        }
        self.held = true;
        let text = format!("no node is active, but {why}: resume, or order a failover");
        vec![Effect::Alarm(text)]
    }

    fn take_over(&mut self, decision: Decision) {
        self.decision = Some(decision);
        self.held = false;
        self.state = State::Fencing;
    }

    fn failed(&mut self, failure: Failure) -> Vec<Effect> {
        // What cannot be had when the node starts will not be there a moment later either.
        let hopeless = failure.of_this_machine && !self.served;
        let quiet = failure.superseded;
        match self.state {
            State::Stopping | State::Clearing | State::Stopped => {}
            _ if hopeless => self.stop(),
            // It holds nothing yet.
            State::Waiting | State::BackingOff => {}
            _ => self.clear(true),
        }
        if quiet {
            return Vec::new();
        }
        vec![Effect::Alarm(failure.reason)]
    }

    /// Gives up what it holds. `backs_off`: another node shall have the time to be faster.
    fn clear(&mut self, backs_off: bool) {
        self.backs_off = backs_off;
        self.state = State::Clearing;
    }

    fn superseded(&mut self) {
        let holds = self.state.is_active();
        #[cfg(test)]
        let holds = holds && self.flaw != Some(simulation::Flaw::IgnoresSuccessor);
        if holds {
            self.clear(false);
        }
    }

    fn server_ended(&mut self, report: &str, now: Duration) -> Vec<Effect> {
        match self.state {
            State::Serving => {}
            State::Starting => {
                return self.failed(Failure {
                    reason: format!("the server ended before it was ready: {report}"),
                    ..Failure::default()
                });
            }
            _ => return Vec::new(),
        }
        let window = self.limits.restarts_within;
        self.endings.retain(|at| now.saturating_sub(*at) <= window);
        self.endings.push(now);
        #[cfg(test)]
        if self.flaw == Some(simulation::Flaw::RestartsForEver) {
            self.endings.clear();
        }
        if self.endings.len() as u32 > self.limits.restarts_max {
            self.endings.clear();
            // Or else it would be the first to take the place that it has just left.
            self.stands_back_until = now + self.limits.stand_back;
            self.clear(true);
            return vec![Effect::Alarm(format!(
                "the server ends again and again; another node may take over: {report}"
            ))];
        }
        self.state = State::Starting;
        vec![Effect::Alarm(format!(
            "the server ended; starting it again in place: {report}"
        ))]
    }

    fn asked(&mut self, ask: Ask, now: Duration) -> Result<(), String> {
        match (ask, self.state) {
            (Ask::Failover { to, .. }, State::Serving) => {
                if to.as_ref() == Some(&self.me) {
                    return Err(format!("{} serves already", self.me));
                }
                self.stands_back_until = now + self.limits.stand_back;
                self.successor = to;
                self.state = State::HandingOver;
                Ok(())
            }
            (Ask::Failover { force, .. }, State::Waiting) => {
                if self.vacant_since.is_none() && !force {
                    return Err("another node serves; ask that one, or say --force".to_owned());
                }
                self.take_over(Decision {
                    cause: Cause::Forced,
                    by: Decider::Operator,
                });
                Ok(())
            }
            (Ask::Restart, State::Serving) => {
                self.state = State::Starting;
                Ok(())
            }
            (_, state) => Err(format!("{} is {state} now; try again", self.me)),
        }
    }

    fn cleared(&mut self, now: Duration) {
        self.epoch = None;
        self.successor = None;
        match self.state {
            State::Stopping => self.state = State::Stopped,
            State::Clearing | State::HandingOver if self.stops => self.state = State::Stopped,
            State::Clearing if self.backs_off => {
                let wait = self.limits.backoff_min * 2u32.saturating_pow(self.failures.min(16));
                self.failures += 1;
                self.retry_at = now + wait.min(self.limits.backoff_max);
                self.state = State::BackingOff;
            }
            State::Clearing | State::HandingOver => self.wait(),
            _ => {}
        }
    }

    fn stop(&mut self) {
        self.stops = true;
        if self.state != State::Clearing {
            self.state = State::Stopping;
        }
    }
}

/// Nobody stays without an answer.
fn refuse(event: Event, why: &str) -> Vec<Effect> {
    match event {
        Event::Asked(_) => vec![Effect::Reply(Err(why.to_owned()))],
        _ => Vec::new(),
    }
}
