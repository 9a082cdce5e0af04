//! What changes a zone, used by one thread at a time ([`crate::commits`]): takes what all connections sent,
//! decides, and commits it as one batch.
//!
//! Invariants: requests of one connection take effect in their order; fence and put rule are decided
//! in the same step as the write; nothing becomes visible to reads, is acknowledged or answered before
//! the fsync that covers it. So at most one batch is ever written and not yet durable, and a crash can
//! tear the last one only.
//!
//! ```text
//!   queue ─ a share ──▶ decide each ─▶ round ─ somebody waits, 4 MiB or 20 ms ─▶ one batch, one fsync
//!     ▲  of each volume                                                            │
//!     │ what arrives meanwhile makes the next round               visible, acks, replies
//! ```
//!
//! A round takes a bounded share of each volume that has work waiting ([`crate::lanes`]): what a
//! tenant flushes is durable with this round or the next, whatever others have queued.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use dax::forms::Forms;
use dax::ids::{BlockKey, Epoch};
use dax::layer::{FILL, FILLED};
use dax::membership::Membership;
use dax::replica::{Fence, WriteLink};
use dax::sightings::Sightings;
use dax::storage::{EpochGrant, Retention, Traffic};
use dax::wire::{BlockWrite, Response};

use crate::connection::Conn;
use crate::decide::error;
use crate::engine::{Batch, EngineError};
use crate::keys::{Slot, VolumeId, encode_block};
use crate::meta::{self, Forgiven, Removal};
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
    /// On which connection each volume's writes come.
    pub(crate) links: HashMap<VolumeId, WriteLink>,
    pub(crate) versions: Versions,
    pub(crate) room: Room,
    pub(crate) next_volume: u32,
    pub(crate) next_removal: u64,
    /// Volumes of which slots could not be dropped, because nobody could tell whether they are there.
    pub(crate) undone: HashSet<VolumeId>,
    /// Wrong on purpose: it does not look at them.
    #[cfg(test)]
    pub(crate) undone_forgotten: bool,
    /// Wrong on purpose: a write is put behind whatever is there; one whose beginning cannot be read is refused for that.
    #[cfg(test)]
    pub(crate) base_believed: bool,
    #[cfg(test)]
    pub(crate) base_holds_up: bool,
    round: Round,
    /// The work of a step; empty between steps, kept for its memory.
    work: Vec<Work>,
    /// The engine failed: nothing is decided any more.
    failed: bool,
    /// Memory that frames are cut from.
    scratch: BytesMut,
}

/// What was decided and is not committed yet.
#[derive(Default)]
pub(crate) struct Round {
    /// When its first work was decided.
    since: Option<Instant>,
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
    pub memberships: Vec<(Arc<Volume>, Box<Membership>)>,
    pub sightings: Vec<(Arc<Volume>, Arc<Sightings>)>,
    /// Forms that may be in volumes from now on.
    pub forms: Vec<(Arc<Volume>, Forms)>,
    /// Volumes that may have a record of their fill now, and those that are filled.
    pub fillings: Vec<(Arc<Volume>, &'static str)>,
    pub filled: Vec<Arc<Volume>>,
    /// Volumes that lack what this store had acknowledged.
    pub went_back: Vec<(Arc<Volume>, Forgiven)>,
    /// Volumes that are complete again.
    pub rebuilt: Vec<Arc<Volume>>,
    pub promotes: Vec<(Epoch, ReadJob)>,
    /// Begun once the writes before them can be found.
    pub removals: Vec<(Arc<Volume>, u64, Removal)>,
    /// Volumes that are gone.
    pub removed: Vec<Arc<Volume>>,
    pub touched: HashMap<VolumeId, Touched>,
}

/// What a round does to a volume as a whole.
pub(crate) struct Touched {
    volume: Arc<Volume>,
    /// Slots that come, less those that go.
    pub slots: i64,
    /// Blocks that get a version which a retention may drop.
    pub candidates: Vec<BlockKey>,
    /// What it makes durable.
    pub written: Traffic,
}

impl Touched {
    fn slots_after(&self) -> u64 {
        self.volume.slots().saturating_add_signed(self.slots)
    }
}

impl Round {
    /// True if it changes nothing that is stored.
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.metas.is_empty()
    }

