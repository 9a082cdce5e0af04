//! Status of a handle to a volume's storage and of its replicas, for people and metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::forms::Forms;
use crate::ids::{ReplicaId, StoreId, ZoneId};

/// How a replica looks from this client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Which replica.
    pub replica: ReplicaId,
    /// The zone it is in.
    pub zone: ZoneId,
    /// Its address as configured.
    pub address: String,
    /// Which store answered there last, if one did and said so.
    pub store: Option<StoreId>,
    /// True if a connection stands.
    pub up: bool,
    /// A recent round trip, if one was measured.
    pub round_trip: Option<Duration>,
    /// Bytes written but not yet acknowledged by this replica.
    pub pending_bytes: u64,
    /// Blocks that it is known to lack, about; they are sent in the background.
    pub missed_blocks: u64,
    /// It missed more than could be remembered: only a scrub finds it.
    pub scrub_wanted: bool,
    /// It lost what it had and is being brought up to date: it counts in no quorum until then.
    pub rebuilding: bool,
    /// Which forms of what is stored its release knows, if it was met ([`Forms`]).
    #[serde(default)]
    pub reads: Option<Forms>,
    /// It refuses blocks, because there is no room for them.
    #[serde(default)]
    pub full: bool,
    /// Why the replica is down or refuses writes, if it does.
    pub trouble: Option<String>,
}

/// Counts what a handle did since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageCounters {
    /// Blocks written.
    pub writes: u64,
    /// Sync points completed.
    pub syncs: u64,
    /// Reads answered from `sync_pending`.
    pub reads_pending: u64,
    /// Reads answered by one replica.
    pub reads_one: u64,
    /// Answers of one replica that were stale and retried at another one (DAX 3.1).
    pub reads_stale: u64,
    /// Reads that asked a quorum after stale answers (DAX 3.1).
    pub reads_escalated: u64,
    /// Reads answered by a quorum.
    pub reads_quorum: u64,
    /// Reads that promoted a version into the current epoch (DAX 5).
    pub reads_promoted: u64,
    /// Copies that were compared by a scrub.
    pub copies_scrubbed: u64,
    /// Copies that a scrub found damaged.
    pub copies_damaged: u64,
    /// Blocks sent to a replica that had missed them, or had a damaged copy.
    pub copies_mended: u64,
    /// Blocks sent as what follows a beginning that replicas had, and those that had to be sent as a whole then.
    pub writes_onto: u64,
    /// See [`writes_onto`](Self::writes_onto).
    pub bases_missed: u64,
}
