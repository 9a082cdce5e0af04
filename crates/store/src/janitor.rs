//! Gives space back in the background: versions that no image shows, removed files, the past of the
//! log. It only finds; the committer drops, so that dropping never races with writing.
//!
//! Nobody waits for it, and commits need the processor: it rests most of the time. A seal makes every block that
//! was written since the seal before a candidate at once.
//!
//! Invariant: a removal stays on disk until every block it names is gone, and a retention stays on
//! disk for good, so that a restart finds again what is left to do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax::ids::{BlockIndex, BlockKey, FileId, Generation};
use dax::replica;
use dax::storage::Retention;
use parking_lot::{Condvar, Mutex};

use crate::engine::EngineError;
use crate::keys::{Slot, VolumeId};
use crate::meta::Removal;
use crate::parking::{Again, Look};
use crate::shared::{Shared, Work};
use crate::volume::Volume;

/// Slots in one message to the committer.
pub(crate) const SLOTS_PER_DROP: usize = 256;
/// What a slot on its way to be dropped weighs in the committer's queue.
pub(crate) const SLOT_WEIGHT: usize = 1024;

/// Bytes of a volume's removals that are not done, at most: more are refused, and asked for again.
const MAX_REMOVAL_BYTES: usize = 4 << 20;
/// Files of which is remembered what is gone.
const MAX_GONE_BEFORE: usize = 10_000;

/// Candidates with fewer blocks between them are looked at in one go: to step over some is cheaper than to look a
/// block up.
const GAP_BLOCKS: u64 = 16;
/// Blocks of a go, at most: as long as it takes the engine keeps what the go began with.
const GO_BLOCKS: u64 = 4096;
/// It looks for rest after so many slots.
const SLOTS_BEFORE_REST: u32 = 64;
/// It rests so many times as long as it worked.
const REST: u32 = 16;
/// Without a rest, and at one rest, at most.
const WORK_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(100);

/// The first and the last block that there can be.
pub(crate) const EVERYTHING: (BlockKey, BlockKey) = (
    BlockKey {
        file: FileId(0),
        block: BlockIndex(0),
    },
    BlockKey {
        file: FileId(u64::MAX),
        block: BlockIndex(u64::MAX),
    },
);

/// Something to do in the background.
enum Task {
    /// Look at every block of a volume: once after a start.
    Scan(Arc<Volume>),
    /// Look at the candidates.
    Prune(Arc<Volume>),
    Remove(Arc<Volume>, u64, Removal),
    /// Give all blocks of a removed volume back: at its removal, and after each start.
    Purge(VolumeId),
}

/// What the janitor still has to do.
#[derive(Default)]
pub(crate) struct Tasks {
    list: Mutex<(VecDeque<Task>, bool)>,
    added: Condvar,
    /// Bytes of the removals of each volume that are not done.
    removals: Mutex<HashMap<VolumeId, usize>>,
}

/// What a removal takes until it is done, in bytes.
fn removal_bytes(removal: &Removal) -> usize {
    let files = match removal {
        Removal::Files(files) => files.len(),
        Removal::Before(..) => 0,
    };
    size_of::<Task>() + files * size_of::<FileId>()
}

impl Tasks {
    fn add(&self, task: Task) {
        self.list.lock().0.push_back(task);
        self.added.notify_one();
    }

    /// Find what can be dropped in a volume of which nothing is known.
    pub fn scan(&self, volume: Arc<Volume>) {
        self.add(Task::Scan(volume));
    }

    /// The volume's retention has changed.
    pub fn prune(&self, volume: Arc<Volume>) {
        let mut list = self.list.lock();
        let queued = |c: &Task| matches!(c, Task::Prune(v) if v.id == volume.id);
        if !list.0.iter().any(queued) {
            list.0.push_back(Task::Prune(volume));
            self.added.notify_one();
        }
    }

    /// Give blocks back.
    pub fn remove(&self, volume: Arc<Volume>, number: u64, removal: Removal) {
        self.add(Task::Remove(volume, number, removal));
    }

    /// Gives the blocks of a removed volume back.
    pub fn purge(&self, volume: VolumeId) {
        self.add(Task::Purge(volume));
    }

    /// Takes room for a removal; false if the volume has as many waiting as it may have.
    pub fn reserve(&self, volume: VolumeId, removal: &Removal) -> bool {
        let mut removals = self.removals.lock();
        let bytes = removals.entry(volume).or_default();
        let enough = *bytes + removal_bytes(removal) <= MAX_REMOVAL_BYTES;
        if enough {
            *bytes += removal_bytes(removal);
        }
        enough
    }

    /// A removal is done.
    pub fn release(&self, volume: VolumeId, removal: &Removal) {
        if let Some(bytes) = self.removals.lock().get_mut(&volume) {
            // What a restart left to do was not counted.
            *bytes = bytes.saturating_sub(removal_bytes(removal));
        }
    }

    /// Ends the janitor, whatever is left to do.
    pub fn close(&self) {
        self.list.lock().1 = true;
        self.added.notify_all();
    }

