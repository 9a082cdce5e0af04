//! Read stability (DAX 5): once an owner was shown a version of a block that keeps one, it is shown
//! the same until it writes the block.

use std::collections::BTreeMap;

use super::super::history::{
    Action, ClientId, Content, Event, History, NOTHING, OpNumber, Outcome,
};
use super::Checker;
use crate::ids::BlockKey;

#[derive(Debug, Default)]
pub(super) struct Stability {
    /// What each owner was shown, since it last wrote the block.
    shown: BTreeMap<(ClientId, BlockKey), Content>,
    /// What had been shown when each read that is under way began.
    began: BTreeMap<OpNumber, Content>,
}

impl Checker for Stability {
    fn name(&self) -> &'static str {
        "read stability"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Wrote { client, key, .. } => {
                self.shown.remove(&(client, key));
            }
            Event::Started {
                op, client, action, ..
            } => {
                if let Action::Promote(key) | Action::Read { key, .. } = action
                    && let Some(shown) = self.shown.get(&(client, key))
                {
                    self.began.insert(op, *shown);
                }
            }
            Event::Ended { op, outcome } => {
                let began = self.began.remove(&op);
                if let (Some(started), Outcome::Block(_, found)) = (history.op(op), outcome) {
                    return self.ended(history, *started, began, found);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Stability {
    fn ended(
        &mut self,
        history: &History,
        started: super::super::history::Started,
        began: Option<Content>,
        found: Content,
    ) -> Result<(), String> {
        let (Action::Promote(key) | Action::Read { key, .. }) = started.action else {
            return Ok(());
        };
        let client = started.client;
        let mut written = history.writes_between(client, key, started.at, history.last());
        if written.next().is_some() {
            return Ok(());
        }
        if let Some(shown) = began.filter(|shown| *shown != found) {
            return Err(format!(
                "client {client} was shown {shown} of {key}, and then {found}"
            ));
        }
        if matches!(started.action, Action::Promote(_)) && found != NOTHING {
            // Two promotions at once show the same.
            let shown = *self.shown.entry((client, key)).or_insert(found);
            if shown != found {
                return Err(format!(
                    "client {client} was shown {shown} of {key}, and {found} at once"
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
    use crate::ids::Generation;

    #[test]
    fn shown_versions_are_shown_again() {
        let mut s = Script::new(Stability::default());
        s.promote(2, 1);
        s.read(2, 1);
        s.promote(2, 1);
        s.write(2, 5);
        s.read(2, 5);
        s.holds();
    }

    #[test]
    fn versions_that_differ_from_the_shown_one_are_a_violation() {
        let mut s = Script::new(Stability::default());
        s.promote(2, 1);
        s.read(2, 2);
        s.breaks("shown 1");
    }

    #[test]
    fn promotions_at_once_agree() {
        let mut s = Script::new(Stability::default());
        let one = s.start(2, Action::Promote(KEY));
        let other = s.start(2, Action::Promote(KEY));
        s.end(one, Outcome::Block(Generation::SINGLE, 1));
        s.end(other, Outcome::Block(Generation::SINGLE, 2));
        s.breaks("at once");
    }

    #[test]
    fn nothing_there_is_no_promise() {
        let mut s = Script::new(Stability::default());
        s.promote(2, NOTHING);
        s.promote(2, 1);
        s.promote(3, 2);
        s.holds();
    }
}
