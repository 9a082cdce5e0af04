//! An engine in memory, with the faults of a disk: what was not synced is lost, now and then what was synced as well;
//! copies are damaged, reads fail for a while, the disk is full.
//!
//! It is made durable as the real one is: a commit by its record in a log that is written over, then by a journal of both
//! keyspaces that is synced at checkpoints, then by the tables of each keyspace, which is flushed when it likes. What an
//! opening makes of what it finds, the same code decides ([`crate::log::in_all_of`], [`crate::log::check_gap`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use dax::ids::{BlockKey, Generation};
use parking_lot::Mutex;

use super::{Batch, Engine, EngineError, Found, Metas, SlotRange, Slots};
use crate::keys::{HEAD_BYTES, Slot, VolumeId};
use crate::log::{Change, Kind, LogError, Sequence, check_gap, in_all_of};

/// Records that the log has room for: few, so that it goes round.
const LOG_RECORDS: usize = 6;

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
    last: u64,
    /// The newest commits; those up to `released` may be written over.
    log: BTreeMap<u64, Vec<Change>>,
    released: u64,
    /// Commits that the tables of some keyspace lack; of these, so many are synced.
    journal: Vec<(u64, Vec<Change>)>,
    synced: usize,
    blocks: Keyspace,
    meta: Keyspace,
    faults: Faults,
}

#[derive(Default)]
struct Keyspace {
    /// What reads see.
    live: BTreeMap<Bytes, Bytes>,
    /// What was flushed, with the commits up to this number.
    tables: BTreeMap<Bytes, Bytes>,
    flushed: u64,
}

/// Which keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Blocks,
    Meta,
}

#[derive(Default)]
struct Faults {
    /// So many reads fail, every one or every second.
    failing: u32,
    every: u32,
    reads: u32,
    full: bool,
    /// Slots that are not read, for good: until they are written again.
    bad: BTreeSet<Bytes>,
    /// Wrong on purpose: what cannot be read is called damaged.
    unreadable_is_damage: bool,
}

impl Space {
    fn of(kind: Kind) -> Space {
        match kind {
            Kind::PutBlock | Kind::RemoveBlock => Space::Blocks,
            Kind::PutMeta | Kind::RemoveMeta => Space::Meta,
        }
    }
}

impl Disk {
    fn space(&mut self, space: Space) -> &mut Keyspace {
        match space {
            Space::Blocks => &mut self.blocks,
            Space::Meta => &mut self.meta,
        }
    }

    /// Takes a commit, as far as a keyspace's tables lack it.
    fn apply(&mut self, number: u64, changes: &[Change]) {
        for Change { kind, key, value } in changes.iter().cloned() {
            let keyspace = self.space(Space::of(kind));
            if number <= keyspace.flushed {
                continue;
            }
            match kind {
                Kind::PutBlock | Kind::PutMeta => keyspace.live.insert(key.clone(), value),
                Kind::RemoveBlock | Kind::RemoveMeta => keyspace.live.remove(&key),
            };
            self.faults.bad.remove(&key);
        }
    }

    fn append(&mut self, number: u64, changes: Vec<Change>) {
        self.apply(number, &changes);
        self.journal.push((number, changes));
    }

    fn checkpoint(&mut self) {
        self.synced = self.journal.len();
        self.released = self.last;
    }

    /// Fails for good where the sector is bad.
    fn check_sector(&self, name: &[u8]) -> Result<(), EngineError> {
        match self.faults.bad.contains(name) {
            true => Err(unreadable()),
            false => Ok(()),
        }
    }

    /// True if this read fails.
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
        Err(unreadable())
    }
}

fn unreadable() -> EngineError {
    EngineError::Unreadable(std::io::Error::from_raw_os_error(nix::libc::EIO).into())
}

impl MemoryEngine {
    /// A keyspace moves what it has in memory into tables; the journal keeps what the other one still needs.
    pub fn flush(&self, space: Space) {
        let mut disk = self.disk.lock();
        let last = disk.last;
        let keyspace = disk.space(space);
        keyspace.tables = keyspace.live.clone();
        keyspace.flushed = last;
        let needed_after = disk.blocks.flushed.min(disk.meta.flushed);
        let before = disk.journal.len();
        disk.journal.retain(|(number, _)| *number > needed_after);
        let gone = before - disk.journal.len();
        disk.synced = disk.synced.saturating_sub(gone);
    }

