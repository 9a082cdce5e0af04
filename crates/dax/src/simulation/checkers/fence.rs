//! Fencing: an epoch has one owner, and once a newer one is owned, nothing that an older one does
//! from then on becomes durable, nor does it take itself for the owner when it asks.

use std::collections::BTreeMap;

use super::super::history::{Action, ClientId, Content, Event, History, OpNumber, Outcome};
use super::Checker;
use crate::ids::{BlockKey, Epoch};

#[derive(Debug, Default)]
pub(super) struct Fence {
    owners: BTreeMap<Epoch, ClientId>,
    /// The highest epoch that was known to be owned when each operation began.
    began: BTreeMap<OpNumber, Epoch>,
    /// Writes that were made when a newer epoch was owned already.
    too_late: BTreeMap<Content, Late>,
}

/// A write of a deposed owner.
#[derive(Debug)]
struct Late {
    epoch: Epoch,
    key: BlockKey,
    /// The epoch that was owned.
    newer: Epoch,
}

impl Fence {
    fn newest(&self) -> Epoch {
        let newest = self.owners.last_key_value();
        newest.map_or(Epoch::NONE, |(epoch, _)| *epoch)
    }
}

impl Checker for Fence {
    fn name(&self) -> &'static str {
        "fence"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Wrote {
                epoch,
                key,
                content,
                ..
            } if epoch < self.newest() => {
                let newer = self.newest();
                self.too_late.insert(content, Late { epoch, key, newer });
            }
            // A sync does not wait for what its writer has given back: it says nothing of that.
            Event::Removed {
                epoch,
                file,
                before,
            } => {
                let given_back = |late: &Late| {
                    late.epoch == epoch && late.key.file == file && late.key.block.0 < before
                };
                self.too_late.retain(|_, late| !given_back(late));
            }
            Event::Started {
                op,
                epoch: Some(_),
                action: Action::Put { .. } | Action::Confirm,
                ..
            } => {
                self.began.insert(op, self.newest());
            }
            Event::Ended { op, outcome } => return self.ended(history, op, outcome),
            _ => {}
        }
        Ok(())
    }
}

impl Fence {
    fn ended(&mut self, history: &History, op: OpNumber, outcome: Outcome) -> Result<(), String> {
        let Some(started) = history.op(op) else {
            return Ok(());
        };
        let client = started.client;
        match (started.action, outcome) {
            (Action::Own, Outcome::Owned(epoch)) => {
                if let Some(owner) = self.owners.insert(epoch, client) {
                    return Err(format!("clients {owner} and {client} both own {epoch}"));
                }
            }
            (Action::Confirm, Outcome::Owned(epoch)) => {
                let newest = self.began.remove(&op).unwrap_or_default();
                if epoch < newest {
                    return Err(format!(
                        "client {client} takes {epoch} for the highest, asked when {newest} was owned"
                    ));
                }
            }
            (action, Outcome::Done) if action.is_sync() => {
                let mut covered = history.covered(started);
                let late = covered.find_map(|w| Some((w, self.too_late.get(&w.content)?)));
                if let Some((write, Late { newer, .. })) = late {
                    return Err(format!(
                        "client {client} synced {write:?}, made when {newer} was owned"
                    ));
                }
            }
            (Action::Put { record, .. }, Outcome::Done) => {
                let (own, newest) = (started.epoch, self.began.remove(&op));
                if own.is_some() && own < newest {
                    return Err(format!(
                        "client {client} put record {record} under {own:?}, begun under {newest:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{KEY, Script};
    use super::*;

    #[test]
    fn an_epoch_has_one_owner() {
        let mut s = Script::new(Fence::default());
        s.own(1);
        s.own(2);
        s.run(3, Action::Own, Outcome::Owned(Epoch(2)));
        s.breaks("both own");
    }

    #[test]
    fn a_sync_that_was_under_way_may_still_be_heard_of() {
        let mut s = Script::new(Fence::default());
        s.own(1);
        s.write(1, 1);
        let sync = s.start(1, Action::Sync);
        s.own(2);
        s.end(sync, Outcome::Done);
        s.sync(1);
        s.holds();
    }

    #[test]
    fn writes_behind_the_fence_are_never_synced() {
        let mut s = Script::new(Fence::default());
        s.own(1);
        s.own(2);
        s.write(1, 1);
        s.sync(1);
        s.breaks("made when");
    }

    #[test]
    fn a_sync_says_nothing_of_what_its_writer_has_given_back() {
        for (before, right) in [(1, true), (0, false)] {
            let mut s = Script::new(Fence::default());
            s.own(1);
            s.own(2);
            s.write(1, 1);
            s.event(Event::Removed {
                epoch: Epoch(1),
                file: KEY.file,
                before,
            });
            s.sync(1);
            match right {
                true => s.holds(),
                false => s.breaks("made when"),
            }
        }
    }

    #[test]
    fn an_epoch_is_confirmed_only_to_who_asked_before_it_ended() {
        for (owned_first, right) in [(false, true), (true, false)] {
            let mut s = Script::new(Fence::default());
            s.own(1);
            if owned_first {
                s.own(2);
            }
            let asked = s.start(1, Action::Confirm);
            s.own(3);
            s.end(asked, Outcome::Owned(Epoch(1)));
            match right {
                true => s.holds(),
                false => s.breaks("takes"),
            }
        }
    }

    #[test]
    fn nor_is_a_record_put() {
        for (owned_first, right) in [(false, true), (true, false)] {
            let mut s = Script::new(Fence::default());
            s.own(1);
            if owned_first {
                s.own(2);
            }
            let (record, content) = (1, 1);
            let put = s.start(1, Action::Put { record, content });
            if !owned_first {
                s.own(2);
            }
            s.end(put, Outcome::Done);
            match right {
                true => s.holds(),
                false => s.breaks("put record"),
            }
        }
    }
}
