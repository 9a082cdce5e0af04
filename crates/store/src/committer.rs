//! The one thread that changes a zone: takes what all connections sent, decides, and commits it as
//! one batch.
//!
//! Invariants: requests of one connection take effect in their order; fence and put rule are decided
//! in the same step as the write; nothing is acknowledged, and no grant or record becomes visible,
//! before the fsync that covers it.
//!
//! ```text
//!   queue ─take all─▶ decide each ─▶ apply the batch ─┬─ somebody waits, 4 MiB or 20 ms ─▶ fsync ─▶ acks, replies
//!     ▲                                               └─ otherwise: visible to reads, acknowledged later
//!     └──────────────────── what arrives meanwhile makes the next batch ◀──────────────────┘
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use dax::ids::{BlockKey, Epoch};
use dax::replica::Fence;
use dax::storage::{EpochGrant, Retention};
use dax::wire::{BlockWrite, Response};

use crate::connection::Conn;
use crate::decide::error;
use crate::engine::{Batch, EngineError};
use crate::keys::{Slot, VolumeId, encode_block};
use crate::queue::Taken;
use crate::reads::ReadJob;
use crate::room::Room;
use crate::shared::{Shared, Work};
use crate::versions::Versions;
use crate::volume::Volume;

/// Slots whose versions are remembered; about 50 bytes each, twice.
const REMEMBERED_SLOTS: usize = 250_000;

/// The committer's own state.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    /// The fences as decided; the volumes show them once they are durable.
    pub(crate) fences: HashMap<VolumeId, Fence>,
    pub(crate) versions: Versions,
    pub(crate) room: Room,
    pub(crate) next_volume: u32,
    pub(crate) next_removal: u64,
    unsynced: Unsynced,
}

/// What was applied and waits for an fsync.
#[derive(Default)]
struct Unsynced {
    since: Option<Instant>,
    bytes: usize,
    acks: HashMap<u64, (Arc<Conn>, u64)>,
}

/// One batch while it is being decided.
#[derive(Default)]
pub(crate) struct Round {
    /// Blocks to set, or to remove; of two writes to a slot only the newer goes on.
    pub blocks: HashMap<Slot, Option<BlockWrite>>,
    /// `meta` keys to set, or to remove.
    pub metas: HashMap<Vec<u8>, Option<Bytes>>,
    pub bytes: usize,
    /// Somebody waits for the fsync.
    pub urgent: bool,
    /// The highest write number of each connection in this round.
    pub writes: HashMap<u64, (Arc<Conn>, u64)>,
    pub replies: Vec<(Arc<Conn>, u64, Response)>,
    pub grants: Vec<(Arc<Volume>, EpochGrant)>,
    pub retentions: Vec<(Arc<Volume>, Retention)>,
    pub promotes: Vec<(Epoch, ReadJob)>,
    pub candidates: HashMap<VolumeId, (Arc<Volume>, Vec<BlockKey>)>,
}

impl Round {
    /// Whether it changes nothing.
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.metas.is_empty() && self.writes.is_empty()
    }

    /// Puts the changes into a batch of the engine.
    fn fill(&mut self, batch: &mut Batch<'_>) {
        for (slot, write) in self.blocks.drain() {
            match write {
                Some(w) => batch.put(&slot, encode_block(w.version, w.checksum, &w.data)),
                None => batch.remove(&slot),
            }
        }
        for (key, value) in self.metas.drain() {
            match value {
                Some(value) => batch.put_meta(&key, value),
                None => batch.remove_meta(&key),
            }
        }
    }

    /// Notes a write that counts as received.
    pub fn received(&mut self, conn: &Arc<Conn>, number: u64) {
        let upto = &mut self
            .writes
            .entry(conn.id)
            .or_insert_with(|| (conn.clone(), number))
            .1;
        *upto = number.max(*upto);
    }
}

impl Committer {
    /// A committer for a zone as it was stored.
    pub fn new(shared: Arc<Shared>, next_removal: u64) -> Committer {
        let volumes = shared.volumes.all();
        Committer {
            fences: volumes
                .iter()
                .map(|v| (v.id, Fence::new(v.grant())))
                .collect(),
            next_volume: volumes.iter().map(|v| v.id.0 + 1).max().unwrap_or(1),
            next_removal,
            versions: Versions::new(REMEMBERED_SLOTS),
            room: Room::new(),
            unsynced: Unsynced::default(),
            shared,
        }
    }

