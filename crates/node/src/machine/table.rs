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
            EventKind::Seen => "it reads the registry",
            EventKind::Control => "the cluster is paused",
            EventKind::Judged => "the detector suspects the active",
            EventKind::Vacant => "the active hands over to this node",
            EventKind::Better => "other standbys are ranked",
            EventKind::Attached => "PostgreSQL runs",
            EventKind::Level => "replay catches up, or falls behind",
            EventKind::MustReattach => "it must reattach",
            EventKind::RedoWorked => "redo gets past the seal",
            EventKind::EpochOwned => "it owns the new epoch",
            EventKind::PhaseDone => "the phase is complete",
            EventKind::Failed => "a step fails",
            EventKind::Superseded => "a higher epoch exists",
            EventKind::StoreLost => "too few zones answer",
            EventKind::StoreBack => "enough zones answer",
            EventKind::PostgresExited => "PostgreSQL exits",
            EventKind::FailoverAsked => "an operator requests a failover",
            EventKind::EnlistAsked => "the active enlists it",
            EventKind::RestartAsked => "an operator requests a restart",
            EventKind::Restarted => "PostgreSQL serves again",
            EventKind::Cleared => "PostgreSQL and the mount have ended",
            EventKind::NodesSeen => "the other nodes are counted",
            EventKind::Stop => "the agent is told to stop",
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
        "another node serves; or none does, and this node may not serve without an order: it prepares for one",
    ),
    row(
        &[Looking],
        EventKind::Seen,
        &[Spare],
        "another node serves, and this node is tagged as spare, or there are enough standbys",
    ),
    row(
        &[Looking],
        EventKind::Seen,
        &[FENCE],
        "no node serves, and no running standby will",
    ),
    row(
        &[Looking],
        EventKind::FailoverAsked,
        &[FENCE],
        "no node serves, and an operator orders it",
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
        "no node serves, and no running standby will: this node is needed",
    ),
    row(
        &[Attaching],
        EventKind::Attached,
        &[CatchingUp],
        "it has begun to replay",
    ),
    row(
        &[CatchingUp],
        EventKind::Level,
        &[Warm],
        "it could now take over at once",
    ),
    row(&[Warm], EventKind::Level, &[CatchingUp], "it fell behind"),
    row(
        &[CatchingUp, Warm],
        EventKind::Judged,
        &[FENCE],
        "the cluster is not paused, the node is not tagged nofailover, and better standbys have had their head start",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::Tick,
        &[FENCE],
        "the head start of better standbys is over",
    ),
    row(
        &[CatchingUp, Warm],
        EventKind::Vacant,
        &[FENCE],
        "an operator's order to the old active names this node",
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
        "its claim was given up, it needs other settings, or it is too far behind",
    ),
    row(
        &[FENCE],
        EventKind::Control,
        &[CatchingUp],
        "nothing has been changed yet, and no operator ordered the takeover",
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
        "the log is replayed up to that end",
    ),
    row(
        &[TakingOver(Promote)],
        EventKind::PhaseDone,
        &[Serving],
        "PostgreSQL is promoted",
    ),
    row(
        &[Serving],
        EventKind::StoreLost,
        &[Stalled],
        "writes wait, and nothing fails",
    ),
    row(
        &[Stalled],
        EventKind::StoreBack,
        &[Serving],
        "its epoch is still the highest",
    ),
    row(
        &[Serving],
        EventKind::RestartAsked,
        &[Restarting],
        "same epoch, same mount; its heartbeat continues, so no standby takes over",
    ),
    row(
        &[Restarting],
        EventKind::Restarted,
        &[Serving],
        "no recovery was needed",
    ),
    row(
        &[Serving],
        EventKind::FailoverAsked,
        &[HandingOver],
        "PostgreSQL stops cleanly, so that no recovery is needed",
    ),
    row(
        &[Stalled],
        EventKind::FailoverAsked,
        &[HandingOver],
        "only by force: PostgreSQL cannot stop cleanly, and is killed",
    ),
    row(
        &[Serving, Stalled, Restarting, HandingOver],
        EventKind::Superseded,
        &[Fenced],
        "it has been replaced: PostgreSQL stops at once",
    ),
    row(
        &[Serving, Stalled, Restarting, HandingOver],
        EventKind::Failed,
        &[Fenced, Discarding],
        "fenced, if it has been replaced; otherwise it leaves the volume to a standby",
    ),
    row(
        TAKING,
        EventKind::Superseded,
        &[Discarding],
        "another node was first",
    ),
    row(
        &[FENCE],
        EventKind::Superseded,
        &[CatchingUp],
        "another node was first, and nothing has been changed yet: the standby follows that node",
    ),
    row(
        &[FENCE],
        EventKind::Failed,
        &[CatchingUp],
        "it failed because another node was first",
    ),
    row(
        &[Warm],
        EventKind::Superseded,
        &[CatchingUp],
        "it follows the new active: everything that it has replayed is part of the new active's history",
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
        "it starts again from the beginning",
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
        "PostgreSQL never ran, and something about the machine must change first",
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
        "a standby reattaches; an active leaves the volume to a standby, if there is one",
    ),
    row(
        &[Fenced, Discarding, HandingOver],
        EventKind::Cleared,
        &[Looking],
        "it joins again, without a rewind or a base backup",
    ),
    row(
        &[Discarding],
        EventKind::Cleared,
        &[BackingOff],
        "it has failed before",
    ),
    row(
        &[BackingOff],
        EventKind::Tick,
        &[Looking],
        "it has waited long enough",
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
        "an active stops cleanly, and any other node at once",
    ),
    row(
        &[Stopping],
        EventKind::Cleared,
        &[Stopped],
        "nothing is left",
    ),
];

/// True if the table allows `from` to become `to` on `on`.
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