    fn next(&self) -> Option<Task> {
        let mut list = self.list.lock();
        while list.0.is_empty() && !list.1 {
            self.added.wait(&mut list);
        }
        match list.1 {
            true => None,
            false => list.0.pop_front(),
        }
    }
}

/// Finds what can be dropped.
pub(crate) struct Janitor {
    pub(crate) shared: Arc<Shared>,
    /// Blocks of a file before this are gone already, by removals up to this number.
    gone_before: HashMap<(VolumeId, FileId), (u64, u64)>,
    /// Wrong on purpose: what is parked is never looked at again.
    #[cfg(test)]
    pub(crate) parked_for_ever: bool,
}

impl Janitor {
    pub fn new(shared: Arc<Shared>) -> Janitor {
        Janitor {
            shared,
            gone_before: HashMap::new(),
            #[cfg(test)]
            parked_for_ever: false,
        }
    }

    /// Works until the zone stops.
    pub fn run(mut self) {
        while let Some(task) = self.shared.tasks.next() {
            match self.do_one(&task) {
                Ok(()) => {}
                Err(error) if error.may_pass() => {
                    self.shared.report_unreadable(&error);
                    self.shared.tasks.add(task);
                    std::thread::sleep(REST_MAX);
                }
                // Nothing is given back until the zone starts anew; what it answers is right all the same.
                Err(error @ EngineError::Damaged(_)) => self.shared.report_index(&error),
                Err(error) => return self.shared.fail(&error),
            }
        }
    }

    /// Does what there is to do, until something cannot be done at present.
    #[cfg(test)]
    pub fn work_off(&mut self) {
        loop {
            let Some(task) = self.shared.tasks.list.lock().0.pop_front() else {
                return;
            };
            match self.do_one(&task) {
                Ok(()) => {}
                Err(error) if error.may_pass() => return self.shared.tasks.add(task),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn do_one(&mut self, task: &Task) -> Result<(), EngineError> {
        match task {
            Task::Scan(volume) => self.scan(volume),
            Task::Prune(volume) => self.prune(volume),
            Task::Remove(volume, number, removal) => self.remove(volume, *number, removal),
            Task::Purge(volume) => self.purge(*volume),
        }
    }

    /// Looks at every block of a volume.
    fn scan(&self, volume: &Arc<Volume>) -> Result<(), EngineError> {
        volume.parked().clear();
        let mut drops = Drops::new(&self.shared, volume);
        if self.go_through(EVERYTHING, &mut drops)? {
            drops.finish();
        }
        Ok(())
    }

    /// Looks at the blocks from one to another; false if the zone stops in the middle of it.
    fn go_through(
        &self,
        (first, last): (BlockKey, BlockKey),
        drops: &mut Drops<'_>,
    ) -> Result<bool, EngineError> {
        let range = Slot::range(drops.volume.id, (first, last));
        let mut block: Vec<Slot> = Vec::new();
        for slot in self.shared.engine.slots(range) {
            let slot = slot?;
            if self.shared.is_stopping() {
                return Ok(false);
            }
            if block.first().is_some_and(|first| first.key != slot.key) {
                drops.look(&block);
                block.clear();
            }
            block.push(slot);
        }
        drops.look(&block);
        Ok(true)
    }

    /// Looks at the blocks written since the last time, and at those that waited for an image that has left.
    fn prune(&self, volume: &Arc<Volume>) -> Result<(), EngineError> {
        let mut drops = Drops::new(&self.shared, volume);
        let candidates = volume.take_candidates();
        let again = match &drops.retention {
            Some(retention) => volume.parked().retain(retention),
            None => Some(Again::default()),
        };
        #[cfg(test)]
        let again = again.map(|again| match self.parked_for_ever {
            true => Again::default(),
            false => again,
        });
        let Some(again) = again.filter(|_| !candidates.everything) else {
            let scanned = self.scan(volume);
            if scanned.is_err() {
                volume.add_everything();
            }
            return scanned;
        };
        let mut blocks = candidates.blocks;
        blocks.extend(again.blocks);
        for go in goes(blocks.iter().copied())
            .into_iter()
            .chain(again.regions.iter().copied())
        {
            match self.go_through(go, &mut drops) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    volume.add_candidates(blocks);
                    if !again.regions.is_empty() {
                        volume.add_everything();
                    }
                    return Err(error);
                }
            }
        }
        drops.finish();
        Ok(())
    }

    fn remove(
        &mut self,
        volume: &Arc<Volume>,
        number: u64,
        removal: &Removal,
    ) -> Result<(), EngineError> {
        let mut drops = Drops::new(&self.shared, volume);
        match *removal {
            Removal::Files(ref files) => {
                for file in files.iter().copied() {
                    if !self.remove_range(&mut drops, file, (0, u64::MAX))? {
                        return Ok(());
                    }
                    self.gone_before.remove(&(volume.id, file));
                    volume.parked().forget_file(file);
                }
            }
            Removal::Before(_, BlockIndex(0)) => {}
            Removal::Before(file, BlockIndex(end)) => {
                // Without this each call would step over all that earlier calls have removed.
                let gone = self.gone_before.get(&(volume.id, file)).copied();
                let (gone, by) = gone.unwrap_or_default();
                // One that is done again has left something behind.
                let from = if by < number { gone } else { 0 };
                if from < end && !self.remove_range(&mut drops, file, (from, end - 1))? {
                    return Ok(());
                }
                let gone = (end.max(gone), number.max(by));
                if self.gone_before.len() >= MAX_GONE_BEFORE {
                    self.gone_before.clear();
                }
                self.gone_before.insert((volume.id, file), gone);
            }
        }
        drops.finish();
        let removed = Work::Removed(volume.clone(), number, removal.clone());
        self.shared.queue.put(volume.id, removed, SLOT_WEIGHT);
        Ok(())
    }

    /// False if the zone stops in the middle of it.
    fn remove_range(
        &self,
        drops: &mut Drops<'_>,
        file: FileId,
        range: (u64, u64),
    ) -> Result<bool, EngineError> {
        for slot in self.shared.slots_of(drops.volume.id, file, range) {
            if self.shared.is_stopping() {
                return Ok(false);
            }
            drops.pace.worked(1);
            drops.drop_slot(slot?);
        }
        Ok(true)
    }
}

/// Puts blocks that are near each other together: the first and the last of each go.
fn goes(sorted: impl IntoIterator<Item = BlockKey>) -> Vec<(BlockKey, BlockKey)> {
    let mut goes: Vec<(BlockKey, BlockKey)> = Vec::new();
    for key in sorted {
        match goes.last_mut() {
            Some((first, last))
                if first.file == key.file
                    && key.block.0 - last.block.0 <= GAP_BLOCKS
                    && key.block.0 - first.block.0 < GO_BLOCKS =>
            {
                *last = key;
            }
            _ => goes.push((key, key)),
        }
    }
    goes
}

/// Sees that work is followed by rest.
pub(crate) struct Pace {
    slots: u32,
    working_since: Instant,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            slots: 0,
            working_since: Instant::now(),
        }
    }

    /// So many slots were looked at.
    pub fn worked(&mut self, slots: usize) {
        self.slots += slots as u32;
        if self.slots < SLOTS_BEFORE_REST {
            return;
        }
        self.slots = 0;
        let worked = self.working_since.elapsed();
        if worked >= WORK_MIN {
            std::thread::sleep((worked * REST).min(REST_MAX));
            self.working_since = Instant::now();
        }
    }
}

