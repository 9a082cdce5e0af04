//! Writes that begin with what the zone has already, which is not sent.
//!
//! Invariant: what is stored is what the writer's checksum says, or nothing.

#[cfg(test)]
use dax::error::Error;
use dax::wire::{Base, BlockWrite};

use crate::committer::{Committer, Round};
use crate::engine::{EngineError, Found};
use crate::keys::Slot;
use crate::layers;
use crate::volume::Volume;

impl Committer {
    /// A write with what it begins with, if that is here. If that cannot be read now the write is sent as a whole, as if
    /// nothing were here: it needs no other block then, and nothing is guessed.
    pub(crate) fn completed(
        &self,
        volume: &Volume,
        (write, base): (BlockWrite, Base),
        slot: Slot,
        round: &Round,
    ) -> Result<Option<BlockWrite>, EngineError> {
        let slot = Slot {
            generation: base.generation,
            ..slot
        };
        if let Some(changed) = round.blocks.get(&slot) {
            let stored = changed.as_ref();
            return Ok(stored.and_then(|stored| self.behind(write, &stored.data)));
        }
        let layer = volume.layer();
        match self.shared.engine.get(&slot) {
            Ok(Some(Found::Block(stored))) => Ok(self.behind(write, &stored.data)),
            Ok(None) if layer.is_some() => self.completed_below(write, volume, slot),
            Ok(Some(Found::Corrupt(_)) | None) => Ok(None),
            Err(error) if error.may_pass() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same where the volume has nothing of its own there: what the writer has read is of a volume below.
    fn completed_below(
        &self,
        write: BlockWrite,
        volume: &Volume,
        slot: Slot,
    ) -> Result<Option<BlockWrite>, EngineError> {
        match layers::exactly(
            (&self.shared.volumes, &*self.shared.engine),
            volume,
            slot.key,
            slot.generation,
        ) {
            Ok(Ok(Some((_, Found::Block(stored))))) => Ok(self.behind(write, &stored.data)),
            Ok(_) => Ok(None),
            Err(error) if error.may_pass() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The whole write, if `stored` is what it begins with.
    #[cfg(not(test))]
    fn behind(&self, write: BlockWrite, stored: &[u8]) -> Option<BlockWrite> {
        write.completed(stored)
    }

    #[cfg(test)]
    fn behind(&self, write: BlockWrite, stored: &[u8]) -> Option<BlockWrite> {
        let bytes = write.base.map_or(0, |base| base.bytes as usize);
        match stored.get(..bytes).filter(|_| self.base_believed) {
            Some(beginning) => Some(BlockWrite {
                base: None,
                data: [beginning, &write.data[..]].concat().into(),
                ..write
            }),
            None => write.completed(stored),
        }
    }

    /// The refusal of a write whose beginning cannot be read, which is wrong.
    #[cfg(test)]
    pub(crate) fn held_up(&self, write: &BlockWrite, slot: Slot) -> Option<Error> {
        let base = write.base.filter(|_| self.base_holds_up)?;
        let generation = base.generation;
        let read = self.shared.engine.get(&Slot { generation, ..slot });
        read.err()?.told().ok()
    }
}
