//! What goes in and out of the core.

use std::time::Duration;

use bytes::Bytes;

use crate::error::Result;
use crate::forms::Forms;
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, ReplicaId, StoreId, Version};
use crate::membership::{Change, Membership};
use crate::sightings::Standing;
use crate::storage::{
    Authority, Block, Difference, EpochGrant, Retention, ScrubCursor, ScrubPage, Space, SyncScope,
    Usage,
};
use crate::wire::Request;

/// Time since some start that the driver chooses; never goes back.
pub(crate) type Time = Duration;

/// An operation in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(pub u64);

/// What a replica says of itself when a connection to it stands.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    /// The epoch that it has accepted.
    pub grant: EpochGrant,
    /// It does not count in quorums yet.
    pub rebuilding: bool,
    /// Which store it is; one of the version before does not say.
    pub store: Option<StoreId>,
    /// Who the volume's members are, as far as it knows.
    pub membership: Option<Box<Membership>>,
    /// Which forms its release knows: with those of 0.1 it takes writes that begin with what it has already.
    pub reads: Forms,
    /// How far it is, and what it was told of others; one of the version before does not say.
    pub standing: Option<Box<Standing>>,
}

/// Who asked a replica something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Op(OpId),
    Ping,
    Announcement,
    Members,
    Sightings,
    Back,
    Broadcast(u64),
}

/// What the driver must do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Send to a replica, after everything sent before.
    Send {
        replica: ReplicaId,
        id: u64,
        request: Request,
    },
    /// Close the connection to a replica; the core has taken it as down already.
    Disconnect { replica: ReplicaId, why: String },
    /// Keep a connection to this address for the replica from now on, instead of an earlier one.
    Dial { replica: ReplicaId, address: String },
    /// Keep no connection for the replica any more; what was sent before still goes out.
    HangUp { replica: ReplicaId },
    /// An operation is complete.
    Done { op: OpId, result: Result<Output> },
    /// This writer must stop: a higher epoch exists, or it cannot trust its own memory. Sent once.
    Fenced { why: String },
}

pub(crate) type Effects = Vec<Effect>;

/// What an operation gives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    Unit,
    Block(Option<Block>),
    Epoch(Epoch),
    Grant(EpochGrant),
    Record(Option<Bytes>),
    Records(Vec<(String, Bytes)>),
    Space(Space),
    Usage(Vec<(ReplicaId, Usage)>),
    Scrubbed(ScrubPage),
    Rebuilt(Vec<ReplicaId>),
    /// True if an exchange of members ended.
    Ended(bool),
}

/// What a caller wants; see [`crate::storage::Storage`] for each.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Room(usize),
    Sync(SyncScope),
    Read {
        key: BlockKey,
        up_to: Generation,
    },
    ReadExpected {
        key: BlockKey,
        up_to: Generation,
        version: Version,
    },
    Promote(BlockKey),
    AcceptedEpoch,
    Confirm,
    OwnEpoch {
        owner: String,
    },
    PutRecord {
        name: String,
        value: Option<Bytes>,
        authority: Authority,
    },
    GetRecord(String),
    PromoteRecord(String),
    ListRecords(String),
    Retain(Retention),
    RemoveFiles(Vec<FileId>),
    RemoveBlocksBefore(FileId, BlockIndex),
    Scrub(Option<ScrubCursor>),
    Mend(Vec<Difference>),
    EndScrub,
    ChangeMembers(Change),
    CancelChange,
    FinishChange,
    Space,
    Usage,
}

/// Settings of the core.
#[derive(Debug, Clone)]
pub(crate) struct CoreConfig {
    /// One per replica, in order; not used if the members are known.
    pub addresses: Vec<String>,
    /// The members, if they are recorded.
    pub membership: Option<Membership>,
    pub pending_bytes_max: usize,
    pub version_list_max: usize,
    /// How often the stores are told of each other.
    pub sightings_every: Time,
    /// A replica that is silent for so long is taken as down.
    pub replica_timeout: Time,
}
