//! What all threads of a zone share.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dax::error::describe;
use dax::ids::{BlockKey, FileId, Generation, StoreId};
use dax::sightings::{Position, Runs};
use dax::wire::{BlockWrite, Request, StoredBlock};
use parking_lot::{Condvar, Mutex};

use crate::checkpoints::Checkpoints;
use crate::config::StoreConfig;
use crate::connection::Conn;
use crate::engine::{Engine, Slots};
use crate::error::ZoneFailed;
use crate::filling::{Fills, PassNumber};
use crate::inventory::Inventories;
use crate::janitor::Tasks;
use crate::keys::{Slot, VolumeId};
use crate::meta::Removal;
use crate::network::Emulation;
use crate::queue::Queue;
use crate::reads::ReadPool;
use crate::volume::{Volume, Volumes};

/// Damaged blocks beyond this many are not remembered one by one.
const MAX_DAMAGED: usize = 10_000;

/// That files cannot be read is logged this often.
const UNREADABLE_EVERY: Duration = Duration::from_secs(10);

/// What the committer is asked to do, in the order it arrived.
pub(crate) enum Work {
    /// A block that arrived intact, with its number on its connection.
    Write(Arc<Conn>, u64, BlockWrite),
    /// A write that is refused already.
    Refuse(Arc<Conn>, u64, dax::error::Error),
    /// Commit at once.
    Flush,
    /// Everything else that changes something or needs the fence.
    Request(Arc<Conn>, u64, Request),
    /// Versions to drop.
    Drop(Arc<Volume>, Vec<Slot>),
    /// Copies that a pass of a fill has found for a volume, and that it has seen everything.
    Fill(Arc<Volume>, PassNumber, Vec<(BlockKey, StoredBlock)>),
    Filled(Arc<Volume>, PassNumber),
    /// Blocks of a volume that was removed.
    Purge(Vec<Slot>),
    /// A stored block is damaged: any intact copy of it replaces it.
    Damaged(Slot),
    /// All blocks of a removal were dropped before.
    Removed(Arc<Volume>, u64, Removal),
}

impl Work {
    /// Somebody waits for its commit.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Work::Flush | Work::Request(..))
    }
}

/// A zone, as its threads see it.
pub(crate) struct Shared {
    pub config: StoreConfig,
    pub dir: PathBuf,
    /// Which store this is.
    pub id: StoreId,
    /// This run of the process, and those before it.
    pub runs: Runs,
    pub engine: Box<dyn Engine>,
    pub volumes: Volumes,
    pub queue: Queue<Work>,
    pub reads: ReadPool,
    pub network: Option<Arc<Emulation>>,
    pub tasks: Tasks,
    pub fills: Fills,
    pub inventories: Inventories,
    pub checkpoints: Checkpoints,
    pub reserve_bytes: AtomicU64,
    pub conns: Mutex<HashMap<u64, Arc<Conn>>>,
    /// How many of them are not admitted yet.
    pub strangers: AtomicUsize,
    stopping: AtomicBool,
    failure: Mutex<Option<String>>,
    ended: Condvar,
    damaged: Mutex<HashSet<Slot>>,
    /// When it was logged last that files cannot be read.
    said_unreadable: Mutex<Option<Instant>>,
}

impl Shared {
    pub fn new(
        config: StoreConfig,
        network: Option<Arc<Emulation>>,
        dir: PathBuf,
        (id, runs): (StoreId, Runs),
        engine: Box<dyn Engine>,
        volumes: Volumes,
    ) -> Shared {
        Shared {
            queue: Queue::new(config.queue_bytes, config.commit_bytes),
            reads: ReadPool::new(config.read_threads),
            tasks: Tasks::default(),
            fills: Fills::default(),
            inventories: Inventories::default(),
            checkpoints: Checkpoints::default(),
            reserve_bytes: AtomicU64::new(config.reserve_bytes),
            conns: Mutex::default(),
            strangers: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
            ended: Condvar::new(),
            damaged: Mutex::default(),
            said_unreadable: Mutex::default(),
            config,
            network,
            dir,
            id,
            runs,
            engine,
            volumes,
        }
    }

