//! What this node is, and what it does next: the state machine of one node.
//!
//! Invariants: a node serves only under an epoch that it was granted in this life, and never again
//! after it learns that a higher one exists. Nobody takes over by itself while the cluster is paused,
//! or tagged `nofailover`; an operator's order overrides both, never the epoch. Two nodes can *want* to
//! be the active at once: the epoch's grant makes one of them the owner (design, section 5).
//!
//! ```text
//!                 somebody serves              level
//!   Looking ──────────────────────▶ Attaching ─▶ CatchingUp ◀──▶ Warm
//!    ▲ │ ▲ │      enough standbys      ▲                │         │ the active is gone and it is
//!    │ │ │ └──────────▶ Spare ─────────┘ enlisted       └────┬────┘ this node's turn, or asked
//!    │ │ │                                                   ▼
//!    │ │ │ nobody serves, nobody else will          TakingOver: fence ─▶ log_tail ─▶ replay ─▶ promote
//!    │ └─┼─────────────────────────────────────────────────▶ ┘                                   │
//!    │   │                                                                                       ▼
//!    │   └─ BackingOff ◀─ Discarding ◀── PostgreSQL ended, a step failed (any) ────── Serving ◀▶ Stalled
//!    └───── Fenced ◀───────────────── a higher epoch exists ─────────────────────────── │ │
//!    └───── HandingOver ◀──────────── an operator's order ────────────────────────────── ┘ │
//!   any ──▶ Stopping ──▶ Stopped ◀─────────────────────────────────────────────────────────┘
//! ```
//!
//! The one list of all transitions is [`table::TRANSITIONS`]; tests hold the code against it, and
//! `docs/understand/failover.md` prints it.
//!
//! The state says what there is to do, and the driver ([`crate::agent`]) does that and tells what
//! happened; [`Effect`]s are what is to be done at once besides. Pure: time is a [`Duration`] since
//! some moment of the caller's monotonic clock.

mod limits;
mod look;
mod order;
pub mod protection;
pub mod ranking;
#[cfg(test)]
mod simulation;
mod step;
pub mod table;
mod turn;

use std::fmt;
use std::time::Duration;

use coordination::config::Tags;
use coordination::detector::{Beat, Evidence, Verdict};
use coordination::records::{ActiveState, Cause, Decider, MemberState, Role};
use dax::ids::{Epoch, NodeName};

pub use self::limits::Limits;
use self::look::Look;
use self::protection::{NodesSeen, Protection};
use self::turn::Suspicion;

/// Steps of a takeover, in order (`docs/understand/failover.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Own a new epoch.
    Fence,
    /// Read the tails of journal and log with ReadPromote, fix the end of the log.
    LogTail,
    /// PostgreSQL replays to that end.
    Replay,
    /// Publish the control file, switch views, promote PostgreSQL.
    Promote,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Watches the registry: does somebody serve?
    Looking,
    /// Runs no PostgreSQL until a standby is needed.
    Spare,
    /// Sets a private state up from a seal and starts PostgreSQL on it.
    Attaching,
    /// PostgreSQL replays, not yet level with the active.
    CatchingUp,
    /// Level: could take over at once.
    Warm,
    /// On its way to be the active.
    TakingOver(Phase),
    /// Serves as the active.
    Serving,
    /// Owns its epoch but reaches too few zones: writes wait, nothing fails.
    Stalled,
    /// Owns its epoch and starts PostgreSQL again, as an operator wants: clients must wait.
    Restarting,
    /// Stops PostgreSQL cleanly so that another node takes over.
    HandingOver,
    /// A higher epoch exists: stops PostgreSQL at once.
    Fenced,
    /// What it holds is of no use any more: stops PostgreSQL at once.
    Discarding,
    /// Waits before it tries again.
    BackingOff,
    /// Stops for good.
    Stopping,
    /// Done.
    Stopped,
}

/// Seal that an attach starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SealChoice {
    /// The last seal.
    Last,
    /// The seal before the last one, from which redo failed (N7).
    BeforeLast,
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

/// What the registry says to a node that runs no PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The last heartbeat, if there ever was one.
    pub beat: Option<LastBeat>,
    /// True if a standby that may take over by itself was seen to be alive.
    pub standby_alive: bool,
    /// Other standbys that are alive.
    pub standbys: usize,
}

