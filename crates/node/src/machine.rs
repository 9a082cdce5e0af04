//! What this node is, and what it does next: the state machine of one node.
//!
//! Invariant: a node serves only under an epoch that it was granted in this life, and never again
//! after it learns that the epoch is fenced. Two nodes can *want* to be the active at once; the
//! epoch's grant makes one of them the owner (design, section 5), and the other goes on as standby.
//!
//! ```text
//!                         ┌─────────┐ enlist
//!                     ┌──▶│  Spare  ├─────┐
//!   ┌──────────┐      │   └─────────┘     ▼
//!   │ Starting ├──────┴─────────────▶ Attaching ─────▶ CatchingUp ◀────▶ Standby
//!   └──────────┘                       ▲  ▲  │             │ │              │ │
//!                          retry time  │  │  │ failed      │ │ active gone, │ │
//!                                      │  │  ▼             │ ▼ or asked to  ▼ │
//!                                    Backoff ◀─────────────┤ TakingOver:      │
//!            PostgreSQL died (any)     ▲  ▲                │   fence ── lost ─┤▶ where it was
//!            or ended for a handover   │  │                │   log_tail       │
//!                                      │  │ discarded      │   replay         │
//!   HandingOver ◀── asked ─── Active ──┘  └── Discarding ◀─┤   promote        │
//!                             ▲  ▲ │                       │     │            │
//!             store cut off ┌─┘  │ │ higher epoch          └─────┼────────────┘
//!             and back      ▼    │ ▼                             │   must attach afresh
//!                       Stalled  │ Fenced ──▶ (stopped) Attaching│
//!                                └───────────────────────────────┘
//!   any ── stop ─▶ Stopping ─▶ Stopped
//! ```
//!
//! The one list of all transitions is [`table::TRANSITIONS`]; tests hold the code against it, and
//! [`table::markdown`] prints it for the documentation.
//!
//! Who may become the active: a node that is attached (a volume is never started by plain crash
//! recovery), is not tagged `nofailover`, and knows that nobody serves: the registry says that
//! nobody ever did, or that the last was an earlier life of this very node, or the detector
//! suspects the last one, or that one said itself that it is done. Better candidates get a head
//! start. An operator's request overrides the detector, never the epoch.
//!
//! Pure: time is a [`Duration`] since some moment of the caller's monotonic clock.

mod step;
pub mod table;

use std::fmt;
use std::time::Duration;

use dax::ids::{Epoch, NodeName};

use crate::config::Tags;
use crate::detector::{Evidence, Verdict};
use crate::postgres::StopMode;
use crate::records::{ActiveState, Cause};

/// Steps of a takeover, in order (`docs/FAILOVER.md`).
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
    /// Reads the registry.
    Starting,
    /// Runs no PostgreSQL until a standby is needed.
    Spare,
    /// Sets a private state up from a seal and starts PostgreSQL on it.
    Attaching,
    /// PostgreSQL replays, not yet level with the active.
    CatchingUp,
    /// Level: could take over at once.
    Standby,
    /// On its way to be the active.
    TakingOver(Phase),
    /// Serves.
    Active,
    /// Owns its epoch but reaches too few zones: writes wait, nothing fails.
    Stalled,
    /// Stops PostgreSQL cleanly so that another node takes over.
    HandingOver,
    /// A higher epoch exists: stops PostgreSQL at once.
    Fenced,
    /// A standby whose private state is of no use any more: stops PostgreSQL at once.
    Discarding,
    /// Waits before it attaches again.
    Backoff,
    /// Stops for good.
    Stopping,
    /// Done.
    Stopped,
}

/// Which seal an attach starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SealChoice {
    /// The last one.
    Last,
    /// The one before it: redo failed repeatedly from the last one (N7).
    BeforeLast,
}

/// What is known of the owner of the highest epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leader {
    /// Nothing yet.
    Unknown,
    /// Nobody ever owned an epoch, or only whoever created the volume did.
    Never,
    /// This life of this node.
    Me,
    /// An earlier life of this node: certainly dead, its PostgreSQL killed.
    OwnPast,
    /// Another node.
    Other {
        /// Which.
        name: NodeName,
        /// How it looks from here.
        health: Health,
    },
}

