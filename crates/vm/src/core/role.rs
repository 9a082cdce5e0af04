//! What a host can be, and by which rules it goes.

use super::flaw::Flaw;
use super::message::Session;
use super::record::{Number, Record};

/// How a host behaves.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Of two hosts that find no record, the one that is first boots the machine.
    pub first: bool,
    /// How long the active host may be silent before its standby takes over.
    pub silence_ms: u64,
    /// How long a standby may owe something before the active host runs without it: that it holds a checkpoint, or that it has taken
    /// over. Shorter than the silence.
    pub confirm_ms: u64,
    /// How long after a checkpoint was made, if the standby confirms it, the active host may be heard. Shorter than the silence: the
    /// standby heard of this checkpoint later than it was made, and does not take over before the silence is over.
    pub heard_ms: u64,
    /// How long the active host may make no checkpoint, because its disk or QEMU stands still, before its standby, which holds all that
    /// was let out, takes over.
    pub stuck_ms: u64,
    /// How long a host that was active before it was started anew waits for its standby to take over.
    pub patience_ms: u64,
    /// Between attempts at the zones.
    pub retry_ms: u64,
    /// The rule that does not hold.
    pub flaw: Option<Flaw>,
}

/// What a host is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It has no machine, and looks who has.
    Looking {
        /// What the record said when it was read last, if there is one.
        record: Option<Record>,
        /// Since when.
        since_ms: u64,
    },
    /// It applies the active host's checkpoints.
    Following {
        /// Which following.
        session: Session,
        /// The last checkpoint that was applied whole; none until the first one was.
        whole: Option<Number>,
        /// When it last heard of the active host.
        heard_ms: u64,
    },
    /// It claims the machine.
    Starting {
        /// What was applied last, if the machine shall run on; none if it is started from the disk.
        whole: Option<Number>,
    },
    /// It runs the machine.
    Running(Follower),
}

/// The standby of a host that runs the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follower {
    /// There is none, and the record says so.
    None,
    /// It is sent a copy; the record does not name it.
    Copying(Session),
    /// It holds checkpoints; the record is being made to name it, and may do so already.
    Naming(Session),
    /// The record names it.
    Current {
        /// Which following.
        session: Session,
        /// Since when it owes something, if it does.
        owes_ms: Option<u64>,
        /// When the last checkpoint was made.
        made_ms: u64,
        /// The last checkpoint, if the machine is being handed over.
        last: Option<Option<Number>>,
    },
    /// It is lost; the record may name it still.
    Lost {
        /// True if the machine stands still because it was to be handed over.
        stands_still: bool,
    },
}

impl Follower {
    /// Which following, unless there is none.
    pub fn session(&self) -> Option<&Session> {
        match self {
            Follower::Copying(session)
            | Follower::Naming(session)
            | Follower::Current { session, .. } => Some(session),
            Follower::None | Follower::Lost { .. } => None,
        }
    }
}
