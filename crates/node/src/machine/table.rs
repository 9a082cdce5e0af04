//! All transitions of the machine, as one table. Tests hold the code against it, and the
//! documentation prints it.

use std::fmt::Write;

use super::Phase::{Fence, LogTail, Promote, Replay};
use super::State::{
    self, Attaching, BackingOff, CatchingUp, Discarding, Fenced, HandingOver, Looking, Restarting,
    Serving, Spare, Stalled, Stopped, Stopping, TakingOver, Warm,
};
use super::{Ask, Event};

/// The kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the event of the same name")]
pub enum EventKind {
    Tick,
    Seen,
    Control,
    Judged,
    Vacant,
    Better,
    Attached,
    Level,
    MustReattach,
    RedoWorked,
    EpochOwned,
    PhaseDone,
    Failed,
    Superseded,
    StoreLost,
    StoreBack,
    PostgresExited,
    Restarted,
    FailoverAsked,
    EnlistAsked,
    RestartAsked,
    Cleared,
    NodesSeen,
    Stop,
}

impl From<&Event> for EventKind {
    fn from(event: &Event) -> EventKind {
        match event {
            Event::Tick => EventKind::Tick,
            Event::Seen(_) => EventKind::Seen,
            Event::Control { .. } => EventKind::Control,
            Event::Judged(_) => EventKind::Judged,
            Event::Vacant { .. } => EventKind::Vacant,
            Event::Better(_) => EventKind::Better,
            Event::Attached => EventKind::Attached,
            Event::Level(_) => EventKind::Level,
            Event::MustReattach(_) => EventKind::MustReattach,
            Event::RedoWorked => EventKind::RedoWorked,
            Event::EpochOwned(_) => EventKind::EpochOwned,
            Event::PhaseDone(_) => EventKind::PhaseDone,
            Event::Failed(_) => EventKind::Failed,
            Event::Superseded => EventKind::Superseded,
            Event::StoreLost => EventKind::StoreLost,
            Event::StoreBack => EventKind::StoreBack,
            Event::PostgresExited { .. } => EventKind::PostgresExited,
            Event::Asked(Ask::Failover { .. }) => EventKind::FailoverAsked,
            Event::Asked(Ask::Enlist) => EventKind::EnlistAsked,
            Event::Asked(Ask::Restart) => EventKind::RestartAsked,
            Event::Restarted => EventKind::Restarted,
            Event::Cleared => EventKind::Cleared,
            Event::NodesSeen(_) => EventKind::NodesSeen,
            Event::Stop => EventKind::Stop,
        }
    }
}