    /// The machine crashes and starts again: of the commits in the journal that were not synced, `kept` are there, and a
    /// fault of the disk takes the last `lost` of those that were.
    ///
    /// # Errors
    /// Acknowledged commits are gone: the store is not opened.
    pub fn crash(&self, kept: usize, lost: usize, meta_alone: bool) -> Result<(), LogError> {
        let mut disk = self.disk.lock();
        let left = match lost {
            0 => (disk.synced + kept).min(disk.journal.len()),
            lost => disk.synced.saturating_sub(lost),
        };
        let mut journal = std::mem::take(&mut disk.journal);
        journal.truncate(left);
        for space in [Space::Blocks, Space::Meta] {
            let keyspace = disk.space(space);
            keyspace.live = keyspace.tables.clone();
        }
        let newest = journal.last().map_or(0, |(number, _)| *number);
        for (number, changes) in journal {
            disk.append(number, changes);
        }
        let number = |flushed: u64| Some(Sequence(flushed.max(newest)));
        let meta = number(disk.meta.flushed);
        let blocks = if meta_alone {
            meta
        } else {
            number(disk.blocks.flushed)
        };
        let Sequence(applied) = in_all_of([blocks, meta], false);
        let records: Vec<_> = disk
            .log
            .range(applied + 1..)
            .map(|(n, c)| (*n, c.clone()))
            .collect();
        let numbers = records.iter().map(|(n, _)| (Sequence(*n), false));
        check_gap(Sequence(applied), numbers)?;
        disk.last = applied.max(disk.log.keys().next_back().copied().unwrap_or_default());
        for (number, changes) in records {
            disk.append(number, changes);
        }
        disk.checkpoint();
        disk.faults.failing = 0;
        Ok(())
    }

    /// True if there is room.
    pub fn set_full(&self, full: bool) {
        self.disk.lock().faults.full = full;
    }

    /// Calls what cannot be read damaged, as the engine once did.
    pub fn call_unreadable_damaged(&self) {
        self.disk.lock().faults.unreadable_is_damage = true;
    }

    /// Damages what is stored in the `n`-th slot, and says which; none if there is nothing.
    pub fn damage(&self, n: u64) -> Option<Slot> {
        let mut disk = self.disk.lock();
        let n = n.checked_rem(disk.blocks.live.len() as u64)?;
        let name = disk.blocks.live.keys().nth(n as usize)?.clone();
        let Keyspace { live, tables, .. } = &mut disk.blocks;
        let damaged = |value: &Bytes| {
            let mut bytes = BytesMut::from(&value[..]);
            bytes[HEAD_BYTES - 1] ^= 1;
            bytes.freeze()
        };
        for values in [live, tables] {
            if let Some(value) = values.get_mut(&name) {
                *value = damaged(value);
            }
        }
        Slot::decode(&name)
    }

    /// Every block that is stored, intact or not, without any faults.
    pub fn stored(&self) -> BTreeMap<Slot, Found> {
        let disk = self.disk.lock();
        let slots = disk.blocks.live.iter().filter_map(|(name, value)| {
            let slot = Slot::decode(name)?;
            Some((slot, Found::new(slot.key, slot.generation, value.clone())))
        });
        slots.collect()
    }

    /// From now on the `n`-th slot is not read, and says which that is; none if there is nothing.
    pub fn spoil(&self, n: u64) -> Option<Slot> {
        let mut disk = self.disk.lock();
        let n = n.checked_rem(disk.blocks.live.len() as u64)?;
        let name = disk.blocks.live.keys().nth(n as usize)?.clone();
        let slot = Slot::decode(&name);
        disk.faults.bad.insert(name);
        slot
    }

    /// True if the slot is not read, for good.
    pub fn is_bad(&self, slot: &Slot) -> bool {
        self.disk
            .lock()
            .faults
            .bad
            .contains(slot.encode().as_slice())
    }

