//! Room that a volume takes on a replica, and the work that its clients make there.

use serde::{Deserialize, Serialize};

use crate::ids::VolumeName;

/// Counts what a volume's clients, all together, made a replica do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Blocks made durable.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Blocks looked for.
    pub reads: u64,
    /// Bytes of those that were found.
    pub read_bytes: u64,
    /// Times that somebody waited for what was written to be durable.
    pub syncs: u64,
}

impl Traffic {
    /// Adds what else was done.
    pub fn add(&mut self, more: &Traffic) {
        self.writes += more.writes;
        self.write_bytes += more.write_bytes;
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.syncs += more.syncs;
    }
}

/// A volume that shares blocks with another one: it is laid over it, below it, or over the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relative {
    /// Its name.
    pub volume: VolumeName,
    /// Bytes of its own blocks.
    pub used_bytes: u64,
}

/// Progress of a fill in a replica: of copying the image that a volume is laid over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The volume needs nothing of the volume below in this zone.
    pub done: bool,
    /// And it is known here that this holds in all zones ([`FILLED`](crate::layer::FILLED)).
    pub ended: bool,
    /// Versions of blocks of the volumes below that were looked at.
    pub looked: u64,
    /// Those that there are, about.
    pub all: u64,
}

/// Contents and work of one replica for a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Versions of blocks that are stored.
    pub blocks: u64,
    /// Bytes of them.
    pub used_bytes: u64,
    /// Since the replica's server was started.
    pub since_start: Traffic,
    /// In the last seconds.
    pub recent: Traffic,
    /// How long that is: about ten seconds, less after a start.
    pub recent_ms: u32,
    /// Versions of blocks that are stored because an image shows them, each with a newer one beside it.
    #[serde(default)]
    pub past_blocks: u64,
    /// The volumes that share blocks with it, in the order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relatives: Vec<Relative>,
    /// Of a volume that was laid over another one. A server of an older release does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<Fill>,
}

impl Usage {
    /// Blocks written each second, lately.
    pub fn writes_per_second(&self) -> f64 {
        self.per_second(self.recent.writes)
    }

    /// Blocks read each second, lately.
    pub fn reads_per_second(&self) -> f64 {
        self.per_second(self.recent.reads)
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / f64::from(self.recent_ms.max(1))
    }
}