impl EventKind {
    /// As people say it.
    pub fn words(self) -> &'static str {
        match self {
            EventKind::Tick => "time passes",
            EventKind::Seen => "the registry is looked at",
            EventKind::Control => "the cluster is paused",
            EventKind::Judged => "the detector suspects the active",
            EventKind::Vacant => "the active hands over to this node",
            EventKind::Better => "other standbys are ranked",
            EventKind::Attached => "PostgreSQL runs",
            EventKind::Level => "replay is level, or no longer",
            EventKind::MustReattach => "its state leads nowhere",
            EventKind::RedoWorked => "redo gets past the seal",
            EventKind::EpochOwned => "it owns the new epoch",
            EventKind::PhaseDone => "the phase is complete",
            EventKind::Failed => "that fails",
            EventKind::Superseded => "a higher epoch exists",
            EventKind::StoreLost => "too few zones answer",
            EventKind::StoreBack => "enough zones answer",
            EventKind::PostgresExited => "PostgreSQL ends",
            EventKind::FailoverAsked => "an operator wants another active",
            EventKind::EnlistAsked => "the active enlists it",
            EventKind::RestartAsked => "an operator wants PostgreSQL restarted",
            EventKind::Restarted => "PostgreSQL serves again",
            EventKind::Cleared => "PostgreSQL and mount are gone",
            EventKind::NodesSeen => "the other nodes are counted",
            EventKind::Stop => "the agent is to stop",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub struct Transition {
    /// In these states,
    pub from: &'static [State],
    /// when this happens,
    pub on: EventKind,
    /// the node becomes one of these,
    pub to: &'static [State],
    /// because
    pub why: &'static str,
}

const fn row(
    from: &'static [State],
    on: EventKind,
    to: &'static [State],
    why: &'static str,
) -> Transition {
    Transition { from, on, to, why }
}

const FENCE: State = TakingOver(Fence);
const TAKING: &[State] = &[
    FENCE,
    TakingOver(LogTail),
    TakingOver(Replay),
    TakingOver(Promote),
];

/// All transitions.
pub const TRANSITIONS: &[Transition] = &[
    row(
        &[Looking],
        EventKind::Seen,
        &[Attaching],
        "somebody serves; or nobody does, and this node may not by itself: it gets ready for an order",
    ),
    row(
        &[Looking],
        EventKind::Seen,
        &[Spare],
        "somebody serves, and it is tagged as spare or there are enough standbys",
    ),
    row(
        &[Looking],
        EventKind::Seen,
        &[FENCE],
        "nobody serves, and no living standby will",
    ),
    row(
        &[Looking],
        EventKind::FailoverAsked,
        &[FENCE],
        "nobody serves, and an operator orders it",
    ),
    row(
        &[Spare],
        EventKind::EnlistAsked,
        &[Attaching],
        "a standby is missing (re-protection)",
    ),
    row(
        &[Spare],
        EventKind::Seen,
        &[Looking],
        "nobody serves, and no living standby will: it is needed itself",
    ),
    row(
        &[Attaching],
        EventKind::Attached,
        &[CatchingUp],
        "it replays",
    ),
    row(
        &[CatchingUp],
        EventKind::Level,
        &[Warm],
        "it could take over at once",
    ),
    row(&[Warm], EventKind::Level, &[CatchingUp], "it fell behind"),
    row(
        &[CatchingUp, Warm],
        EventKind::Judged,
        &[FENCE],
        "not paused, not tagged nofailover, and better ones had their head start",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::Tick,
        &[FENCE],
        "the head start of better ones is over",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::Vacant,
        &[FENCE],
        "an operator's order to the old active names it",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::FailoverAsked,
        &[FENCE],
        "an operator's order overrides pause and nofailover, never the epoch",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::MustReattach,
        &[Discarding],
        "its claim is gone, other settings are needed, or it lags too far",
    ),
    row(
        &[FENCE],
        EventKind::Control,
        &[CatchingUp],
        "nothing was changed yet, and nobody ordered it",
    ),
    row(
        &[FENCE],
        EventKind::EpochOwned,
        &[TakingOver(LogTail)],
        "the old writer is fenced",
    ),
    row(
        &[TakingOver(LogTail)],
        EventKind::PhaseDone,
        &[TakingOver(Replay)],
        "the end of the log is fixed",
    ),
    row(
        &[TakingOver(Replay)],
        EventKind::PhaseDone,
        &[TakingOver(Promote)],
        "replayed to that end",
    ),
    row(
        &[TakingOver(Promote)],
        EventKind::PhaseDone,
        &[Serving],
        "promoted",
    ),
    row(
        &[Serving],
        EventKind::StoreLost,
        &[Stalled],
        "writes wait, nothing fails",
    ),
    row(
        &[Stalled],
        EventKind::StoreBack,
        &[Serving],
        "its epoch still stands",
    ),
    row(
        &[Serving],
        EventKind::RestartAsked,
        &[Restarting],
        "under the same epoch, on the same mount; it beats meanwhile, so nobody takes over",
    ),
    row(
        &[Restarting],
        EventKind::Restarted,
        &[Serving],
        "nothing was to be recovered",
    ),
    row(
        &[Serving, Stalled],
        EventKind::FailoverAsked,
        &[HandingOver],
        "a clean stop, so that nothing is to be recovered",
    ),
    row(
        &[Serving, Stalled, Restarting, HandingOver],
        EventKind::Superseded,
        &[Fenced],
        "it was replaced: PostgreSQL stops at once",
    ),
    row(
        &[Serving, Stalled, Restarting, HandingOver],
        EventKind::Failed,
        &[Fenced, Discarding],
        "replaced, if that is why it failed; else it leaves the volume to a standby",
    ),
    row(
        TAKING,
        EventKind::Superseded,
        &[Discarding],
        "somebody else was first",
    ),
    row(
        &[FENCE],
        EventKind::Superseded,
        &[CatchingUp],
        "somebody else was first, and nothing was changed yet: the standby follows that one",
    ),
    row(&[FENCE], EventKind::Failed, &[CatchingUp], "the same"),
    row(
        &[Warm],
        EventKind::Superseded,
        &[CatchingUp],
        "it follows the next active: all that it has replayed is part of that one's history",
    ),
    row(
        &[
            Looking,
            Spare,
            Attaching,
            CatchingUp,
            Warm,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
        ],
        EventKind::Failed,
        &[Discarding],
        "tries again from the beginning",
    ),
    row(
        &[
            Looking,
            Spare,
            Attaching,
            CatchingUp,
            Warm,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
            Serving,
            Stalled,
            Restarting,
            HandingOver,
        ],
        EventKind::Failed,
        &[Stopping],
        "it never ran, and something about the machine must change first",
    ),
    row(
        &[
            Attaching,
            CatchingUp,
            Warm,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
            Serving,
            Stalled,
            Restarting,
        ],
        EventKind::PostgresExited,
        &[Discarding],
        "every restart is a fresh attach; an active leaves the volume to a standby, if there is one",
    ),
    row(
        &[Fenced, Discarding, HandingOver],
        EventKind::Cleared,
        &[Looking],
        "joins again: no rewind, no base backup",
    ),
    row(
        &[Discarding],
        EventKind::Cleared,
        &[BackingOff],
        "it failed before",
    ),
    row(
        &[BackingOff],
        EventKind::Tick,
        &[Looking],
        "it waited long enough",
    ),
    row(
        &[
            Looking,
            Spare,
            Attaching,
            CatchingUp,
            Warm,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
            Serving,
            Stalled,
            Restarting,
            HandingOver,
            Fenced,
            Discarding,
            BackingOff,
        ],
        EventKind::Stop,
        &[Stopping],
        "an active stops cleanly, everybody else at once",
    ),
    row(
        &[Stopping],
        EventKind::Cleared,
        &[Stopped],
        "nothing is left",
    ),
];

/// Whether the table allows `from` to become `to` on `on`.
pub fn allows(from: State, on: EventKind, to: State) -> bool {
    TRANSITIONS
        .iter()
        .any(|t| t.on == on && t.from.contains(&from) && t.to.contains(&to))
}

/// The table for the documentation.
pub fn markdown() -> String {
    let mut text =
        String::from("| a node that is | when | becomes | because |\n|---|---|---|---|\n");
    for t in TRANSITIONS {
        let (from, to) = (names(t.from), names(t.to));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {from} | {} | {to} | {} |", t.on.words(), t.why);
    }
    text
}

/// The states' names; all phases of a takeover together have one.
fn names(states: &[State]) -> String {
    let taking = TAKING.iter().all(|phase| states.contains(phase));
    let mut names: Vec<String> = Vec::new();
    for state in states {
        let name = match state {
            TakingOver(_) if taking => "taking over".to_owned(),
            state => state.to_string(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}