    /// The disk has another sector in place of each that was not read.
    pub fn read_again(&self) {
        self.disk.lock().faults.bad.clear();
    }

    /// True if reads fail that may succeed later.
    pub fn is_failing(&self) -> bool {
        self.disk.lock().faults.failing > 0
    }

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
        if batch.is_empty() {
            return Ok(());
        }
        let oldest = disk.log.keys().next().copied();
        if disk.log.len() >= LOG_RECORDS && oldest > Some(disk.released) {
            disk.checkpoint();
        }
        while disk.log.len() >= LOG_RECORDS {
            disk.log.pop_first();
        }
        disk.last += 1;
        let (number, changes) = (disk.last, batch.into_changes());
        disk.log.insert(number, changes.clone());
        disk.append(number, changes);
        Ok(())
    }

    fn began(&self) -> u64 {
        self.last_commit()
    }

    fn last_commit(&self) -> u64 {
        self.disk.lock().last
    }

    /// What was not synced is lost with the machine, handed over or not.
    fn settle(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn settle_all(&self) -> Result<(), EngineError> {
        Ok(())
    }

    fn checkpoint(&self) -> Result<(), EngineError> {
        self.disk.lock().checkpoint();
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        let disk = self.disk.lock();
        disk.last - disk.released >= LOG_RECORDS as u64 / 2
    }

    fn get(&self, slot: &Slot) -> Result<Option<Found>, EngineError> {
        let mut disk = self.disk.lock();
        match disk.check_read() {
            Err(_) if disk.faults.unreadable_is_damage => {
                return Ok(Some(Found::Corrupt(slot.generation)));
            }
            checked => checked?,
        }
        disk.check_sector(slot.encode().as_slice())?;
        let value = disk.blocks.live.get(slot.encode().as_slice()).cloned();
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
        let slots = disk.blocks.live.range::<[u8], _>(borrowed(&from, &to));
        let shown = slots.filter_map(|(name, value)| {
            let slot = Slot::decode(name).filter(|slot| slot.generation <= up_to)?;
            Some((name, slot.generation, value))
        });
        let Some((name, generation, value)) = shown.last() else {
            return Ok(None);
        };
        disk.check_sector(name)?;
        Ok(Some(Found::new(key, generation, value.clone())))
    }

    fn slots(&self, (from, to): SlotRange) -> Slots {
        let is_janitor = std::thread::current().name() == Some("zone-janitor");
        let _gate = is_janitor.then(|| self.scans.lock());
        let mut disk = self.disk.lock();
        if let Err(error) = disk.check_read() {
            return Box::new(std::iter::once(Err(error)));
        }
        let names = disk.blocks.live.range::<[u8], _>(borrowed(&from, &to));
        let slots: Vec<_> = names.filter_map(|(name, _)| Slot::decode(name)).collect();
        Box::new(slots.into_iter().map(Ok))
    }

    fn contains(&self, slot: &Slot) -> Result<bool, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        Ok(disk.blocks.live.contains_key(slot.encode().as_slice()))
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let mut disk = self.disk.lock();
        disk.check_read()?;
        Ok(disk.meta.live.get(key).cloned())
    }

    fn meta_after(&self, prefix: &[u8], after: &[u8]) -> Metas {
        let mut disk = self.disk.lock();
        if let Err(error) = disk.check_read() {
            return Box::new(std::iter::once(Err(error)));
        }
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let entries = disk.meta.live.range::<[u8], _>(from);
        let entries = entries.take_while(|(key, _)| key.starts_with(prefix));
        let entries = entries.filter(|(key, _)| &key[..] > after);
        let entries: Vec<_> = entries.map(|(k, v)| Ok((k.clone(), v.clone()))).collect();
        Box::new(entries.into_iter())
    }

    fn free_bytes(&self) -> std::io::Result<u64> {
        Ok(match self.disk.lock().faults.full {
            true => 0,
            false => 1 << 40,
        })
    }
}

fn borrowed<'a, const N: usize>(
    from: &'a Bound<[u8; N]>,
    to: &'a Bound<[u8; N]>,
) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let slice = |bound: &'a Bound<[u8; N]>| bound.as_ref().map(|key| key.as_slice());
    (slice(from), slice(to))
}