/// How another node that owns the epoch looks from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It beats.
    Alive,
    /// This node cannot tell.
    Unclear,
    /// Probably gone.
    Suspect(Evidence),
    /// It said itself that it no longer serves; `to` is who was asked to follow it.
    Vacant {
        /// The node that should take over.
        to: Option<NodeName>,
    },
}

impl Leader {
    /// What the detector's verdict and the last heartbeat say together of the node `name`.
    pub fn other(name: NodeName, verdict: &Verdict, beat: Option<&ActiveState>) -> Leader {
        let health = match (beat, verdict) {
            (_, Verdict::Blind { .. }) => Health::Unclear,
            (Some(ActiveState::Released { to }), _) => Health::Vacant { to: to.clone() },
            (Some(ActiveState::PostgresDead), _) => Health::Vacant { to: None },
            (_, Verdict::Suspect { evidence, .. }) => Health::Suspect(evidence.clone()),
            (_, Verdict::Alive) => Health::Alive,
        };
        Leader::Other { name, health }
    }
}

/// What happens to a node.
///
/// After [`Effect::Drop`] the driver delivers no event of work that began before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed; come back at least every poll period.
    Tick,
    /// The registry, the heartbeat and the detector were looked at. Every poll period.
    Leader(Leader),
    /// So many other standbys should go first at a takeover ([`crate::records::better_candidates`]).
    Better(u8),
    /// PostgreSQL runs on the attached state.
    Attached,
    /// The attach failed.
    AttachFailed {
        /// In words.
        reason: String,
    },
    /// The standby is level with the active. Repeat it every poll period while it is.
    CaughtUp,
    /// The standby is no longer level with the active.
    FellBehind,
    /// The standby cannot go on from its state: it replayed past the fork of a new timeline, lost
    /// its claim, needs other parameters, or lags too far.
    MustReattach {
        /// In words.
        reason: String,
    },
    /// [`Phase::Fence`]: the epoch is ours.
    EpochOwned(Epoch),
    /// [`Phase::Fence`]: somebody else was first.
    EpochLost,
    /// A later phase is complete.
    PhaseDone(Phase),
    /// A phase failed, and not because of a higher epoch.
    PhaseFailed {
        /// Which.
        phase: Phase,
        /// In words.
        reason: String,
    },
    /// Too few zones answer.
    StoreLost,
    /// Enough zones answer again.
    StoreBack,
    /// A higher epoch exists.
    Fenced,
    /// PostgreSQL ended, asked or not. Also the answer to [`Effect::StopPostgres`] if none ran.
    PostgresExited {
        /// It stopped as asked, with a shutdown checkpoint.
        clean: bool,
        /// Redo failed: the same attach would fail again.
        redo_failed: bool,
        /// In words.
        report: String,
    },
    /// So many standbys that could take over at once listen on the channel.
    WarmStandbys(usize),
    /// An operator wants `to` (or whoever can) to be the active.
    FailoverRequested {
        /// The node; any other, if `None`.
        to: Option<NodeName>,
        /// Do not wait for the old active's cooperation.
        force: bool,
    },
    /// A spare is needed as a standby.
    Enlist,
    /// This node shall stop for good.
    Stop,
}

/// What the driver must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Forget everything of this life: view, overlay, storage handle, running work. The next
    /// storage handle is a new incarnation.
    Drop,
    /// Attach at a seal and start PostgreSQL. Answered by `Attached` or `AttachFailed`.
    Attach(SealChoice),
    /// Do a phase of the takeover.
    Run(Phase),
    /// Advance the counter from now on, with this state.
    Beat(ActiveState),
    /// Write a last heartbeat with this state (best effort) and stop beating.
    LastBeat(ActiveState),
    /// Tell subscribers at once, over the channel, that this epoch no longer serves.
    Announce(ActiveState),
    /// Stop PostgreSQL. Always answered by `PostgresExited`.
    StopPostgres(StopMode),
    /// Write this change of the active to the history.
    Record(Cause),
    /// An operator must look at this.
    Alarm(String),
    /// Answer an operator's request: it will be tried, or why not.
    Reply(Result<(), String>),
    /// Leave the process.
    Exit,
}