/// Collects slots to drop and hands them to the committer.
struct Drops<'a> {
    shared: &'a Shared,
    volume: &'a Arc<Volume>,
    retention: Option<Retention>,
    slots: Vec<Slot>,
    candidates: Vec<BlockKey>,
    pace: Pace,
}

impl<'a> Drops<'a> {
    fn new(shared: &'a Shared, volume: &'a Arc<Volume>) -> Drops<'a> {
        Drops {
            shared,
            volume,
            retention: volume.retention(),
            slots: Vec::new(),
            candidates: Vec::new(),
            pace: Pace::new(),
        }
    }

    /// Decides about one block, given all its slots.
    fn look(&mut self, block: &[Slot]) {
        let Some(first) = block.first() else { return };
        self.pace.worked(block.len());
        let stored: Vec<Generation> = block.iter().map(|slot| slot.generation).collect();
        let dropped = match &self.retention {
            Some(retention) => replica::prune(&stored, retention),
            None => Vec::new(),
        };
        for generation in &dropped {
            self.drop_slot(Slot {
                generation: *generation,
                ..*first
            });
        }
        let mut parked = self.volume.parked();
        if parked.look(first.key, &stored, &dropped, self.retention.as_ref()) == Look::Again {
            self.candidates.push(first.key);
        }
    }

    fn drop_slot(&mut self, slot: Slot) {
        self.slots.push(slot);
        if self.slots.len() >= SLOTS_PER_DROP {
            self.send();
        }
    }

    fn send(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut self.slots);
        let weight = slots.len() * SLOT_WEIGHT;
        let work = Work::Drop(self.volume.clone(), slots);
        self.shared.queue.put(self.volume.id, work, weight);
    }

    fn finish(mut self) {
        self.send();
        self.volume
            .add_candidates(std::mem::take(&mut self.candidates));
        self.volume.publish_past_blocks();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_near_each_other_are_looked_at_in_one_go() {
        let key = |file, block| BlockKey::new(FileId(file), block);
        let near = [key(1, 0), key(1, 1), key(1, 17), key(1, 34), key(2, 34)];
        let expected = [
            (key(1, 0), key(1, 17)),
            (key(1, 34), key(1, 34)),
            (key(2, 34), key(2, 34)),
        ];
        assert_eq!(goes(near), expected);
        let long = goes((0..GO_BLOCKS + 1).map(|block| key(1, block)));
        let rest = (key(1, GO_BLOCKS), key(1, GO_BLOCKS));
        assert_eq!(long, [(key(1, 0), key(1, GO_BLOCKS - 1)), rest]);
        assert_eq!(goes([]), []);
    }
}