    /// Puts the changes into a batch of the engine.
    fn fill(&mut self, batch: &mut Batch) {
        let counted = |t: &&Touched| t.slots != 0 && !t.volume.is_removed();
        for touched in self.touched.values().filter(counted) {
            let count = touched.slots_after().to_be_bytes().to_vec();
            batch.put_meta(&meta::slots_key(touched.volume.id), count.into());
        }
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

    /// Notes a record, if it is one of a fill.
    pub fn filling(&mut self, volume: &Arc<Volume>, record: &str) {
        let found = [FILL, FILLED].into_iter().find(|name| *name == record);
        self.fillings
            .extend(found.map(|name| (volume.clone(), name)));
    }

    /// The volume is removed, and what the round wrote into it.
    pub fn forget(&mut self, volume: VolumeId) {
        self.blocks.retain(|slot, _| slot.volume != volume);
        self.touched.remove(&volume);
    }

    /// What the round does to `volume`.
    pub fn touch(&mut self, volume: &Arc<Volume>) -> &mut Touched {
        self.touched.entry(volume.id).or_insert_with(|| Touched {
            volume: volume.clone(),
            slots: 0,
            candidates: Vec::new(),
            written: Traffic::default(),
        })
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
            links: HashMap::new(),
            next_volume: {
                let ids = volumes.iter().map(|volume| volume.id);
                let ids = ids.chain(shared.volumes.removed_ids());
                ids.map(|id| id.0 + 1).max().unwrap_or(1)
            },
            next_removal,
            undone: HashSet::new(),
            #[cfg(test)]
            undone_forgotten: false,
            #[cfg(test)]
            base_believed: false,
            #[cfg(test)]
            base_holds_up: false,
            versions: Versions::new(REMEMBERED_SLOTS),
            room: Room::new(),
            round: Round::default(),
            work: Vec::new(),
            failed: false,
            scratch: BytesMut::new(),
            shared,
        }
    }

