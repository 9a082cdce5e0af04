//! Reads of owners: what an older epoch's owner is told to be durable after a later one has read the block is what
//! that one has read, or is older. (An answer of a replica that still takes writes of the dead epoch would be none.)
//!
//! Of blocks that keep one version only: others may be given back in between.

use std::collections::BTreeMap;

use super::super::history::{Action, Content, Event, History, OpNumber, Outcome, Started};
use super::Checker;
use super::floors::Place;
use crate::ids::{BlockKey, Epoch, Generation};

#[derive(Debug, Default)]
pub(super) struct Owners {
    /// For each block, the lowest place that an owner of each epoch was shown.
    shown: BTreeMap<BlockKey, BTreeMap<Epoch, Place>>,
    /// Blocks that somebody has chosen a version of: the older ones are ruled out, whatever their place.
    chosen: BTreeMap<BlockKey, Epoch>,
}

impl Checker for Owners {
    fn name(&self) -> &'static str {
        "reads of owners"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Started {
                epoch: Some(epoch),
                action: Action::Promote(key),
                ..
            } => {
                let chosen = self.chosen.entry(key).or_default();
                *chosen = epoch.max(*chosen);
                Ok(())
            }
            Event::Ended { op, outcome } => self.ended(history, op, outcome),
            _ => Ok(()),
        }
    }
}

impl Owners {
    fn ended(&mut self, history: &History, op: OpNumber, outcome: Outcome) -> Result<(), String> {
        let Some(started) = history.op(op).copied() else {
            return Ok(());
        };
        match (started.action, started.epoch, outcome) {
            (
                Action::Read { key, up_to },
                Some(epoch),
                Outcome::Block(Generation::SINGLE, content),
            ) if up_to >= Generation::SINGLE => {
                self.shown(history, (key, epoch), content);
                Ok(())
            }
            (action, Some(_), Outcome::Done) if action.is_sync() => self.synced(history, &started),
            _ => Ok(()),
        }
    }

    fn shown(&mut self, history: &History, (key, epoch): (BlockKey, Epoch), content: Content) {
        let write = history.write(content);
        let place = write.map_or(Place::default(), |write| (write.epoch, content));
        let lowest = self
            .shown
            .entry(key)
            .or_default()
            .entry(epoch)
            .or_insert(place);
        *lowest = place.min(*lowest);
    }

    fn synced(&self, history: &History, sync: &Started) -> Result<(), String> {
        for write in history
            .covered(sync)
            .filter(|w| w.generation == Generation::SINGLE)
        {
            if self
                .chosen
                .get(&write.key)
                .is_some_and(|by| *by > write.epoch)
            {
                continue;
            }
            let place = (write.epoch, write.content);
            let later = self.shown.get(&write.key).into_iter().flatten();
            let mut older = later.filter(|(epoch, shown)| **epoch > write.epoch && **shown < place);
            if let Some((epoch, shown)) = older.next() {
                return Err(format!(
                    "{write:?} became durable after the owner of {epoch} had read {shown:?}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::Script;
    use super::*;

    #[test]
    fn writes_unseen_by_a_later_owner_do_not_become_durable() {
        let mut s = Script::new(Owners::default());
        s.write(1, 5);
        s.read(2, 0);
        s.sync(1);
        s.breaks("had read");
    }

    #[test]
    fn writes_seen_or_ruled_out_may_be_reported_late() {
        let mut s = Script::new(Owners::default());
        s.write(1, 5);
        s.read(2, 5);
        s.sync(1);
        s.holds();
        let mut s = Script::new(Owners::default());
        s.write(1, 5);
        s.sync(1);
        s.promote(2, 0);
        s.read(2, 0);
        s.holds();
    }
}
