//! Takes inventory for a scrub: what is stored, in order, each block read and verified. On a thread of its own, because
//! a scrub somewhere waits for it: it is neither behind what the janitor does without hurry, nor before what clients
//! read.
//!
//! Invariant: an answer is given only under the epoch that asks, accepted durably, so that no older
//! writer changes afterwards what it said.

use std::ops::Bound;
use std::sync::Arc;

use dax::error::{Error, ErrorKind};
use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::wire::{INVENTORY_PAGE_BYTES, INVENTORY_PAGE_ENTRIES, InventoryEntry, Response};
use parking_lot::{Condvar, Mutex};

use crate::connection::Conn;
use crate::decide;
use crate::engine::{EngineError, Found};
use crate::fair_queue::FairQueue;
use crate::keys::Slot;
use crate::reads;
use crate::shared::{Shared, Work};
use crate::volume::Volume;

/// What the news of a damaged block weighs in the committer's queue.
const DAMAGED_WEIGHT: usize = 256;

/// Inventories that somebody waits for. Volumes take turns; a client has as many as it has places
/// ([`Conn::take_place`]).
#[derive(Default)]
pub(crate) struct Inventories {
    jobs: Mutex<Jobs>,
    added: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: FairQueue<InventoryJob>,
    closed: bool,
}

impl Inventories {
    /// Takes a job, unless too many answers wait for its client already.
    pub fn offer(&self, job: InventoryJob) -> bool {
        let mut jobs = self.jobs.lock();
        if jobs.closed || !job.conn.take_place() {
            return false;
        }
        jobs.waiting.push(job.volume.id, job, 1);
        self.added.notify_one();
        true
    }

    /// Serves them until the zone stops. The body of their thread.
    pub fn run(&self, shared: &Shared) {
        while let Some(job) = self.next() {
            if let Err(error) = job.serve(shared) {
                return shared.fail(&error);
            }
        }
    }

    fn next(&self) -> Option<InventoryJob> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.closed {
                return None;
            }
            if let Some((_, job)) = jobs.waiting.take_one(|_| true) {
                return Some(job);
            }
            self.added.wait(&mut jobs);
        }
    }

    /// Ends the thread, whoever waits.
    pub fn close(&self) {
        self.jobs.lock().closed = true;
        self.added.notify_all();
    }
}

/// Somebody wants to know what is stored after a block and generation.
pub(crate) struct InventoryJob {
    pub conn: Arc<Conn>,
    pub volume: Arc<Volume>,
    pub id: u64,
    pub epoch: Epoch,
    pub after: Option<(BlockKey, Generation)>,
}

impl InventoryJob {
    /// Answers with one page.
    pub fn serve(&self, shared: &Shared) -> Result<(), EngineError> {
        let answer = match self.check_epoch() {
            Err(e) => decide::error(&e),
            Ok(()) => match self.page(shared) {
                Ok(page) => page,
                Err(error) => self.unanswered(shared, error)?,
            },
        };
        self.conn.send(self.id, answer);
        self.conn.free_place();
        Ok(())
    }

    /// What is said where a page cannot be given: it comes later, or never as long as the index is damaged, which
    /// concerns nobody else.
    fn unanswered(&self, shared: &Shared, error: EngineError) -> Result<Response, EngineError> {
        match error {
            EngineError::Damaged(_) => {
                shared.report_index(&error);
                let text = "this zone cannot list its blocks: its index is damaged";
                Ok(decide::error(&Error::new(ErrorKind::Corrupt, text)))
            }
            error => reads::unanswered(shared, error),
        }
    }

    fn check_epoch(&self) -> Result<(), Error> {
        let grant = self.volume.grant();
        let refused = |kind, why: String| Err(Error::new(kind, why));
        match grant.epoch.cmp(&self.epoch) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => {
                let why = format!(
                    "{} is over: {} owns {}",
                    self.epoch, grant.owner, grant.epoch
                );
                refused(ErrorKind::Fenced, why)
            }
            std::cmp::Ordering::Less => {
                let why = format!("{} was not announced to this zone", self.epoch);
                refused(ErrorKind::Conflict, why)
            }
        }
    }

    fn page(&self, shared: &Shared) -> Result<Response, EngineError> {
        let at = |(key, generation)| Slot {
            volume: self.volume.id,
            key,
            generation,
        };
        let first = (BlockKey::new(FileId(0), 0), Generation::SINGLE);
        let last = (BlockKey::new(FileId(u64::MAX), u64::MAX), Generation::MAX);
        let from = match self.after {
            None => Bound::Included(at(first).encode()),
            Some(after) => Bound::Excluded(at(after).encode()),
        };
        let range = (from, Bound::Included(at(last).encode()));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        // Copies that a fill has not completed are nobody's loss, and not sent to other zones.
        let unfilled = self.volume.layer().map(|layer| layer.first_epoch);
        for slot in shared.engine.slots(range) {
            let slot = slot?;
            let epoch = slot.generation.epoch;
            if slot.generation != Generation::SINGLE && unfilled.is_some_and(|own| epoch < own) {
                continue;
            }
            if entries.len() >= INVENTORY_PAGE_ENTRIES || bytes >= INVENTORY_PAGE_BYTES {
                return Ok(Response::Inventory {
                    entries,
                    more: true,
                });
            }
            bytes += self.volume.settings.block_size_bytes as usize;
            entries.extend(self.entry(shared, slot)?);
        }
        Ok(Response::Inventory {
            entries,
            more: false,
        })
    }

    /// What is in a slot; nothing if it was dropped meanwhile.
    fn entry(&self, shared: &Shared, slot: Slot) -> Result<Option<InventoryEntry>, EngineError> {
        let version = match shared.engine.get(&slot)? {
            None => return Ok(None),
            Some(Found::Block(block)) => Some(block.version),
            Some(Found::Corrupt(_)) => {
                shared.report_damage(&self.volume, slot.key, slot.generation);
                shared
                    .queue
                    .put(slot.volume, Work::Damaged(slot), DAMAGED_WEIGHT);
                None
            }
        };
        Ok(Some(InventoryEntry {
            key: slot.key,
            generation: slot.generation,
            version,
        }))
    }
}
