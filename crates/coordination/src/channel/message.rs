//! What agents say to each other.

use dax::ids::{Epoch, Generation, NodeName, VolumeName};
use pgdata::feed::RowsNeeded;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use crate::records::Incarnation;

/// The version of these messages; peers must agree.
pub(super) const VERSION: u16 = 1;

/// Who this agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its node.
    pub node: NodeName,
    /// The volume it works for.
    pub volume: VolumeName,
    /// Which life of it this is.
    pub incarnation: Incarnation,
}

/// Who answered.
pub type Peer = Identity;

/// How far the active is: what moves a standby's horizon. The latest replaces earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// The active's epoch.
    pub epoch: Epoch,
    /// The end of the log that k replicas hold.
    pub synced_lsn: Lsn,
    /// The journal up to here is durable (a `JournalPos`).
    pub journal_synced: u64,
    /// PostgreSQL's timeline.
    pub timeline: u32,
    /// How often its PostgreSQL was started again in this epoch: its settings may be larger since. What
    /// such a server wrote is announced with this number only.
    #[serde(default)]
    pub starts: u32,
}

/// What the active tells at once and only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "notice")]
pub enum Notice {
    /// It stops serving on purpose.
    Bye {
        /// The epoch that ends.
        epoch: Epoch,
        /// In words.
        reason: String,
        /// Who was asked to take over.
        to: Option<NodeName>,
    },
    /// Its PostgreSQL died.
    PostgresDead {
        /// The epoch that ends.
        epoch: Epoch,
        /// In words.
        detail: String,
    },
    /// A new generation was sealed: standbys may move their base.
    Sealed {
        /// The epoch that sealed.
        epoch: Epoch,
        /// The generation; its seal is in the registry.
        generation: Generation,
    },
}

/// How far a standby is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The end of the log that its PostgreSQL was given.
    pub received: Lsn,
    /// The end of the log that its PostgreSQL has replayed.
    pub applied: Lsn,
    /// The end of the log that it may be given.
    pub horizon: Lsn,
    /// Whether it could take over at once.
    pub warm: bool,
    /// The rows that its queries may still read, which vacuum on the active shall keep, if it wants so
    /// (`[standby] feedback`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<RowsNeeded>,
}

/// What the command line, or another agent, asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request")]
pub enum Request {
    /// How are you? The answer is a JSON object.
    Status,
    /// Take over (asked of a standby), or hand over to `to` (asked of the active).
    Failover {
        /// The node that shall become the active; any, if `None`.
        to: Option<NodeName>,
        /// Do not wait for the old active's cooperation.
        force: bool,
    },
    /// Become a standby (asked of a spare).
    Enlist,
    /// Start PostgreSQL anew: a standby attaches afresh, the active restarts it in place.
    Restart,
    /// Attach afresh, and forget what the mount has in memory (asked of a standby).
    Reinitialize,
    /// Read the configuration files again. The active answers how far its journal is durable; a
    /// standby does it as soon as it has followed the journal to there.
    Reload {
        /// A `JournalPos`.
        #[serde(default)]
        journal: u64,
    },
    /// Anything a later version adds; refused by name.
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

/// A frame's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub(super) enum Message {
    Hello {
        version: u16,
        me: Identity,
        wants: Wants,
        /// Whether a subscriber takes the log along with the triggers.
        #[serde(default)]
        log: bool,
    },
    Welcome {
        me: Identity,
    },
    Refused {
        why: String,
    },
    /// A part of the log follows, not in JSON: all of it is durable, and the next trigger says so.
    Log {
        epoch: Epoch,
        at: Lsn,
        bytes: u32,
    },
    Trigger(Trigger),
    Notice(Notice),
    Progress(Progress),
    Request(Request),
    Answer {
        answer: serde_json::Value,
    },
    Ping,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wants {
    Triggers,
    Answer,
    /// A session on the agent's PostgreSQL: what follows the welcome is PostgreSQL's protocol.
    Session,
}
