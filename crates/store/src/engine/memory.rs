//! An engine in memory, with the faults of a disk: reads fail for a while.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dax::ids::{BlockKey, Generation};
use parking_lot::Mutex;

use super::{Batch, Engine, EngineError, Found, Metas, SlotRange, Slots};
use crate::keys::{Slot, VolumeId};
use crate::log::{Change, Kind};

/// The disk under an engine. Clones are the same disk, which outlives the engine.
#[derive(Clone, Default)]
pub(crate) struct MemoryEngine {
    disk: Arc<Mutex<Disk>>,
    /// No commit becomes durable while somebody holds it.
    pub commits: Arc<Mutex<()>>,
    /// How many commits were begun.
    pub begun: Arc<AtomicU64>,
    /// The janitor looks for nothing while somebody holds it.
    pub scans: Arc<Mutex<()>>,
}

#[derive(Default)]
struct Disk {
    blocks: BTreeMap<Bytes, Bytes>,
    meta: BTreeMap<Bytes, Bytes>,
    commits: u64,
    faults: Faults,
}

#[derive(Default)]
struct Faults {
    /// So many reads fail, every one or every second.
    failing: u32,
    every: u32,
    reads: u32,
}

impl Disk {
    fn apply(&mut self, Change { kind, key, value }: Change) {
        match kind {
            Kind::PutBlock => self.blocks.insert(key, value),
            Kind::RemoveBlock => self.blocks.remove(&key),
            Kind::PutMeta => self.meta.insert(key, value),
            Kind::RemoveMeta => self.meta.remove(&key),
        };
    }

    /// Whether this read fails.
    fn check_read(&mut self) -> Result<(), EngineError> {
        let faults = &mut self.faults;
        if faults.failing == 0 {
            return Ok(());
        }
        faults.reads += 1;
        if !faults.reads.is_multiple_of(faults.every) {
            return Ok(());
        }
        faults.failing -= 1;
        let error = std::io::Error::from_raw_os_error(nix::libc::EIO);
        Err(EngineError::Unreadable(error.into()))
    }
}

impl MemoryEngine {
    /// From now on so many reads fail, one in `every`, and may succeed when they are tried again.
    pub fn fail_reads(&self, failing: u32, every: u32) {
        let faults = &mut self.disk.lock().faults;
        (faults.failing, faults.every) = (failing, every);
    }
}

impl Engine for MemoryEngine {
    fn commit(&self, batch: Batch) -> Result<(), EngineError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let _gate = self.commits.lock();
        let mut disk = self.disk.lock();
        for change in batch.into_changes() {
            disk.apply(change);
        }
        disk.commits += 1;
        Ok(())
    }

    fn began(&self) -> u64 {
        self.last_commit()
    }

    fn last_commit(&self) -> u64 {
        self.disk.lock().commits
    }

    fn checkpoint(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        false
    }

    fn get(&self, slot: &Slot) -> Result<Option<Found>, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        let value = disk.blocks.get(slot.encode().as_slice()).cloned();
        Ok(value.map(|value| Found::new(slot.key, slot.generation, value)))
    }

    fn newest(
        &self,
        volume: VolumeId,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        let (from, to) = Slot::range(volume, (key, key));
        let slots = disk.blocks.range::<[u8], _>(borrowed(&from, &to));
        let shown = slots.filter_map(|(name, value)| {
            let slot = Slot::decode(name).filter(|slot| slot.generation <= up_to)?;
            Some(Found::new(key, slot.generation, value.clone()))
        });
        Ok(shown.last())
    }

    fn slots(&self, (from, to): SlotRange) -> Slots {
        let is_janitor = std::thread::current().name() == Some("zone-janitor");
        let _gate = is_janitor.then(|| self.scans.lock());
        let mut disk = self.disk.lock();
        if let Err(error) = disk.check_read() {
            return Box::new(std::iter::once(Err(error)));
        }
        let names = disk.blocks.range::<[u8], _>(borrowed(&from, &to));
        let slots: Vec<_> = names.filter_map(|(name, _)| Slot::decode(name)).collect();
        Box::new(slots.into_iter().map(Ok))
    }

    fn contains(&self, slot: &Slot) -> Result<bool, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        Ok(disk.blocks.contains_key(slot.encode().as_slice()))
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        Ok(disk.meta.get(key).cloned())
    }

    fn meta_after(&self, prefix: &[u8], after: &[u8]) -> Metas {
        let mut disk = self.disk.lock();
        if let Err(error) = disk.check_read() {
            return Box::new(std::iter::once(Err(error)));
        }
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let entries = disk.meta.range::<[u8], _>(from);
        let entries = entries.take_while(|(key, _)| key.starts_with(prefix));
        let entries = entries.filter(|(key, _)| &key[..] > after);
        let entries: Vec<_> = entries.map(|(k, v)| Ok((k.clone(), v.clone()))).collect();
        Box::new(entries.into_iter())
    }

    fn free_bytes(&self) -> std::io::Result<u64> {
        Ok(1 << 40)
    }
}

fn borrowed<'a, const N: usize>(
    from: &'a Bound<[u8; N]>,
    to: &'a Bound<[u8; N]>,
) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let slice = |bound: &'a Bound<[u8; N]>| bound.as_ref().map(|key| key.as_slice());
    (slice(from), slice(to))
}
