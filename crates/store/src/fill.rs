//! Fills a volume that is laid over another one: copies what it shows of the image, so that it needs the volume below no more. Each
//! zone does so by itself, from what it has itself.
//!
//! ```text
//!   record "fill" ──▶ pass: each block of the volumes below ─ in the image, needed, not there? ──▶ committer: put ──▶ all seen: filled
//!                      ▲                                                                                  │
//!                      └── a block could not be read or written, or the volumes below are others now ─────┘
//! ```
//!
//! A copy has the generation and the version of the block. Both are of the parent's, below all of the child's: so a copy takes the place
//! of nothing that the child wrote, and a read finds the same before and after. (`RemoveBlocksBefore` is of blocks of one version,
//! which no layer shows; files that the child removed are remembered until it is filled.)
//!
//! Invariants: a volume is marked as filled after a pass that has seen every block of all volumes below, complete as they were from its
//! beginning to its end; the copies are durable before the mark. Until then nobody is told of the copies ([`crate::inventory`]).

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dax::ids::{BlockKey, FileId, Generation};
use dax::layer::Layer;
use dax::replica;
use dax::storage::Retention;
use dax::wire::StoredBlock;

use crate::engine::{Engine, EngineError, Found};
use crate::filling::{LOOK_EVERY, PassNumber};
use crate::janitor::{EVERYTHING, Pace};
use crate::keys::{Slot, VolumeId};
use crate::layers;
#[cfg(test)]
use crate::layers::LayerFlaw;
use crate::meta::{self, Forgiven};
use crate::shared::{Shared, Work};
use crate::volume::{Volume, Volumes};

/// Slots of the volumes below that are looked at before another volume has its turn.
const SLOTS_PER_TURN: usize = if cfg!(test) { 8 } else { 1024 };
/// Bytes of copies in one message to the committer.
const BYTES_PER_PUT: usize = 128 << 10;
/// Weight of a copy in the committer's queue beside its data.
const COPY_WEIGHT: usize = 256;
/// Time until a pass that could not see or copy everything is begun again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Volumes below, as a pass found them: it counts only if they are the same at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Below(Vec<(VolumeId, Option<Forgiven>)>);

/// One look at all blocks of the volumes below.
struct Pass {
    number: PassNumber,
    below: Below,
    /// Which of them it is at, and the last block there that it has seen.
    at: usize,
    after: Option<BlockKey>,
    /// Something could not be read.
    lacking: bool,
    /// The last file, and whether it was removed.
    file: Option<(FileId, bool)>,
}

/// Outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// There is more.
    More,
    /// The pass is over, and the committer decides whether it counts.
    Over,
    /// Nothing can be done at present.
    Later,
}

/// Finds what is to be copied; the committer puts it, so that it never races with removing.
pub(crate) struct Filler {
    shared: Arc<Shared>,
    passes: HashMap<VolumeId, Pass>,
    /// Volumes that are left alone until then.
    later: HashMap<VolumeId, Instant>,
    pace: Pace,
}

impl Filler {
    pub fn new(shared: Arc<Shared>) -> Filler {
        Filler {
            shared,
            passes: HashMap::new(),
            later: HashMap::new(),
            pace: Pace::new(),
        }
    }

    /// Works until the zone stops.
    pub fn run(mut self) {
        loop {
            let now = Instant::now();
            self.later.retain(|_, until| *until > now);
            let mut more = false;
            for volume in wanted(&self.shared.volumes) {
                if self.later.contains_key(&volume.id) {
                    continue;
                }
                match self.turn(&volume) {
                    Ok(Turn::More) => more = true,
                    Ok(Turn::Over) => drop(self.later.insert(volume.id, now + LOOK_EVERY)),
                    Ok(Turn::Later) => self.leave(&volume, now),
                    Err(error) if error.may_pass() => {
                        self.shared.report_unreadable(&error);
                        self.leave(&volume, now);
                    }
                    Err(error @ EngineError::Damaged(_)) => {
                        self.shared.report_index(&error);
                        self.leave(&volume, now);
                    }
                    Err(error) => return self.shared.fail(&error),
                }
            }
            if self.shared.is_stopping() || !more && !self.shared.fills.rest() {
                return;
            }
        }
    }

    fn leave(&mut self, volume: &Volume, now: Instant) {
        self.passes.remove(&volume.id);
        self.later.insert(volume.id, now + AGAIN_AFTER);
    }

