//! The registry: puts and promotions of a record are linearizable, and a get sees the last one that
//! ended before it began, or a later one.
//!
//! Two gets while one put is under way may see the new value and then the old one: gets do not write.
//! A put whose owner was fenced or died may show later, or never, until the next owner promotes the
//! record; what that found stays. (A record that a node writes without an epoch has no such end: what
//! a dead life of the node left under way may show at any time.)

use std::collections::{BTreeMap, BTreeSet};

use super::super::history::{
    Action, Content, Event, History, NOTHING, OpNumber, Outcome, RecordId,
};
use super::Checker;
use super::floors::{Floor, Floors, Place};
use crate::ids::Epoch;

#[derive(Debug, Default)]
pub(super) struct Records {
    floors: Floors<RecordId>,
    began: BTreeMap<OpNumber, Floor>,
    /// Puts that have ended.
    ended: BTreeSet<Content>,
}

fn origin(history: &History, record: RecordId, content: Content) -> Result<Place, String> {
    if content == NOTHING {
        return Ok(Place::default());
    }
    match history.record(content) {
        Some((of, epoch)) if of == record => Ok((epoch.unwrap_or_default(), content)),
        _ => Err(format!("{content} was never put into record {record}")),
    }
}

impl Checker for Records {
    fn name(&self) -> &'static str {
        "records"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Started {
                op,
                action: Action::Get(record) | Action::PromoteRecord(record),
                ..
            } => {
                self.began.insert(op, self.floors.get(record));
            }
            Event::Ended { op, outcome } => return self.ended(history, op, outcome),
            _ => {}
        }
        Ok(())
    }
}

impl Records {
    fn ended(&mut self, history: &History, op: OpNumber, outcome: Outcome) -> Result<(), String> {
        let Some(started) = history.op(op) else {
            return Ok(());
        };
        let before = self.began.remove(&op).unwrap_or_default();
        match (started.action, outcome) {
            (Action::Put { record, content }, Outcome::Done) => {
                let place = (started.epoch.unwrap_or_default(), content);
                self.ended.insert(content);
                self.floors.durable(record, content, place)
            }
            (Action::Get(record), Outcome::Record(content)) => {
                let origin = origin(history, record, content)?;
                // What a dead life of a node left under way.
                let remains =
                    origin.0 == Epoch::NONE && content != NOTHING && !self.ended.contains(&content);
                match before.allows(content, origin) || remains {
                    true => Ok(()),
                    false => Err(format!(
                        "client {} read {content} of record {record}, after {before:?}",
                        started.client
                    )),
                }
            }
            (Action::PromoteRecord(record), Outcome::Record(content)) => {
                let epoch = started.epoch.unwrap_or_default();
                let origin = origin(history, record, content)?;
                if content == NOTHING || before.place.0 > epoch {
                    // Nothing is promoted; or deposed before it began.
                    return match before.allows(content, origin) || before.place.0 > epoch {
                        true => Ok(()),
                        false => Err(format!("record {record} is gone, after {before:?}")),
                    };
                }
                self.floors
                    .chosen(record, epoch, (content, origin), &before)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::Script;
    use super::*;

    fn put(s: &mut Script, client: usize, content: Content) {
        s.run(client, Action::Put { record: 1, content }, Outcome::Done);
    }

    fn get(s: &mut Script, content: Content) {
        s.run(0, Action::Get(1), Outcome::Record(content));
    }

    fn promote(s: &mut Script, client: usize, content: Content) {
        s.run(client, Action::PromoteRecord(1), Outcome::Record(content));
    }

    fn script() -> Script {
        let mut s = Script::new(Records::default());
        put(&mut s, 1, 1);
        s
    }

    #[test]
    fn gets_see_the_last_completed_put() {
        let mut s = script();
        get(&mut s, 1);
        put(&mut s, 1, 2);
        get(&mut s, 2);
        s.holds();
        for wrong in [1, NOTHING] {
            let mut s = script();
            put(&mut s, 1, 2);
            get(&mut s, wrong);
            s.breaks("after Floor");
        }
    }

    #[test]
    fn a_put_that_is_under_way_may_show_or_not() {
        let mut s = script();
        let (record, content) = (1, 2);
        s.start(1, Action::Put { record, content });
        get(&mut s, 1);
        get(&mut s, 2);
        s.holds();
    }

    #[test]
    fn a_promotion_ends_what_was_open() {
        let mut s = script();
        let (record, content) = (1, 2);
        s.start(1, Action::Put { record, content });
        promote(&mut s, 2, 1);
        get(&mut s, 2);
        s.breaks("read 2");
    }

    #[test]
    fn a_completed_put_is_promoted() {
        let mut s = script();
        promote(&mut s, 2, NOTHING);
        s.breaks("gone");
        let mut s = script();
        put(&mut s, 1, 2);
        promote(&mut s, 2, 1);
        s.breaks("must survive");
    }

    #[test]
    fn unfinished_records_may_show_and_replaced_ones_may_not() {
        let put_by_node = |s: &mut Script, content| s.start(0, Action::Put { record: 1, content });
        let mut s = Script::new(Records::default());
        let first = put_by_node(&mut s, 1);
        get(&mut s, 1);
        let second = put_by_node(&mut s, 2);
        s.end(second, Outcome::Done);
        get(&mut s, 1);
        s.end(first, Outcome::Done);
        get(&mut s, 1);
        s.breaks("read 1");
    }

    #[test]
    fn contents_come_from_a_put_of_the_record() {
        let mut s = script();
        s.run(0, Action::Get(2), Outcome::Record(1));
        s.breaks("never put into record 2");
    }
}