/// Times that the machine decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Head start of each better candidate.
    pub stagger: Duration,
    /// How long an active whose PostgreSQL died leaves the stage to its warm standbys.
    pub self_recovery_wait: Duration,
    /// How long everybody else waits for the node that a handover names.
    pub handover_wait: Duration,
    /// How long a spare watches a cluster without an active before it enlists itself.
    pub spare_wait: Duration,
    /// The second attach in a row waits this long, each further one twice as long.
    pub backoff_min: Duration,
    /// The longest wait between two attaches.
    pub backoff_max: Duration,
    /// After so many redo failures in a row the seal before the last one is used.
    pub redo_failures: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            stagger: Duration::from_millis(500),
            self_recovery_wait: Duration::from_secs(5),
            handover_wait: Duration::from_secs(10),
            spare_wait: Duration::from_secs(5),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            redo_failures: 2,
        }
    }
}

/// The state machine of one node.
#[derive(Debug, Clone)]
pub struct Machine {
    me: NodeName,
    tags: Tags,
    limits: Limits,
    state: State,
    leader: Leader,
    /// The epoch that this life owns.
    epoch: Option<Epoch>,
    /// Why this node takes over, or took over.
    cause: Cause,
    /// Where a lost race leads back to.
    came_from: State,
    /// Since when nobody serves, as far as is known.
    vacant_since: Option<Duration>,
    /// Not before this time may this node take over by itself.
    yield_until: Duration,
    better: u8,
    warm_standbys: usize,
    /// Attaches in a row that did not become level.
    attempts: u32,
    redo_failures: u32,
    retry_at: Duration,
    hand_over_to: Option<NodeName>,
}

impl Machine {
    /// A node that has just started.
    pub fn new(me: NodeName, tags: Tags, limits: Limits) -> Machine {
        Machine {
            me,
            tags,
            limits,
            state: State::Starting,
            leader: Leader::Unknown,
            epoch: None,
            cause: Cause::Started,
            came_from: State::Standby,
            vacant_since: None,
            yield_until: Duration::ZERO,
            better: 0,
            warm_standbys: 0,
            attempts: 0,
            redo_failures: 0,
            retry_at: Duration::ZERO,
            hand_over_to: None,
        }
    }

    /// What the node is.
    pub fn state(&self) -> State {
        self.state
    }

    /// The epoch that this life of the node owns.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// What is known of the owner of the highest epoch.
    pub fn leader(&self) -> &Leader {
        &self.leader
    }

    /// Which seal the next attach starts from.
    pub fn seal_choice(&self) -> SealChoice {
        match self.redo_failures >= self.limits.redo_failures {
            true => SealChoice::BeforeLast,
            false => SealChoice::Last,
        }
    }
}

impl Phase {
    /// The phase that follows.
    pub fn next(self) -> Option<Phase> {
        match self {
            Phase::Fence => Some(Phase::LogTail),
            Phase::LogTail => Some(Phase::Replay),
            Phase::Replay => Some(Phase::Promote),
            Phase::Promote => None,
        }
    }

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
        State::Starting,
        State::Spare,
        State::Attaching,
        State::CatchingUp,
        State::Standby,
        State::TakingOver(Phase::Fence),
        State::TakingOver(Phase::LogTail),
        State::TakingOver(Phase::Replay),
        State::TakingOver(Phase::Promote),
        State::Active,
        State::Stalled,
        State::HandingOver,
        State::Fenced,
        State::Discarding,
        State::Backoff,
        State::Stopping,
        State::Stopped,
    ];

    /// Whether a node in this state owns an epoch, as far as it knows.
    pub fn owns_epoch(self) -> bool {
        match self {
            State::TakingOver(phase) => phase > Phase::Fence,
            State::Active | State::Stalled | State::HandingOver => true,
            _ => false,
        }
    }

    /// Whether a standby's PostgreSQL runs in this state, ready to take over.
    pub fn is_candidate(self) -> bool {
        matches!(self, State::CatchingUp | State::Standby)
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
            State::Starting => "starting",
            State::Spare => "spare",
            State::Attaching => "attaching",
            State::CatchingUp => "catching up",
            State::Standby => "standby",
            State::TakingOver(phase) => return write!(f, "taking over ({phase})"),
            State::Active => "active",
            State::Stalled => "stalled",
            State::HandingOver => "handing over",
            State::Fenced => "fenced",
            State::Discarding => "discarding",
            State::Backoff => "backoff",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests;