    /// One turn of each volume that is to be filled.
    #[cfg(test)]
    pub fn work(&mut self) {
        let shared = self.shared.clone();
        shared.volumes.set_filling(true);
        for volume in wanted(&shared.volumes) {
            match self.turn(&volume) {
                Ok(Turn::More) if shared.volumes.layer_flaw() == Some(LayerFlaw::FilledEarly) => {
                    let filled = Work::Filled(volume, PassNumber::MAX);
                    shared.queue.put(VolumeId::NONE, filled, COPY_WEIGHT);
                }
                Ok(Turn::More | Turn::Over) => {}
                Ok(Turn::Later) => drop(self.passes.remove(&volume.id)),
                Err(error) if error.may_pass() => drop(self.passes.remove(&volume.id)),
                Err(error) => panic!("{error}"),
            }
        }
        shared.volumes.set_filling(false);
    }

    /// Looks at some blocks of the volumes below one.
    fn turn(&mut self, volume: &Arc<Volume>) -> Result<Turn, EngineError> {
        let Some(chain) = chain(&self.shared.volumes, volume) else {
            return Ok(Turn::Later);
        };
        let below = Below(chain.iter().map(|(v, _)| (v.id, v.forgiven())).collect());
        let pass = self.passes.remove(&volume.id);
        let mut pass = match pass.filter(|pass| pass.below == below) {
            Some(pass) => pass,
            None => {
                let all = chain.iter().map(|(below, _)| below.slots()).sum();
                Pass {
                    number: volume.fill.begin(all),
                    below,
                    at: 0,
                    after: None,
                    lacking: false,
                    file: None,
                }
            }
        };
        let shared = self.shared.clone();
        let mut copies = Copies::new(&shared, volume, pass.number);
        while let Some((below, layer)) = chain.get(pass.at) {
            if !self.look_at(below, layer, &mut pass, &mut copies)? {
                copies.put();
                self.passes.insert(volume.id, pass);
                return Ok(Turn::More);
            }
            pass.at += 1;
            pass.after = None;
        }
        copies.put();
        if pass.lacking {
            tracing::warn!(
                volume = %volume.name,
                "blocks that a branch shows of its parent cannot be read in this zone: it is not filled; trying again"
            );
            return Ok(Turn::Later);
        }
        let filled = Work::Filled(volume.clone(), pass.number);
        self.shared.queue.put(VolumeId::NONE, filled, COPY_WEIGHT);
        Ok(Turn::Over)
    }

    /// Looks at blocks of one volume below; false if there are more than in one turn.
    fn look_at(
        &mut self,
        below: &Volume,
        layer: &Layer,
        pass: &mut Pass,
        copies: &mut Copies<'_>,
    ) -> Result<bool, EngineError> {
        let (first, last) = Slot::range(below.id, EVERYTHING);
        let first = match pass.after {
            None => first,
            Some(key) => Bound::Excluded(
                Slot {
                    volume: below.id,
                    key,
                    generation: Generation::MAX,
                }
                .encode(),
            ),
        };
        let (mut key, mut generations) = (None, Vec::new());
        let mut seen = 0;
        for slot in self.shared.engine.slots((first, last)) {
            let slot = slot?;
            if key.is_some_and(|key| key != slot.key) {
                self.look(layer, &mut key, &mut generations, pass, copies)?;
                if seen >= SLOTS_PER_TURN || self.shared.is_stopping() {
                    copies.volume.fill.look(seen as u64);
                    return Ok(false);
                }
            }
            key = Some(slot.key);
            generations.push(slot.generation);
            seen += 1;
            self.pace.worked(1);
        }
        self.look(layer, &mut key, &mut generations, pass, copies)?;
        copies.volume.fill.look(seen as u64);
        Ok(true)
    }

