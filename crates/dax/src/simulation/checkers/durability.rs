//! Durability (DAX 4): what a completed sync covers stays on k replicas, so it survives the loss of
//! any k-1 of them; and nobody who reads by quorum sees anything older.

use std::collections::BTreeMap;

use super::super::history::{
    Action, Content, DAMAGED, Event, History, NOTHING, OpNumber, Outcome, Roster, Shelf, Started,
};
use super::Checker;
use super::floors::{Floor, Floors};
use super::noc::origin;
use crate::ids::{BlockKey, Epoch, FileId, Generation};

#[derive(Debug)]
pub(super) struct Durability {
    sync_replicas: usize,
    /// Without any, all replicas count.
    rosters: Vec<Roster>,
    singles: Floors<BlockKey>,
    /// Files whose beginnings were given back: by which epoch's owner, before which block.
    removed: Vec<(FileId, Epoch, u64)>,
    /// The newest synced contents of each block in each generation.
    data: BTreeMap<(BlockKey, Generation), Content>,
    /// Generations up to this may have been given back.
    retained_end: Generation,
    began: BTreeMap<OpNumber, Floor>,
    reads: BTreeMap<OpNumber, (Generation, Content)>,
}

impl Durability {
    pub fn new(sync_replicas: usize) -> Durability {
        Durability {
            sync_replicas,
            rosters: Vec::new(),
            singles: Floors::default(),
            removed: Vec::new(),
            data: BTreeMap::new(),
            retained_end: Generation::SINGLE,
            began: BTreeMap::new(),
            reads: BTreeMap::new(),
        }
    }
}

impl Checker for Durability {
    fn name(&self) -> &'static str {
        "durability"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match event {
            Event::Started {
                op, epoch, action, ..
            } => self.started(*op, *epoch, *action),
            Event::Ended { op, outcome } => return self.ended(history, *op, *outcome),
            Event::Retained { end, .. } => self.retained_end = self.retained_end.max(*end),
            Event::Removed {
                epoch,
                file,
                before,
            } => self.removed.push((*file, *epoch, *before)),
            Event::Rosters(rosters) => self.rosters.clone_from(rosters),
            Event::Stored(shelves) => return self.stored(history, shelves),
            _ => {}
        }
        Ok(())
    }
}

impl Durability {
    fn started(&mut self, op: OpNumber, epoch: Option<Epoch>, action: Action) {
        match action {
            Action::Promote(key) => {
                self.began.insert(op, self.singles.get(key));
            }
            Action::Read { key, up_to } if epoch.is_none() => {
                self.began.insert(op, self.singles.get(key));
                self.reads.insert(op, self.newest(key, up_to));
            }
            _ => {}
        }
    }

    /// The newest synced contents of a data block that nobody has given up.
    fn newest(&self, key: BlockKey, up_to: Generation) -> (Generation, Content) {
        let of_block = self.data.range((key, Generation::SINGLE)..=(key, up_to));
        let newest = of_block.map(|((_, g), content)| (*g, *content)).next_back();
        newest
            .filter(|(g, _)| *g > self.retained_end)
            .unwrap_or((Generation::SINGLE, NOTHING))
    }

