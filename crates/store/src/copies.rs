//! The part of a fill ([`crate::fill`]) that is the committer's: it puts copies where nothing is, and marks a volume as filled.
//!
//! Invariant: a copy is put only into a slot that has nothing, or an older version or a damaged copy of the same; never of a file that
//! was removed before.

use std::sync::Arc;

#[cfg(test)]
use dax::ids::Generation;
use dax::ids::{BlockKey, Epoch};
use dax::wire::{BlockWrite, Response, StoredBlock};

use crate::committer::{Committer, Round};
use crate::decide::{self, Stored, mark};
use crate::engine::EngineError;
use crate::filling::PassNumber;
use crate::keys::Slot;
#[cfg(test)]
use crate::layers::LayerFlaw;
use crate::meta::{self, Removal};
use crate::volume::Volume;

impl Committer {
    /// Puts copies of a pass, which does not count if one of them cannot be put.
    pub(crate) fn copy(
        &mut self,
        (volume, pass): (&Arc<Volume>, PassNumber),
        blocks: Vec<(BlockKey, StoredBlock)>,
        round: &mut Round,
    ) -> Result<(), EngineError> {
        for (key, block) in blocks {
            match self.copy_one(volume, key, block, round) {
                Ok(true) => {}
                Ok(false) => volume.fill.fail(pass),
                Err(error) if error.may_pass() => volume.fill.fail(pass),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// False if there is no room.
    fn copy_one(
        &mut self,
        volume: &Arc<Volume>,
        key: BlockKey,
        block: StoredBlock,
        round: &mut Round,
    ) -> Result<bool, EngineError> {
        let gone = meta::gone_file_key(volume.id, key.file);
        let gone = match round.metas.get(&gone) {
            Some(value) => value.is_some(),
            None => self.shared.engine.meta(&gone)?.is_some(),
        };
        #[cfg(test)]
        let gone = gone && self.flaw() != Some(LayerFlaw::RemovedComesBack);
        #[cfg(test)]
        if self.flaw() == Some(LayerFlaw::CopyReplaces)
            && let Some(newest) = self.newest_own(volume, key)
        {
            let data = block.data;
            let replacing = StoredBlock::new(key, newest, block.version, data);
            let write = copy_write(key, replacing);
            let slot = Slot {
                volume: volume.id,
                key,
                generation: newest,
            };
            self.versions.set(slot, write.version);
            round.blocks.insert(slot, Some(write));
            return Ok(true);
        }
        if volume.is_removed() || gone {
            return Ok(true);
        }
        let slot = Slot {
            volume: volume.id,
            key,
            generation: block.generation,
        };
        let stored = self.stored(&slot, round)?;
        if !stored.is_replaced_by(block.version) {
            return Ok(true);
        }
        if !self.room.admit(&self.shared, block.data.len() as u64) {
            return Ok(false);
        }
        // Not remembered otherwise: the writers' blocks would be forgotten for it.
        if self.versions.get(&slot).is_some() {
            self.versions.set(slot, block.version);
        }
        round.bytes += block.data.len();
        let touched = round.touch(volume);
        touched.slots += i64::from(stored == Stored::Nothing);
        touched.candidates.push(key);
        round.blocks.insert(slot, Some(copy_write(key, block)));
        Ok(true)
    }

    /// A pass has seen everything: the volume is filled, unless something was not put, or it lacks something by now.
    pub(crate) fn filled(
        &self,
        volume: &Arc<Volume>,
        pass: PassNumber,
        round: &mut Round,
    ) -> Result<(), EngineError> {
        let rebuilding = volume.decided().rebuilding;
        if volume.is_removed() || rebuilding || volume.fill.has_failed(pass) {
            return Ok(());
        }
        match self.mark_filled(volume, round) {
            // The next pass has little to do.
            Err(error) if error.may_pass() => Ok(()),
            done => done,
        }
    }

    /// The volume is complete again; of the image as well, if zones had all of it before it was rebuilt.
    pub(crate) fn rebuilt(
        &self,
        volume: &Arc<Volume>,
        round: &mut Round,
    ) -> Result<Response, EngineError> {
        let ended = volume.fill.is_ended();
        #[cfg(test)]
        let ended = ended || self.flaw() == Some(LayerFlaw::RebuiltIsFilled);
        if volume.layer().is_some()
            && ended
            && let Err(error) = self.mark_filled(volume, round)
        {
            return error.told().map(|told| decide::error(&told));
        }
        mark(volume, round, |about| {
            about.rebuilding = false;
            about.restored = true;
        });
        round.rebuilt.push(volume.clone());
        Ok(Response::Done)
    }

    /// The volume has everything itself. What was remembered for its fill is not needed any more.
    pub(crate) fn mark_filled(
        &self,
        volume: &Arc<Volume>,
        round: &mut Round,
    ) -> Result<(), EngineError> {
        let prefix = meta::gone_files_key(volume.id);
        let gone = self.shared.engine.meta_prefix(&prefix)?;
        round.metas.retain(|key, _| !key.starts_with(&prefix));
        let gone = gone.into_iter().map(|(key, _)| (key.to_vec(), None));
        round.metas.extend(gone);
        mark(volume, round, |about| about.filled = true);
        round.filled.push(volume.clone());
        Ok(())
    }
}

/// A copy as a round keeps writes. No epoch is asked for it.
fn copy_write(key: BlockKey, block: StoredBlock) -> BlockWrite {
    BlockWrite {
        epoch: Epoch::NONE,
        key,
        generation: block.generation,
        version: block.version,
        checksum: block.checksum,
        base: None,
        data: block.data,
    }
}

#[cfg(test)]
impl Committer {
    fn flaw(&self) -> Option<LayerFlaw> {
        self.shared.volumes.layer_flaw()
    }

    /// The newest generation of a block that is stored of the volume itself.
    fn newest_own(&self, volume: &Volume, key: BlockKey) -> Option<Generation> {
        let range = (key.block.0, key.block.0);
        let slots = self.shared.slots_of(volume.id, key.file, range);
        let generations = slots.filter_map(Result::ok).map(|slot| slot.generation);
        generations
            .max()
            .filter(|newest| newest.epoch > volume.settings.unowned())
    }
}

/// Remembers files that are removed from a volume that may be filled later.
pub(crate) fn remember_gone(volume: &Volume, removal: &Removal, round: &mut Round) {
    if let (Some(_), Removal::Files(files)) = (volume.layer(), removal) {
        let keys = files
            .iter()
            .map(|file| meta::gone_file_key(volume.id, *file));
        round
            .metas
            .extend(keys.map(|key| (key, Some(bytes::Bytes::new()))));
    }
}