    /// Looks at one block of which a volume below has these generations.
    fn look(
        &self,
        layer: &Layer,
        key: &mut Option<BlockKey>,
        generations: &mut Vec<Generation>,
        pass: &mut Pass,
        copies: &mut Copies<'_>,
    ) -> Result<(), EngineError> {
        let Some(key) = key.take() else {
            return Ok(());
        };
        pass.after = Some(key);
        let in_image = layer.image.newest_of(generations);
        generations.clear();
        if in_image.is_none_or(|generation| generation == Generation::SINGLE) {
            return Ok(());
        }
        let volume = copies.volume;
        let gone = match pass.file {
            Some((file, gone)) if file == key.file => gone,
            _ => is_gone(&*self.shared.engine, volume, key.file)?,
        };
        #[cfg(test)]
        let gone = gone && self.shared.volumes.layer_flaw() != Some(LayerFlaw::RemovedComesBack);
        pass.file = Some((key.file, gone));
        if gone {
            return Ok(());
        }
        let found = layers::newest(
            (&self.shared.volumes, &*self.shared.engine),
            volume,
            key,
            Generation::MAX,
        )?;
        let block = match found {
            Ok(Some((_, Found::Block(block)))) => block,
            Ok(None) => return Ok(()),
            Ok(Some((below, Found::Corrupt(generation)))) => {
                self.shared.report_damage(&below, key, generation);
                pass.lacking = true;
                return Ok(());
            }
            Err(_) => {
                pass.lacking = true;
                return Ok(());
            }
        };
        if self.is_needed((volume, copies.retention.as_ref()), key, &block)? {
            copies.add(key, block);
        }
        Ok(())
    }

    /// True if a volume lacks this version of a block, or its copy is damaged, and some image of it shows it.
    fn is_needed(
        &self,
        (volume, retention): (&Volume, Option<&Retention>),
        key: BlockKey,
        block: &StoredBlock,
    ) -> Result<bool, EngineError> {
        let generation = block.generation;
        let range = (key.block.0, key.block.0);
        let slots = self.shared.slots_of(volume.id, key.file, range);
        let stored: Result<Vec<Generation>, EngineError> =
            slots.map(|slot| Ok(slot?.generation)).collect();
        let mut stored = stored?;
        if stored.contains(&generation) {
            let slot = Slot {
                volume: volume.id,
                key,
                generation,
            };
            let copy = self.shared.engine.get(&slot)?;
            return Ok(!matches!(copy, Some(Found::Block(copy)) if copy.version >= block.version));
        }
        stored.push(generation);
        let dropped = retention.map(|retention| replica::prune(&stored, retention));
        Ok(!dropped.is_some_and(|dropped| dropped.contains(&generation)))
    }
}

/// Volumes that are to be filled here.
fn wanted(volumes: &Volumes) -> Vec<Arc<Volume>> {
    let is_wanted = |volume: &Arc<Volume>| {
        volume.fill.is_wanted()
            && volume.layer().is_some()
            && !volume.is_removed()
            && !volume.is_rebuilding()
    };
    volumes.all().into_iter().filter(is_wanted).collect()
}

/// The volumes below one, each with the layer over it, if this zone has the whole of all.
fn chain(volumes: &Volumes, volume: &Arc<Volume>) -> Option<Vec<(Arc<Volume>, Layer)>> {
    let mut chain: Vec<(Arc<Volume>, Layer)> = Vec::new();
    let mut child = volume.clone();
    while let Some(layer) = child.layer().cloned() {
        let parent = match layers::complete(volumes, &child, &layer) {
            Ok(parent) => parent,
            Err(error) => {
                tracing::info!(volume = %volume.name, %error, "waits with filling it");
                return None;
            }
        };
        chain.push((parent.clone(), layer));
        child = parent;
    }
    Some(chain)
}

/// True if the volume has removed the file.
fn is_gone(engine: &dyn Engine, volume: &Volume, file: FileId) -> Result<bool, EngineError> {
    let key = meta::gone_file_key(volume.id, file);
    Ok(engine.meta(&key)?.is_some())
}

/// Collects copies and hands them to the committer. They have a turn of their own there, so that the volume's writers do not wait
/// behind them.
struct Copies<'a> {
    shared: &'a Shared,
    volume: &'a Arc<Volume>,
    retention: Option<Retention>,
    pass: PassNumber,
    blocks: Vec<(BlockKey, StoredBlock)>,
    bytes: usize,
}

impl<'a> Copies<'a> {
    fn new(shared: &'a Shared, volume: &'a Arc<Volume>, pass: PassNumber) -> Copies<'a> {
        Copies {
            shared,
            volume,
            retention: volume.retention(),
            pass,
            blocks: Vec::new(),
            bytes: 0,
        }
    }

    fn add(&mut self, key: BlockKey, block: StoredBlock) {
        self.bytes += block.data.len() + COPY_WEIGHT;
        self.blocks.push((key, block));
        if self.bytes >= BYTES_PER_PUT {
            self.put();
        }
    }

    fn put(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let blocks = std::mem::take(&mut self.blocks);
        let bytes = std::mem::take(&mut self.bytes);
        let work = Work::Fill(self.volume.clone(), self.pass, blocks);
        self.shared.queue.put(VolumeId::NONE, work, bytes);
    }
}
