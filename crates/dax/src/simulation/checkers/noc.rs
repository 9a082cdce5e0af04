//! Non-deterministic one-copy consistency (DAX 5) of blocks that keep one version: of what an epoch
//! leaves behind, exactly one version survives, and it is the last synced one or a later one.
//!
//! "Nothing there" is no choice (the protocol does not promote it), but it is only right where
//! nothing was ever durable.

use std::collections::BTreeMap;

use super::super::history::{Action, Content, Event, History, OpNumber, Outcome};
use super::Checker;
use super::floors::{Floor, Floors, Place};
use crate::ids::{BlockKey, Generation};

#[derive(Debug, Default)]
pub(super) struct Noc {
    floors: Floors<BlockKey>,
    /// The floor when each promotion that is under way began.
    began: BTreeMap<OpNumber, Floor>,
}

/// Where contents of a block were first written; nothing is below everything.
pub(super) fn origin(
    history: &History,
    key: BlockKey,
    generation: Generation,
    content: Content,
) -> Result<Place, String> {
    if content == 0 {
        return Ok(Place::default());
    }
    let write = history.write(content);
    let of_block = write.filter(|w| (w.key, w.generation) == (key, generation));
    match of_block {
        Some(write) => Ok((write.epoch, content)),
        None => Err(format!("{content} was never written to {key} {generation}")),
    }
}

impl Checker for Noc {
    fn name(&self) -> &'static str {
        "NOC consistency"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Started {
                op,
                action: Action::Promote(key),
                ..
            } => {
                self.began.insert(op, self.floors.get(key));
                Ok(())
            }
            Event::Ended { op, outcome } => self.ended(history, op, outcome),
            _ => Ok(()),
        }
    }
}

impl Noc {
    fn ended(&mut self, history: &History, op: OpNumber, outcome: Outcome) -> Result<(), String> {
        let Some(started) = history.op(op) else {
            return Ok(());
        };
        match (started.action, outcome) {
            (action, Outcome::Done) if action.is_sync() => {
                let singles = history.covered(started);
                for write in singles.filter(|w| w.generation == Generation::SINGLE) {
                    let place = (write.epoch, write.content);
                    self.floors.durable(write.key, write.content, place)?;
                }
                Ok(())
            }
            (Action::Promote(key), Outcome::Block(_, content)) => {
                let before = self.began.remove(&op).unwrap_or_default();
                let epoch = started.epoch.unwrap_or_default();
                if before.place.0 > epoch {
                    // Deposed before it began, and not aware of it: what it knows decides nothing.
                    return Ok(());
                }
                let origin = origin(history, key, Generation::SINGLE, content)?;
                self.floors.chosen(key, epoch, (content, origin), &before)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{KEY, Script};
    use super::*;

    fn one_synced_two_not() -> Script {
        let mut s = Script::new(Noc::default());
        s.write(1, 1);
        s.sync(1);
        s.write(1, 2);
        s.write(1, 3);
        s
    }

    #[test]
    fn any_version_since_the_last_sync_may_survive() {
        for found in 1..=3 {
            let mut s = one_synced_two_not();
            s.promote(2, found);
            s.promote(3, found);
            s.holds();
        }
    }

    #[test]
    fn a_synced_write_is_not_lost() {
        let mut s = one_synced_two_not();
        s.sync(1);
        s.promote(2, 2);
        s.breaks("must survive");
        let mut s = one_synced_two_not();
        s.promote(2, NOTHING_THERE);
        s.breaks("must survive");
    }

    const NOTHING_THERE: Content = 0;

    #[test]
    fn versions_that_survive_are_one() {
        for (first, then) in [(2, 1), (2, 3), (1, 3)] {
            let mut s = one_synced_two_not();
            s.promote(2, first);
            s.promote(3, then);
            s.breaks("must survive");
        }
    }

    #[test]
    fn a_later_write_of_the_new_epoch_may_survive_it() {
        let mut s = one_synced_two_not();
        s.promote(2, 2);
        s.write(2, 4);
        s.promote(3, 4);
        s.holds();
    }

    #[test]
    fn a_sync_heard_of_late_was_found_by_the_next_epoch() {
        for (found, right) in [(3, true), (2, false)] {
            let mut s = one_synced_two_not();
            let sync = s.start(1, Action::Sync);
            s.promote(2, found);
            s.end(sync, Outcome::Done);
            match right {
                true => s.holds(),
                false => s.breaks("chosen before"),
            }
        }
    }

    #[test]
    fn absent_versions_are_not_synced_afterwards() {
        let mut s = Script::new(Noc::default());
        s.write(1, 1);
        let sync = s.start(1, Action::Sync);
        s.promote(2, NOTHING_THERE);
        s.end(sync, Outcome::Done);
        s.breaks("found nothing");
    }

    #[test]
    fn contents_come_from_a_write_of_the_block() {
        let mut s = one_synced_two_not();
        s.run(
            2,
            Action::Promote(KEY),
            Outcome::Block(Generation::SINGLE, 9),
        );
        s.breaks("never written");
    }
}
