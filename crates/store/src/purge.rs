//! Gives back the blocks of volumes that were removed.

use crate::engine::EngineError;
use crate::janitor::{EVERYTHING, Janitor, Pace, SLOT_WEIGHT, SLOTS_PER_DROP};
use crate::keys::{Slot, VolumeId};
use crate::shared::Work;

impl Janitor {
    /// Gives all blocks of a removed volume back.
    pub(crate) fn purge(&self, volume: VolumeId) -> Result<(), EngineError> {
        let mut pace = Pace::new();
        let mut slots = Vec::new();
        let send = |slots: Vec<Slot>| {
            let weight = slots.len() * SLOT_WEIGHT;
            self.shared.queue.put(volume, Work::Purge(slots), weight);
        };
        for slot in self.shared.engine.slots(Slot::range(volume, EVERYTHING)) {
            if self.shared.is_stopping() {
                return Ok(());
            }
            slots.push(slot?);
            pace.worked(1);
            if slots.len() >= SLOTS_PER_DROP {
                send(std::mem::take(&mut slots));
            }
        }
        if !slots.is_empty() {
            send(slots);
        }
        Ok(())
    }
}
