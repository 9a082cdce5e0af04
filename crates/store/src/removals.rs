//! The committer and blocks that are given back: it notes what was asked for, and drops what the janitor finds.

use std::sync::Arc;

use dax::error::{Error, ErrorKind};
use dax::storage::Retention;
use dax::wire::Response;

use crate::committer::{Committer, Round};
use crate::copies::remember_gone;
use crate::decide::error;
use crate::engine::EngineError;
use crate::keys::Slot;
use crate::meta::{self, Removal, to_json};
use crate::volume::Volume;

impl Committer {
    /// Notes blocks to give back; the janitor does it, also after a restart.
    pub(crate) fn remove(
        &mut self,
        volume: &Arc<Volume>,
        removal: Removal,
        round: &mut Round,
    ) -> Response {
        if !self.shared.tasks.reserve(volume.id, &removal) {
            let text = "much is waiting to be given back already";
            return error(&Error::new(ErrorKind::Unavailable, text));
        }
        let number = self.next_removal;
        self.next_removal += 1;
        let key = meta::removal_key(volume.id, number);
        round.metas.insert(key, Some(to_json(&removal)));
        remember_gone(volume, &removal, round);
        round.removals.push((volume.clone(), number, removal));
        Response::Done
    }

    pub(crate) fn drop_slots(
        &mut self,
        volume: &Arc<Volume>,
        slots: &[Slot],
        round: &mut Round,
    ) -> Result<(), EngineError> {
        for slot in slots {
            let stored = match round.blocks.get(slot) {
                Some(write) => write.is_some(),
                None => match self.shared.engine.contains(slot) {
                    Ok(stored) => stored,
                    // Whether one slot less is counted, nobody knows: the janitor looks again.
                    Err(error) if error.may_pass() => {
                        volume.add_candidates([slot.key]);
                        self.undone.insert(volume.id);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            self.versions.forget(slot);
            if stored {
                round.blocks.insert(*slot, None);
                round.touch(volume).slots -= 1;
            }
        }
        Ok(())
    }

    /// Forgets a removal whose blocks are all gone; one that some are left of is done again.
    pub(crate) fn removed(
        &mut self,
        volume: Arc<Volume>,
        number: u64,
        removal: Removal,
        round: &mut Round,
    ) {
        let undone = self.undone.remove(&volume.id);
        #[cfg(test)]
        let undone = undone && !self.undone_forgotten;
        if undone {
            return self.shared.tasks.remove(volume, number, removal);
        }
        self.shared.tasks.release(volume.id, &removal);
        let key = meta::removal_key(volume.id, number);
        round.metas.insert(key, None);
    }

    /// Keeps what is needed of the volume; the janitor finds what is not.
    pub(crate) fn retain(
        &self,
        volume: &Arc<Volume>,
        retention: Retention,
        round: &mut Round,
    ) -> Response {
        let key = meta::retention_key(volume.id);
        round.metas.insert(key, Some(to_json(&retention)));
        round.retentions.push((volume.clone(), retention));
        Response::Done
    }
}
