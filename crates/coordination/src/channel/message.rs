//! What agents say to each other.

use std::time::Duration;

use dax::ids::{Epoch, Generation, NodeName, StoreId, VolumeName};
use pgdata::feed::RowsNeeded;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::holding::HoldOrder;
use crate::address::Address;
use crate::records::{Horizon, Incarnation};

/// The version of these messages; peers must agree.
pub(super) const VERSION: u16 = 1;
/// A connection that says nothing for this long gets a [`Message::Ping`].
pub(super) const PING_EVERY: Duration = Duration::from_secs(1);
/// A peer that says nothing for this long is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// Who this agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Node that the sender is, or whose configuration it uses.
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
    /// Proxies send reads to standbys that have replayed far enough: a standby is to tell soon how far it is.
    #[serde(default)]
    pub proxied: bool,
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

/// When a server's postmaster started, in microseconds since 1970: it tells one run of a server from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerStarted(pub i64);

/// How far a standby is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The end of the log that its PostgreSQL was given.
    pub received: Lsn,
    /// The end of the log that its PostgreSQL has replayed.
    pub applied: Lsn,
    /// The end of the log that it may be given.
    pub horizon: Lsn,
    /// True if it could take over at once.
    pub warm: bool,
    /// The rows that its queries may still read, which vacuum on the active shall keep, if it wants so
    /// (`[standby] feedback`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<RowsNeeded>,
    /// The run of its PostgreSQL that has replayed that, once it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<ServerStarted>,
}

/// An active, as proxies must know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Epoch in which the node serves.
    pub epoch: Epoch,
    /// Node that serves.
    pub node: NodeName,
    /// Where clients reach its PostgreSQL.
    pub postgres: Address,
    /// The horizons of the last epochs, its own among them, in order: every one that gave out transaction ids.
    pub horizons: Vec<Horizon>,
    /// The run of its PostgreSQL: a server at this address that was started at another time serves in another epoch, or was
    /// restarted in this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<ServerStarted>,
}

/// A standby, as proxies must know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbySeen {
    /// Node that the standby runs on.
    pub node: NodeName,
    /// Where clients reach its PostgreSQL.
    pub postgres: Address,
    /// The end of the log that it has replayed, at least.
    pub applied: Lsn,
    /// True if it is level with the active.
    pub warm: bool,
    /// The run of its PostgreSQL that has replayed that: another run may be behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<ServerStarted>,
}

/// What a proxy tells of itself, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProxyReport {
    /// Where its clients reach it.
    pub listen: String,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that wait for a server, or for the end of a hold.
    pub waiting: u64,
    /// Queries, and batches of the extended protocol, that the active answered.
    pub on_active: u64,
    /// Those that standbys answered.
    pub on_standbys: u64,
    /// Transactions that were run again on another server, unnoticed.
    pub replayed: u64,
    /// Commits whose answer did not come.
    pub in_doubt: u64,
    /// Those of them that had committed.
    pub in_doubt_committed: u64,
    /// Those of which nobody could tell.
    pub in_doubt_unknown: u64,
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
    /// Exchange zones: these join, and those leave (asked of the active). Answered once that is recorded.
    Exchange {
        /// Those that come.
        joining: Vec<dax::membership::Member>,
        /// Those that go.
        leaving: Vec<StoreId>,
        /// Copies that make a write durable afterwards.
        sync_replicas: u8,
    },
    /// Give up the exchange of zones that is under way (asked of the active).
    CancelExchange,
    /// One of these two orders, for the zones of a volume that the active owns: the database's own, one that it has left, or one that it
    /// lies over.
    InVolume {
        /// Name of the volume.
        volume: VolumeName,
        /// The order.
        order: Box<Request>,
    },
    /// Write a checkpoint now, if much log was written since the last one (asked of the active). Answered once its image is sealed.
    Checkpoint,
    /// Allow everything to be written that this release knows, if every node reads it (asked of the active).
    FinishUpgrade,
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
        /// True if a subscriber takes the log along with the triggers.
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
    /// How far is the log durable, with proof?
    Ask {
        number: u64,
        /// And how much of it does the active show?
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shown: bool,
    },
    Position {
        number: u64,
        epoch: Epoch,
        durable: Lsn,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<Lsn>,
    },
    NoPosition {
        number: u64,
        why: String,
    },
    /// Who serves here, if somebody does.
    Serving {
        serving: Option<Serving>,
    },
    Standbys {
        epoch: Epoch,
        standbys: Vec<StandbySeen>,
    },
    Hold(HoldOrder),
    Resume {
        epoch: Epoch,
        number: u64,
    },
    /// No transaction is open any more, and none begins.
    Drained {
        number: u64,
    },
    Proxy(ProxyReport),
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
    /// What a proxy must know, and answers to what it asks.
    Proxy,
}