/// What an operator, or the active, asks of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Make `to` (whoever can, if `None`) the active.
    Failover {
        /// Node that is to take over; the best standby, if `None`.
        to: Option<NodeName>,
        /// Also if nobody is there to follow.
        force: bool,
    },
    /// Become a standby (asked of a spare).
    Enlist,
    /// Start PostgreSQL again in place (asked of the active).
    Restart,
}

/// Why something could not be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// Another node owns the volume: nothing is wrong.
    pub superseded: bool,
    /// Redo failed: the same attach would fail again.
    pub redo_failed: bool,
    /// Something about this machine must change first.
    pub of_this_machine: bool,
}

/// What happens to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed; see [`Machine::wake_at`].
    Tick,
    /// The registry was looked at, by a node that is looking or a spare.
    Seen(Registry),
    /// What operators have set for the whole cluster.
    Control {
        /// Nobody takes over by itself.
        paused: bool,
        /// How many standbys there should be; every node that is no spare, if `None`.
        standbys: Option<usize>,
        /// Texts sort on this node as in the volume's indexes.
        fits: bool,
    },
    /// The detector looked at the active that this node follows.
    Judged(Verdict),
    /// The active that this node follows leaves the epoch to `to`; to anybody, if `None`.
    Vacant {
        /// The node that should take over.
        to: Option<NodeName>,
    },
    /// So many other standbys should go first at a takeover.
    Better(u8),
    /// PostgreSQL runs on the attached state.
    Attached,
    /// True if the standby is level with the active.
    Level(bool),
    /// The standby cannot, or should not, go on from its state; why, in words.
    MustReattach(String),
    /// Redo went past the seal that this node attached at.
    RedoWorked,
    /// [`Phase::Fence`]: the epoch is ours.
    EpochOwned(Epoch),
    /// A phase after the first is complete.
    PhaseDone(Phase),
    /// What the state asks for failed.
    Failed(Failure),
    /// A higher epoch than the one followed, or owned, exists.
    Superseded,
    /// Too few zones answer.
    StoreLost,
    /// Enough zones answer again.
    StoreBack,
    /// PostgreSQL ended without being asked.
    PostgresExited {
        /// Redo failed: the same attach would fail again.
        redo_failed: bool,
        /// In words.
        report: String,
    },
    /// The active's PostgreSQL was started again.
    Restarted,
    /// Somebody asks for something; answered by [`Effect::Reply`].
    Asked(Ask),
    /// PostgreSQL and the mount of this life are gone.
    Cleared,
    /// The active looked at the other nodes.
    NodesSeen(NodesSeen),
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
    /// Ask this spare to become a standby.
    Enlist(NodeName),
}

/// Why this node takes over, or took over; for the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Reason of the takeover, for the history.
    pub cause: Cause,
    /// True if an operator or the node itself decided.
    pub by: Decider,
}

impl Decision {
    /// True if nobody asked for it.
    fn is_failover(&self) -> bool {
        matches!(self.cause, Cause::Failover { .. })
    }
}

/// The state machine of one node.
#[derive(Debug, Clone)]
pub struct Machine {
    me: NodeName,
    tags: Tags,
    /// Texts sort here as in the volume's indexes, as far as is known.
    fits: bool,
    limits: Limits,
    state: State,
    paused: bool,
    /// How many standbys operators want.
    wanted: Option<usize>,
    /// The epoch that this life owns.
    epoch: Option<Epoch>,
    /// Of a node that looks, or is a spare.
    look: Option<Look>,
    /// It was asked to be a standby although it is a spare; for as long as the agent runs.
    enlisted: bool,
    /// A standby runs, also while it takes over.
    stands: bool,
    /// Of a standby: what is thought of its active.
    suspicion: Option<Suspicion>,
    better: u8,
    /// Why this node takes over, or took over.
    decision: Option<Decision>,
    /// Node that a handover names.
    successor: Option<NodeName>,
    /// Standbys that this node has while it is the active.
    protection: Protection,
    /// Failures in a row.
    failures: u32,
    redo_failed: bool,
    retry_at: Duration,
    /// This node has been a standby or the active since its agent started.
    lived: bool,
}