    /// When what was decided has to be committed.
    pub fn deadline(&self) -> Option<Instant> {
        let delay = self.shared.config.commit_delay;
        self.round.since.map(|at| at + delay)
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// Takes a share of the work and does it, and commits what is due.
    pub fn step(&mut self) -> Result<Taken, EngineError> {
        if self.failed {
            return Ok(Taken::Closed);
        }
        let mut work = std::mem::take(&mut self.work);
        let taken = self.shared.queue.take(&mut work);
        let done = match taken {
            Taken::Some { more } => self.decide_all(&mut work, more),
            Taken::Nothing if self.is_overdue(Instant::now()) => self.commit(),
            Taken::Nothing => Ok(()),
            Taken::Closed if self.shared.failure().is_none() => self.commit(),
            Taken::Closed => Ok(()),
        };
        self.work = work;
        self.failed = done.is_err();
        done.map(|()| taken)
    }

    /// A step that leaves nothing uncommitted.
    pub fn round(&mut self) -> Result<(), EngineError> {
        self.step()?;
        if self.failed || self.round.since.is_none() {
            return Ok(());
        }
        let done = self.commit();
        self.failed = done.is_err();
        done
    }

    /// Decides what was taken, and commits if somebody waits or enough has come; `more` than could
    /// be taken is enough.
    fn decide_all(&mut self, work: &mut Vec<Work>, more: bool) -> Result<(), EngineError> {
        let mut round = std::mem::take(&mut self.round);
        let now = Instant::now();
        for item in work.drain(..) {
            self.decide(item, &mut round)?;
        }
        round.since.get_or_insert(now);
        let enough = more || round.bytes >= self.shared.config.commit_bytes;
        let urgent = round.urgent;
        self.round = round;
        match urgent || enough || self.is_overdue(now) {
            true => self.commit(),
            false => Ok(()),
        }
    }

    /// Makes the round durable, then visible, then known.
    fn commit(&mut self) -> Result<(), EngineError> {
        let mut round = std::mem::take(&mut self.round);
        let shared = self.shared.clone();
        if !round.is_empty() {
            let mut batch = Batch::default();
            round.fill(&mut batch);
            shared.engine.commit(batch)?;
            shared.checkpoints.consider(&shared);
        }
        let commit = shared.engine.last_commit();
        for touched in round.touched.into_values() {
            touched.volume.publish_slots(touched.slots_after());
            touched.volume.count(&touched.written);
            touched.volume.add_candidates(touched.candidates);
        }
        for (conn, upto) in round.writes.into_values() {
            conn.applied(upto);
            conn.acknowledge(upto, commit, &mut self.scratch);
        }
        for (volume, record) in round.fillings {
            volume.fill.publish(record);
        }
        for volume in round.filled {
            tracing::info!(volume = %volume.name, "filled: it needs nothing of the volume below in this zone");
            volume.fill.set_done(true);
        }
        for (volume, forgiven) in round.went_back {
            tracing::warn!(
                volume = %volume.name,
                "this directory holds an earlier state: this zone's copy of the volume does not count until it is \
                 rebuilt"
            );
            volume.publish_went_back(forgiven);
        }
        for volume in round.rebuilt {
            tracing::info!(volume = %volume.name, "rebuilt");
            volume.publish_rebuilt();
        }
        for (volume, forms) in round.forms {
            volume.publish_forms(forms);
        }
        self.publish(round.grants, round.retentions);
        self.publish_members(round.memberships);
        self.publish_sightings(round.sightings);
        let answered: HashSet<u64> = match round.removed.is_empty() {
            true => HashSet::new(),
            false => round.replies.iter().map(|(conn, ..)| conn.id).collect(),
        };
        for (conn, id, reply) in round.replies {
            conn.send(id, reply);
        }
        for volume in round.removed {
            self.end(&volume, &answered);
        }
        for (volume, number, removal) in round.removals {
            shared.tasks.remove(volume, number, removal);
        }
        for (epoch, job) in round.promotes {
            self.promote(epoch, job);
        }
        // Everybody has been told.
        shared.engine.settle()
    }

    /// Ends a volume that is removed durably, with its connections: what was read there after its blocks have gone would be
    /// taken for absent.
    fn end(&self, volume: &Volume, answered: &HashSet<u64>) {
        tracing::info!(volume = %volume.name, "the volume was removed");
        self.shared.volumes.remove(volume);
        for conn in self.shared.conns.lock().values() {
            let same = conn.volume().is_some_and(|v| v.id == volume.id);
            match answered.contains(&conn.id) {
                true if same => conn.finish(),
                false if same => conn.close(),
                _ => {}
            }
        }
        self.shared.tasks.purge(volume.id);
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
            self.shared.tasks.prune(volume);
        }
    }

    /// Shows durable memberships, and tells those who go by older ones, before anybody hears that they are kept.
    fn publish_members(&self, memberships: Vec<(Arc<Volume>, Box<Membership>)>) {
        for (volume, membership) in memberships {
            tracing::info!(
                volume = %volume.name, version = %membership.version,
                zones = membership.members.len(), changing = membership.change.is_some(),
                "the volume's zones are known now"
            );
            volume.publish_membership(membership.clone());
            for conn in self.shared.conns.lock().values() {
                let same = conn.volume().is_some_and(|v| v.id == volume.id);
                if same && conn.is_behind(&membership) {
                    conn.send(0, Response::Members(membership.clone()));
                }
            }
        }
    }

    /// Shows what is known of the stores, and tells everybody, before anything else is answered.
    fn publish_sightings(&self, sightings: Vec<(Arc<Volume>, Arc<Sightings>)>) {
        for (volume, sightings) in sightings {
            volume.publish_sightings(sightings.clone());
            for conn in self.shared.conns.lock().values() {
                let same = conn.volume().is_some_and(|v| v.id == volume.id);
                if same && conn.known_commit(1) == 1 {
                    let sightings = Box::new(Sightings::clone(&sightings));
                    conn.send(0, Response::Sightings(sightings));
                }
            }
        }
    }

    /// Lets a promoting read go on: everything before it is durable. Its epoch is looked at again,
    /// because the same round may have fenced it.
    fn promote(&mut self, epoch: Epoch, job: ReadJob) {
        if let Err(e) = self.admit(&job.volume, epoch) {
            return job.conn.send(job.id, error(&e));
        }
        if let Some(job) = self.shared.reads.offer(job) {
            job.serve_for_others(&self.shared, &mut self.scratch);
        }
    }
}