    fn ended(&mut self, history: &History, op: OpNumber, outcome: Outcome) -> Result<(), String> {
        let Some(started) = history.op(op).copied() else {
            return Ok(());
        };
        let began = self.began.remove(&op);
        match (started.action, outcome) {
            (action, Outcome::Done) if action.is_sync() => self.synced(history, &started),
            (Action::Promote(key), Outcome::Block(generation, content)) => {
                let before = began.unwrap_or_default();
                let epoch = started.epoch.unwrap_or_default();
                if before.place.0 <= epoch {
                    let origin = origin(history, key, generation, content)?;
                    // Whether it may survive is for another checker to say.
                    let _ = self.singles.chosen(key, epoch, (content, origin), &before);
                }
                Ok(())
            }
            (Action::Read { key, .. }, Outcome::Block(generation, content)) => {
                let Some(least) = self.reads.remove(&op) else {
                    return Ok(());
                };
                let origin = origin(history, key, generation, content)?;
                let before = began.unwrap_or_default();
                let right = match generation {
                    Generation::SINGLE if least.1 == NOTHING => before.allows(content, origin),
                    // It may have been given back meanwhile.
                    _ => (generation, content) >= least || least.0 <= self.retained_end,
                };
                match right {
                    true => Ok(()),
                    false => Err(format!(
                        "client {} read {content} of {key} {generation}, behind {before:?} {least:?}",
                        started.client
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    fn synced(&mut self, history: &History, sync: &Started) -> Result<(), String> {
        for write in history.covered(sync) {
            if write.generation == Generation::SINGLE {
                let place = (write.epoch, write.content);
                let _ = self.singles.durable(write.key, write.content, place);
            } else {
                let newest = self.data.entry((write.key, write.generation)).or_default();
                *newest = write.content.max(*newest);
            }
        }
        Ok(())
    }

    /// True if an owner of this epoch, or of a later one, has given the block back.
    fn is_removed(&self, key: BlockKey, written: Epoch) -> bool {
        let given_back = |(file, epoch, before): &(FileId, Epoch, u64)| {
            *file == key.file && *epoch >= written && key.block.0 < *before
        };
        self.removed.iter().any(given_back)
    }

    fn stored(&self, history: &History, shelves: &[Option<Shelf>]) -> Result<(), String> {
        let all = [Roster {
            members: (0..shelves.len()).collect(),
            sync: self.sync_replicas,
        }];
        let rosters = match self.rosters.is_empty() {
            true => &all[..],
            false => &self.rosters,
        };
        let mut whys = Vec::new();
        for roster in rosters {
            let those: Vec<Option<&Shelf>> = roster
                .members
                .iter()
                .map(|at| shelves[*at].as_ref())
                .collect();
            match self.stored_on(history, &those, roster.sync) {
                Ok(()) => return Ok(()),
                Err(why) => whys.push(why),
            }
        }
        Err(whys.join("; and "))
    }

    fn stored_on(
        &self,
        history: &History,
        shelves: &[Option<&Shelf>],
        sync: usize,
    ) -> Result<(), String> {
        let lost = shelves.iter().filter(|s| s.is_none()).count();
        // A damaged copy is lost, too: it counts as one that was there.
        let enough = |holders: usize| holders + lost >= sync;
        let on = |slot: (BlockKey, Generation), holds: &dyn Fn(Content) -> bool| {
            let shelves = shelves.iter().flatten();
            let found = shelves.map(|shelf| shelf.get(&slot).copied().unwrap_or(NOTHING));
            found.filter(|c| *c == DAMAGED || holds(*c)).count()
        };
        let needed = |(key, floor): &(&BlockKey, &Floor)| !self.is_removed(**key, floor.origin.0);
        for (key, floor) in self.singles.iter().filter(needed) {
            let holds = |content| {
                let origin = origin(history, *key, Generation::SINGLE, content);
                origin.is_ok_and(|origin| floor.allows(content, origin))
            };
            let holders = on((*key, Generation::SINGLE), &holds);
            if !enough(holders) {
                let found = shelves.iter().map(|shelf| {
                    let slot = (*key, Generation::SINGLE);
                    shelf.map(|shelf| shelf.get(&slot).copied().unwrap_or(NOTHING))
                });
                let found: Vec<_> = found.collect();
                return Err(format!(
                    "{key}: {floor:?} is on {holders} replicas, with {lost} lost: {found:?}"
                ));
            }
        }
        for ((key, generation), newest) in &self.data {
            let holders = on((*key, *generation), &|content| content >= *newest);
            if *generation > self.retained_end && !enough(holders) {
                return Err(format!(
                    "{key} {generation}: {newest} is on {holders} replicas, with {lost} lost"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{KEY, Script};
    use super::*;

    fn script() -> Script {
        let mut s = Script::new(Durability::new(2));
        s.write(1, 1);
        s.sync(1);
        s.write(1, 2);
        s
    }

    /// What each of three replicas has of the block; none if it lost everything.
    fn stored(contents: [Option<Content>; 3], generation: Generation) -> Event {
        let shelf = |content| Shelf::from([((KEY, generation), content)]);
        Event::Stored(contents.map(|content| content.map(shelf)).to_vec())
    }

    #[test]
    fn a_synced_write_stays_on_k_replicas() {
        let cases = [
            ([Some(1), Some(0), Some(2)], true),
            ([Some(1), Some(0), Some(0)], false),
            ([Some(1), None, Some(0)], true),
            ([Some(0), None, Some(0)], false),
            ([Some(1), Some(DAMAGED), Some(0)], true),
        ];
        for (contents, right) in cases {
            let mut s = script();
            s.event(stored(contents, Generation::SINGLE));
            match right {
                true => s.holds(),
                false => s.breaks("replicas"),
            }
        }
    }

    #[test]
    fn while_members_change_k_of_either_will_do_and_then_only_the_new() {
        let roster = |members: &[usize]| Roster {
            members: members.to_vec(),
            sync: 2,
        };
        let (old, new) = (roster(&[0, 1]), roster(&[1, 2]));
        for (rosters, right) in [
            (vec![old.clone()], true),
            (vec![old, new.clone()], true),
            (vec![new], false),
        ] {
            let mut s = script();
            s.event(Event::Rosters(rosters));
            s.event(stored([Some(1), Some(2), Some(0)], Generation::SINGLE));
            match right {
                true => s.holds(),
                false => s.breaks("replicas"),
            }
        }
    }

    #[test]
    fn writes_ruled_out_by_a_promotion_do_not_count() {
        let mut s = script();
        s.promote(2, 1);
        s.event(stored([Some(1), Some(2), Some(2)], Generation::SINGLE));
        s.breaks("on 1 replicas");
    }

    #[test]
    fn generations_count_each_for_itself_until_they_are_let_go() {
        let g = |number| Generation {
            epoch: Epoch(1),
            number,
        };
        for let_go in [false, true] {
            let mut s = Script::new(Durability::new(2));
            s.write_in(1, 1, g(1));
            s.write_in(1, 2, g(2));
            s.sync(1);
            if let_go {
                let (epoch, seals, end) = (Epoch(1), [1, 1], g(2));
                s.event(Event::Retained { epoch, seals, end });
            }
            s.event(stored([Some(2), Some(2), Some(2)], g(2)));
            match let_go {
                true => s.holds(),
                false => s.breaks("on 0 replicas"),
            }
        }
    }

    #[test]
    fn older_versions_are_never_read() {
        for (found, right) in [(0, false), (1, true), (2, true)] {
            let mut s = script();
            s.read(0, found);
            match right {
                true => s.holds(),
                false => s.breaks("behind"),
            }
        }
    }
}