    /// Works until the queue is closed and empty, then makes the rest durable.
    pub fn run(mut self) {
        let mut work = Vec::new();
        loop {
            let delay = self.shared.config.commit_delay;
            let deadline = self.unsynced.since.map(|at| at + delay);
            let done = match self.shared.queue.take(&mut work, deadline) {
                Taken::Some => self.commit(&mut work),
                Taken::TimedOut => self.sync(),
                Taken::Closed => {
                    if self.shared.failure().is_none() {
                        self.sync().unwrap_or_else(|e| self.shared.fail(&e));
                    }
                    return;
                }
            };
            if let Err(e) = done {
                return self.shared.fail(&e);
            }
        }
    }

    /// Decides and applies one batch, and makes it durable if somebody waits or enough has come.
    fn commit(&mut self, work: &mut Vec<Work>) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let mut round = Round::default();
        for item in work.drain(..) {
            self.decide(item, &mut round)?;
        }
        let now = Instant::now();
        self.unsynced.bytes += round.bytes;
        for (id, entry) in &round.writes {
            self.unsynced.acks.insert(*id, entry.clone());
        }
        if !round.is_empty() {
            self.unsynced.since.get_or_insert(now);
        }
        let overdue = |at: Instant| now.duration_since(at) >= shared.config.commit_delay;
        let due = round.urgent
            || self.unsynced.bytes >= shared.config.commit_bytes
            || self.unsynced.since.is_some_and(overdue);
        let mut batch = shared.engine.batch();
        round.fill(&mut batch);
        if due && self.unsynced.since.is_some() {
            batch.apply_durably()?;
        } else {
            batch.apply()?;
        }
        for (conn, upto) in round.writes.values() {
            conn.applied(*upto);
        }
        for (volume, keys) in round.candidates.into_values() {
            volume.add_candidates(keys);
        }
        if due {
            self.publish(round.grants, round.retentions);
            for (conn, id, reply) in round.replies {
                conn.send(id, reply);
            }
            self.acknowledge();
            for (epoch, job) in round.promotes {
                self.promote(epoch, job);
            }
        }
        Ok(())
    }

    /// Makes what was applied durable and acknowledges it.
    fn sync(&mut self) -> Result<(), EngineError> {
        if self.unsynced.since.is_some() {
            self.shared.engine.sync()?;
            self.acknowledge();
        }
        Ok(())
    }

    /// Everything applied is durable now.
    fn acknowledge(&mut self) {
        let Unsynced { acks, .. } = std::mem::take(&mut self.unsynced);
        for (conn, upto) in acks.into_values() {
            conn.acknowledge(upto);
        }
    }

    /// Shows durable grants and retentions, and tells those who are fenced by them.
    fn publish(
        &self,
        grants: Vec<(Arc<Volume>, EpochGrant)>,
        retentions: Vec<(Arc<Volume>, Retention)>,
    ) {
        for (volume, grant) in grants {
            tracing::info!(
                volume = %volume.name, epoch = %grant.epoch, owner = %grant.owner,
                "accepted an epoch"
            );
            volume.publish_grant(grant.clone());
            for conn in self.shared.conns.lock().values() {
                let same = conn.volume().is_some_and(|v| v.id == volume.id);
                let lower = Epoch::NONE < conn.announced() && conn.announced() < grant.epoch;
                if same && lower {
                    let grant = grant.clone();
                    conn.send(0, Response::Fenced { grant });
                }
            }
        }
        for (volume, retention) in retentions {
            volume.publish_retention(retention);
            self.shared.chores.prune(volume);
        }
    }

    /// Lets a promoting read go on: everything before it is durable. Its epoch is looked at again,
    /// because the same round may have fenced it.
    fn promote(&self, epoch: Epoch, job: ReadJob) {
        if let Err(e) = self.admit(&job.volume, epoch) {
            return job.conn.send(job.id, error(&e));
        }
        if let Some(job) = self.shared.reads.offer(job) {
            job.serve_for_others(&self.shared);
        }
    }
}
