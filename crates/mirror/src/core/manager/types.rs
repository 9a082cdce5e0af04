//! What a manager goes by, what it can be, and what it wants done.

use serde::{Deserialize, Serialize};

use super::super::flaw::Flaw;
use super::super::record::{Number, Record};
#[cfg(doc)]
use super::Manager;
use super::Message;

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitAck {
    /// The log is durable, and both members have committed. A standby that is lost or too far behind does not count.
    #[default]
    Both,
    /// The log is durable, and the primary's member has committed.
    #[serde(alias = "logged")]
    Durable,
}

/// What a manager goes by.
#[derive(Debug, Clone)]
pub struct Rules {
    /// When a commit is acknowledged.
    pub commit_ack: CommitAck,
    /// How long a primary may say nothing before it is taken for lost, in milliseconds.
    pub timeout_ms: u64,
    /// How long after the zones have confirmed it a primary's epoch is taken to stand, in milliseconds; below the timeout.
    pub lease_ms: u64,
    /// How much longer this manager waits than the other one, so that they do not take each other's epoch when both begin.
    pub patience_ms: u64,
    /// Records that a standby may lack before it is none any more.
    pub lag_records: u64,
    /// Records that a standby is sent before it has applied the first of them.
    pub window_records: u64,
    /// Records that the log keeps for a member that is away.
    pub retain_records: u64,
    /// Its member is the only one: nothing is logged.
    pub is_single: bool,
    pub(crate) flaw: Option<Flaw>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            commit_ack: CommitAck::Both,
            timeout_ms: 3_000,
            lease_ms: 1_000,
            patience_ms: 0,
            lag_records: 10_000,
            window_records: 1_000,
            retain_records: 1_000_000,
            is_single: false,
            flaw: None,
        }
    }
}

/// Which life of its member's server a manager has to do with: from one time that it was told what the member has until
/// the member was lost. What a session says counts only in the life that it belongs to, because a server that crashed has
/// lost what it had committed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Life(pub u64);

/// Why a manager is recovering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It has just begun, or hears of no primary.
    Starting,
    /// Its member does not answer.
    NoMember,
    /// It is sent what it lacks.
    CatchingUp,
    /// It owns the epoch, and applies the rest of the log.
    TakingOver,
    /// The log does not have any more what its member lacks: its state must be transferred.
    Behind,
    /// Its member answered differently. Only an operator knows which of both is right, so nothing is replaced.
    Diverged,
    /// Its member has what the log has never had: it is the log of another mirror, or one that has lost something. As above.
    Ahead,
    /// Its member belongs to another log. As above.
    Foreign,
    /// It was primary, and is not any more.
    Replaced,
    /// It is to serve its member singly, and that belongs to a mirror.
    Mirrored,
    /// Its member has something, and nothing says that it is of this mirror. As above.
    Occupied,
}

impl Why {
    /// True if an operator has to decide what becomes of the member.
    pub fn is_set_aside(self) -> bool {
        matches!(
            self,
            Why::Diverged | Why::Ahead | Why::Foreign | Why::Occupied
        )
    }
}

/// Which state a manager is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", content = "why", rename_all = "snake_case")]
pub enum Role {
    /// It serves clients.
    Primary,
    /// Its member has what the primary's has, but for the last moments.
    Standby,
    /// It serves clients of the only member, and logs nothing.
    Single,
    /// None of these.
    Recovering(Why),
}

impl Role {
    /// True if it is one in which clients are served.
    pub fn serves(self) -> bool {
        matches!(self, Role::Primary | Role::Single)
    }
}

/// What a manager wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Find out where the log begins, and which it is: [`Manager::log_begins`].
    LookAtLog,
    /// Own the next epoch: [`Manager::owned`] or [`Manager::not_owned`].
    Own,
    /// Read the log from its beginning, promoting it: [`Manager::log_is`], [`Manager::log_records`], [`Manager::log_ends`]. If it does
    /// not say which it is, it is named at last, as [`Manager::names`] says.
    ReadLog,
    /// Give the epoch up.
    Release,
    /// Ask the zones whether the epoch stands: [`Manager::confirmed`] or [`Manager::fenced`].
    Confirm(u32),
    /// Let clients in.
    Serve,
    /// End all clients' sessions: what was not acknowledged is unknown to them.
    Unserve,
    /// Make these records durable, together: [`Manager::durable`] or [`Manager::fenced`].
    Append(Vec<Record>),
    /// The record is in the log.
    Logged(Number),
    /// It is acknowledged: whoever has committed it is told so.
    Answer(Number),
    /// Execute this on the member in a transaction of its own, unless the member has its number already:
    /// [`Manager::applied`] or [`Manager::differs`].
    Apply(Record),
    /// Remember in the member that it must not be used.
    MarkDiverged,
    /// Tell the other manager.
    Send(Message),
    /// Read durable records from this one on, for the other manager: [`Manager::read_for_peer`].
    ReadForPeer(Number),
    /// Nobody needs records before this one.
    Trim(Number),
}
