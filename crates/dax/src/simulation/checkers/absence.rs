//! No resurrection: where an owner found nothing in a block that keeps one version, by a promotion or a read, no write
//! of an older epoch appears any more.
//!
//! More than the protocol promises on zones. It holds for what an owner is told after it was deposed, too: it
//! is told only what its successor found. A deposed owner that does not know it may still see what it wrote.

use std::collections::BTreeMap;

use super::super::history::{Action, Event, History, NOTHING, OpNumber, Outcome};
use super::Checker;
use crate::ids::{BlockKey, Epoch, Generation};

#[derive(Debug, Default)]
pub(super) struct Absence {
    /// The newest epoch whose owner was told that the block is not there.
    absent: BTreeMap<BlockKey, Epoch>,
    /// What owners were told that is there: the owner's epoch, and that of the write.
    present: BTreeMap<BlockKey, Vec<(Epoch, Epoch)>>,
    /// The same when each read that is under way began.
    began: BTreeMap<OpNumber, Epoch>,
}

impl Checker for Absence {
    fn name(&self) -> &'static str {
        "no resurrection"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Started {
                op,
                action: Action::Promote(key) | Action::Read { key, .. },
                ..
            } => {
                let absent = self.absent.get(&key).copied().unwrap_or_default();
                self.began.insert(op, absent);
                Ok(())
            }
            Event::Ended {
                op,
                outcome: Outcome::Block(_, found),
            } => self.ended(history, op, found),
            _ => Ok(()),
        }
    }
}

impl Absence {
    fn ended(&mut self, history: &History, op: OpNumber, found: u64) -> Result<(), String> {
        let (Some(started), Some(absent)) = (history.op(op), self.began.remove(&op)) else {
            return Ok(());
        };
        let epoch = started.epoch.unwrap_or(Epoch::MAX);
        if found == NOTHING {
            return match (started.action, started.epoch) {
                (Action::Promote(key), _) => self.found_nothing(key, epoch),
                (Action::Read { key, up_to }, Some(own)) if up_to == Generation::SINGLE => {
                    self.found_nothing(key, own)
                }
                _ => Ok(()),
            };
        }
        let written = history.write(found).map_or(Epoch::NONE, |w| w.epoch);
        if let Action::Promote(key) = started.action {
            self.present.entry(key).or_default().push((epoch, written));
        }
        if written < absent && epoch >= absent {
            return Err(format!(
                "client {} found {found}, written in {written}, where the owner of {absent} had found nothing",
                started.client
            ));
        }
        Ok(())
    }
}

impl Absence {
    /// An owner is told so, perhaps late: then no later owner can have found an older write.
    fn found_nothing(&mut self, key: BlockKey, epoch: Epoch) -> Result<(), String> {
        let absent = self.absent.entry(key).or_default();
        *absent = epoch.max(*absent);
        let present = self.present.get(&key).map_or(&[][..], Vec::as_slice);
        let older = |(owner, written): &&(Epoch, Epoch)| *owner > epoch && *written < epoch;
        match present.iter().find(older) {
            None => Ok(()),
            Some((owner, written)) => Err(format!(
                "the owner of {epoch} found nothing in {key}, where that of {owner} had found a write of {written}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::Script;
    use super::*;

    fn absent_in_two() -> Script {
        let mut s = Script::new(Absence::default());
        s.own(1);
        s.write(1, 1);
        s.own(2);
        s.promote(2, NOTHING);
        s
    }

    #[test]
    fn absent_blocks_do_not_appear() {
        for reader in [0, 2, 3] {
            let mut s = absent_in_two();
            s.read(reader, 1);
            s.breaks("had found nothing");
        }
    }

    #[test]
    fn new_writes_do_and_the_deposed_owner_may_see_its_own() {
        let mut s = absent_in_two();
        s.read(1, 1);
        s.write(2, 2);
        s.read(0, 2);
        s.promote(3, 2);
        s.holds();
    }

    #[test]
    fn blocks_read_as_absent_by_an_owner_do_not_appear_either() {
        for (reader, right) in [(2, false), (0, true)] {
            let mut s = Script::new(Absence::default());
            s.own(1);
            s.write(1, 1);
            s.own(2);
            s.read_as_of(reader, NOTHING, Generation::SINGLE);
            s.read(3, 1);
            match right {
                true => s.holds(),
                false => s.breaks("had found nothing"),
            }
        }
    }

    #[test]
    fn answers_to_a_deposed_owner_count() {
        let mut s = Script::new(Absence::default());
        s.own(1);
        s.write(1, 1);
        s.own(2);
        s.own(3);
        s.promote(3, 1);
        s.promote(2, NOTHING);
        s.breaks("had found a write of");
    }
}
