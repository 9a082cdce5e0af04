//! Every transition that a node can make, with its reason: for readers, documents and tests.
//!
//! An event that is not listed for a state leaves the state as it is. Where two targets are given,
//! the machine went through the first one in the same step (a wait that was already over).

use std::fmt::Write;

use super::Event;
use super::Phase::{Fence, LogTail, Promote, Replay};
use super::State::{
    self, Active, Attaching, Backoff, CatchingUp, Discarding, Fenced, HandingOver, Spare, Stalled,
    Standby, Starting, Stopped, Stopping, TakingOver,
};

/// The kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the event of the same name")]
pub enum EventKind {
    Tick,
    Leader,
    Better,
    Attached,
    AttachFailed,
    CaughtUp,
    FellBehind,
    MustReattach,
    EpochOwned,
    EpochLost,
    PhaseDone,
    PhaseFailed,
    StoreLost,
    StoreBack,
    Fenced,
    PostgresExited,
    WarmStandbys,
    FailoverRequested,
    Enlist,
    Stop,
}

impl From<&Event> for EventKind {
    fn from(event: &Event) -> EventKind {
        match event {
            Event::Tick => EventKind::Tick,
            Event::Leader(_) => EventKind::Leader,
            Event::Better(_) => EventKind::Better,
            Event::Attached => EventKind::Attached,
            Event::AttachFailed { .. } => EventKind::AttachFailed,
            Event::CaughtUp => EventKind::CaughtUp,
            Event::FellBehind => EventKind::FellBehind,
            Event::MustReattach { .. } => EventKind::MustReattach,
            Event::EpochOwned(_) => EventKind::EpochOwned,
            Event::EpochLost => EventKind::EpochLost,
            Event::PhaseDone(_) => EventKind::PhaseDone,
            Event::PhaseFailed { .. } => EventKind::PhaseFailed,
            Event::StoreLost => EventKind::StoreLost,
            Event::StoreBack => EventKind::StoreBack,
            Event::Fenced => EventKind::Fenced,
            Event::PostgresExited { .. } => EventKind::PostgresExited,
            Event::WarmStandbys(_) => EventKind::WarmStandbys,
            Event::FailoverRequested { .. } => EventKind::FailoverRequested,
            Event::Enlist => EventKind::Enlist,
            Event::Stop => EventKind::Stop,
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
const OWNING: &[State] = &[
    TakingOver(LogTail),
    TakingOver(Replay),
    TakingOver(Promote),
    Active,
    Stalled,
    HandingOver,
];

/// All transitions.
pub const TRANSITIONS: &[Transition] = &[
    row(
        &[Starting],
        EventKind::Leader,
        &[Attaching],
        "the registry answered; every start is an attach",
    ),
    row(&[Starting], EventKind::Leader, &[Spare], "tagged as spare"),
    row(
        &[Spare],
        EventKind::Enlist,
        &[Attaching],
        "a standby is needed (re-protection)",
    ),
    row(
        &[Spare],
        EventKind::Leader,
        &[Attaching],
        "nobody has served for `spare_wait`",
    ),
    row(
        &[Spare],
        EventKind::Tick,
        &[Attaching],
        "nobody has served for `spare_wait`",
    ),
    row(
        &[Attaching],
        EventKind::Attached,
        &[CatchingUp, FENCE],
        "PostgreSQL replays; takes over at once if nobody serves",
    ),
    row(
        &[Attaching],
        EventKind::AttachFailed,
        &[Backoff],
        "tries again; the first time at once",
    ),
    row(
        &[CatchingUp],
        EventKind::CaughtUp,
        &[Standby, FENCE],
        "level with the active",
    ),
    row(
        &[Standby],
        EventKind::FellBehind,
        &[CatchingUp, FENCE],
        "no longer level",
    ),
    row(
        &[CatchingUp, Standby],
        EventKind::MustReattach,
        &[Discarding],
        "its private state leads nowhere",
    ),
    row(
        &[CatchingUp, Standby],
        EventKind::Leader,
        &[FENCE],
        "nobody serves, and it is this node's turn",
    ),
    row(
        &[CatchingUp, Standby],
        EventKind::Tick,
        &[FENCE],
        "its turn has come",
    ),
    row(
        &[CatchingUp, Standby],
        EventKind::FailoverRequested,
        &[FENCE],
        "an operator asks for it",
    ),
    row(
        &[FENCE],
        EventKind::EpochOwned,
        &[TakingOver(LogTail)],
        "the old writer is fenced",
    ),
    row(
        &[FENCE],
        EventKind::EpochLost,
        &[CatchingUp, Standby],
        "somebody else won: follows them",
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
        "replayed to the end",
    ),
    row(
        &[TakingOver(Promote)],
        EventKind::PhaseDone,
        &[Active],
        "promoted",
    ),
    row(
        &[
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
        ],
        EventKind::PhaseFailed,
        &[Discarding],
        "attaches afresh; somebody else may be luckier meanwhile",
    ),
    row(
        &[Active],
        EventKind::StoreLost,
        &[Stalled],
        "writes wait, nothing fails",
    ),
    row(
        &[Stalled],
        EventKind::StoreBack,
        &[Active],
        "its epoch still stands",
    ),
    row(
        OWNING,
        EventKind::Fenced,
        &[Fenced],
        "a higher epoch exists: PostgreSQL stops at once",
    ),
    row(
        &[Active],
        EventKind::FailoverRequested,
        &[HandingOver],
        "a clean stop, so that nothing is to be recovered",
    ),
    row(
        &[
            Attaching,
            CatchingUp,
            Standby,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
            Active,
            Stalled,
            HandingOver,
        ],
        EventKind::PostgresExited,
        &[Backoff, Attaching],
        "every restart is a fresh attach, after a wait if it keeps failing",
    ),
    row(
        &[Fenced, Discarding],
        EventKind::PostgresExited,
        &[Attaching],
        "joins as a standby: no rewind, no base backup",
    ),
    row(
        &[Backoff],
        EventKind::Tick,
        &[Attaching],
        "waited long enough",
    ),
    row(
        &[Backoff],
        EventKind::Leader,
        &[Attaching],
        "waited long enough",
    ),
    row(
        &[
            Starting,
            Spare,
            Attaching,
            CatchingUp,
            Standby,
            FENCE,
            TakingOver(LogTail),
            TakingOver(Replay),
            TakingOver(Promote),
            Active,
            Stalled,
            HandingOver,
            Fenced,
            Discarding,
            Backoff,
        ],
        EventKind::Stop,
        &[Stopping],
        "an active stops cleanly, everybody else at once",
    ),
    row(
        &[Stopping],
        EventKind::PostgresExited,
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
    let mut text = String::from("| in | on | becomes | because |\n|---|---|---|---|\n");
    for t in TRANSITIONS {
        let names = |states: &[State]| {
            let names: Vec<String> = states.iter().map(State::to_string).collect();
            names.join(", ")
        };
        let (from, to) = (names(t.from), names(t.to));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {from} | {:?} | {to} | {} |", t.on, t.why);
    }
    text
}