    /// How far the store is, as it says to the clients of a volume.
    pub fn position(&self, volume: &Volume) -> Position {
        Position {
            runs: volume.runs(&self.runs),
            commit: volume.told(self.engine.last_commit()),
        }
    }

    /// True if the zone is on its way down.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Begins to stop: no new requests. False if it had begun before.
    pub fn begin_stop(&self) -> bool {
        let first = !self.stopping.swap(true, Ordering::SeqCst);
        let _failure = self.failure.lock(); // so that no waiter misses the notification
        self.ended.notify_all();
        first
    }

    /// The engine failed, or a thread died: nobody is answered any more, and the process should end.
    pub fn fail(&self, why: &(dyn std::error::Error + 'static)) {
        let text = describe(why);
        tracing::error!(
            dir = %self.dir.display(), error = %text,
            "the zone failed and stops; what was acknowledged is safe; check the disk, and restart the zone"
        );
        self.failure.lock().get_or_insert(text);
        self.begin_stop();
        self.queue.close();
        self.reads.close();
        self.tasks.close();
        self.fills.close();
        self.inventories.close();
        self.checkpoints.close();
        let conns: Vec<_> = self.conns.lock().values().cloned().collect();
        conns.iter().for_each(|conn| conn.close());
    }

    /// Why the zone failed, if it did.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Waits until the zone stops or fails.
    pub fn wait_ended(&self) {
        let mut failure = self.failure.lock();
        while failure.is_none() && !self.is_stopping() {
            self.ended.wait(&mut failure);
        }
    }

    /// Logs a damaged block, once.
    pub fn report_damage(&self, volume: &Volume, key: BlockKey, generation: Generation) {
        let slot = Slot {
            volume: volume.id,
            key,
            generation,
        };
        let mut damaged = self.damaged.lock();
        if damaged.len() < MAX_DAMAGED && damaged.insert(slot) {
            tracing::warn!(
                volume = %volume.name, block = %key, %generation, dir = %self.dir.display(),
                "a stored block fails its checksum; other zones are read instead; check this disk"
            );
        }
    }

    /// Logs that files cannot be read, now and then while it lasts.
    pub fn report_unreadable(&self, error: &(dyn std::error::Error + 'static)) {
        let mut said = self.said_unreadable.lock();
        if said.is_none_or(|at| at.elapsed() >= UNREADABLE_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!(
                dir = %self.dir.display(), error = %describe(error),
                "the zone cannot read its files; its clients ask again; check this disk if this repeats"
            );
        }
    }

    /// Logs that nothing can be found out about what is stored.
    pub fn report_index(&self, error: &(dyn std::error::Error + 'static)) {
        tracing::error!(
            dir = %self.dir.display(), error = %describe(error),
            "the zone cannot list its blocks, so none of them are scrubbed or released; it answers what it can read"
        );
    }

    /// Bytes that block writes may still take.
    pub fn free_bytes(&self) -> std::io::Result<u64> {
        let reserve = self.reserve_bytes.load(Ordering::Relaxed);
        Ok(self.engine.free_bytes()?.saturating_sub(reserve))
    }

    /// Slots of the blocks `from` to `to` of `file`, in order.
    pub fn slots_of(&self, volume: VolumeId, file: FileId, (from, to): (u64, u64)) -> Slots {
        let range = (BlockKey::new(file, from), BlockKey::new(file, to));
        self.engine.slots(Slot::range(volume, range))
    }
}

/// Of a thread without which a zone only looks alive: if it dies, the zone fails.
pub(crate) struct FailOnPanic<'a>(pub &'a Shared);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&ZoneFailed("a worker thread panicked".into()));
        }
    }
}
