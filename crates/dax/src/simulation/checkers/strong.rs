//! Epoch-bounded strong consistency (DAX 4.3): a read sees the block as the most recent write before
//! it in its epoch left it, if there is such a write.
//!
//! A write that is made while the read is under way may show or not.

use super::super::history::{Action, Event, History, Outcome};
use super::Checker;
use crate::ids::Generation;

/// Needs little but the history.
#[derive(Debug, Default)]
pub(super) struct Strong {
    /// Images up to this may have been given back, also while a read of one is under way.
    let_go: Generation,
}

impl Checker for Strong {
    fn name(&self) -> &'static str {
        "epoch-bounded strong consistency"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        if let Event::Retained { end, .. } = event {
            self.let_go = self.let_go.max(*end);
        }
        let Event::Ended {
            op,
            outcome: Outcome::Block(_, found),
        } = *event
        else {
            return Ok(());
        };
        let Some(started) = history.op(op).filter(|s| s.epoch.is_some()) else {
            return Ok(());
        };
        let (key, up_to) = match started.action {
            Action::Read { key, up_to } => (key, up_to),
            Action::Promote(key) => (key, Generation::SINGLE),
            _ => return Ok(()),
        };
        if up_to != Generation::SINGLE && up_to <= self.let_go {
            return Ok(());
        }
        let of_image = |w: &&super::super::history::Write| w.generation <= up_to;
        let mut before = history.writes_between(started.client, key, 0, started.at);
        let Some(newest) = before.rfind(of_image) else {
            return Ok(());
        };
        let mut since = history.writes_between(started.client, key, started.at, history.last());
        if found == newest.content || since.any(|w| w.content == found && of_image(&w)) {
            return Ok(());
        }
        Err(format!(
            "client {} read {found} of {key} as of {up_to}, but had written {}",
            started.client, newest.content
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{KEY, Script};
    use super::*;
    use crate::ids::Epoch;

    #[test]
    fn a_read_sees_the_last_write_of_its_epoch() {
        let mut s = Script::new(Strong::default());
        s.write(1, 1);
        s.write(1, 2);
        s.read(1, 2);
        s.promote(1, 2);
        s.holds();
    }

    #[test]
    fn an_image_that_was_let_go_meanwhile_shows_anything() {
        let g = |number| Generation {
            epoch: Epoch(1),
            number,
        };
        for let_go in [false, true] {
            let mut s = Script::new(Strong::default());
            s.write_in(1, 1, g(1));
            s.write_in(1, 2, g(2));
            if let_go {
                let (epoch, seals, end) = (Epoch(1), [1, 1], g(2));
                s.event(Event::Retained { epoch, seals, end });
            }
            s.read_as_of(1, 0, g(1));
            match let_go {
                true => s.holds(),
                false => s.breaks("had written 1"),
            }
        }
    }

    #[test]
    fn an_older_write_is_too_old() {
        let mut s = Script::new(Strong::default());
        s.write(1, 1);
        s.write(1, 2);
        s.read(1, 1);
        s.breaks("had written 2");
    }

    #[test]
    fn a_write_made_meanwhile_may_show_or_not() {
        for found in [1, 2, 3] {
            let mut s = Script::new(Strong::default());
            s.write(1, 1);
            let up_to = Generation::MAX;
            let read = s.start(1, Action::Read { key: KEY, up_to });
            s.write(1, 2);
            s.end(read, Outcome::Block(Generation::SINGLE, found));
            match found {
                3 => s.breaks("read 3"),
                _ => s.holds(),
            }
        }
    }

    #[test]
    fn a_read_as_of_a_generation_sees_its_last_write() {
        let g = |number| Generation {
            epoch: Epoch(1),
            number,
        };
        for (found, right) in [(1, true), (2, false)] {
            let mut s = Script::new(Strong::default());
            s.write_in(1, 1, g(1));
            s.write_in(1, 2, g(2));
            let up_to = g(1);
            let outcome = Outcome::Block(g(1), found);
            s.run(1, Action::Read { key: KEY, up_to }, outcome);
            match right {
                true => s.holds(),
                false => s.breaks("read 2"),
            }
        }
    }

    #[test]
    fn other_epochs_are_not_its_business() {
        let mut s = Script::new(Strong::default());
        s.write(1, 1);
        s.read(2, 7);
        s.holds();
    }
}