impl Machine {
    /// A node that has just started.
    pub fn new(me: NodeName, tags: Tags, limits: Limits) -> Machine {
        Machine {
            me,
            tags,
            fits: true,
            limits,
            state: State::Looking,
            paused: false,
            wanted: None,
            epoch: None,
            look: None,
            enlisted: false,
            stands: false,
            suspicion: None,
            better: 0,
            decision: None,
            successor: None,
            protection: Protection::default(),
            failures: 0,
            redo_failed: false,
            retry_at: Duration::ZERO,
            lived: false,
        }
    }

    /// How long an active that shows nothing is waited for, from now on.
    pub fn be_patient(&mut self, timeout: Duration) {
        self.limits.timeout = timeout;
    }

    /// What the node is.
    pub fn state(&self) -> State {
        self.state
    }

    /// The epoch that this life of the node owns.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// True if automatic takeovers are switched off, as far as this node knows.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Why this node takes over, or took over last.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Whom an active that hands over names.
    pub fn successor(&self) -> Option<&NodeName> {
        self.successor.as_ref()
    }

    /// Which seal the next attach starts from.
    pub fn seal_choice(&self) -> SealChoice {
        match self.redo_failed {
            true => SealChoice::BeforeLast,
            false => SealChoice::Last,
        }
    }

    /// How well the active is protected, as it saw at its last nodes_seen.
    pub fn protection(&self) -> &Protection {
        &self.protection
    }

    /// What a node is to others: for its record and its status.
    pub fn role(&self) -> Role {
        match self.state {
            State::Serving | State::Stalled | State::Restarting | State::HandingOver => {
                Role::Active
            }
            State::Spare => Role::Spare,
            _ if self.epoch.is_some() && self.state == State::Stopping => Role::Active,
            State::Looking | State::BackingOff if self.tags.spare && !self.enlisted => Role::Spare,
            _ => Role::Standby,
        }
    }
}

impl Phase {
    /// As in records and in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fence => "fence",
            Phase::LogTail => "log_tail",
            Phase::Replay => "replay",
            Phase::Promote => "promote",
        }
    }
}

impl State {
    /// Every state, for tables and tests.
    pub const ALL: &[State] = &[
        State::Looking,
        State::Spare,
        State::Attaching,
        State::CatchingUp,
        State::Warm,
        State::TakingOver(Phase::Fence),
        State::TakingOver(Phase::LogTail),
        State::TakingOver(Phase::Replay),
        State::TakingOver(Phase::Promote),
        State::Serving,
        State::Stalled,
        State::Restarting,
        State::HandingOver,
        State::Fenced,
        State::Discarding,
        State::BackingOff,
        State::Stopping,
        State::Stopped,
    ];

    /// True if a standby's PostgreSQL runs in this state, ready to take over.
    pub fn is_candidate(self) -> bool {
        matches!(self, State::CatchingUp | State::Warm)
    }

    /// True if the node is the active and goes on.
    pub fn is_active(self) -> bool {
        matches!(self, State::Serving | State::Stalled | State::Restarting)
    }

    /// True if the node only watches the registry.
    pub fn is_watching(self) -> bool {
        matches!(self, State::Looking | State::Spare)
    }

    /// As the node's record tells it.
    pub fn of_member(self) -> MemberState {
        match self {
            State::CatchingUp => MemberState::CatchingUp,
            State::Warm => MemberState::Warm,
            State::Serving | State::Stalled => MemberState::Serving,
            State::Restarting => MemberState::Restarting,
            State::BackingOff => MemberState::Failing,
            State::Stopping | State::Stopped => MemberState::Stopped,
            State::Looking
            | State::Spare
            | State::Attaching
            | State::TakingOver(_)
            | State::HandingOver
            | State::Fenced
            | State::Discarding => MemberState::Starting,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            State::Looking => "looking",
            State::Spare => "spare",
            State::Attaching => "attaching",
            State::CatchingUp => "catching up",
            State::Warm => "warm",
            State::TakingOver(phase) => return write!(f, "taking over ({phase})"),
            State::Serving => "serving",
            State::Stalled => "stalled",
            State::Restarting => "restarting",
            State::HandingOver => "handing over",
            State::Fenced => "fenced",
            State::Discarding => "discarding",
            State::BackingOff => "backing off",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests;
