//! Seals (*How is a seal made?* in docs/understand/protocol.md): a sealed image reads the same for ever, to everybody, and it
//! is the stream of writes up to its cut, on top of the image that its epoch began with.

use std::collections::BTreeMap;

use super::super::history::{Action, ClientId, Content, Event, History, NOTHING, Outcome};
use super::Checker;
use crate::ids::{BlockKey, Epoch, Generation};

type Image = BTreeMap<BlockKey, Content>;

#[derive(Debug, Default)]
pub(super) struct Seals {
    /// What each owner has written, newest contents of each data block.
    written: BTreeMap<ClientId, Image>,
    images: BTreeMap<Content, (Epoch, Image)>,
    /// What owners have let go of: every seal before the second, but these two.
    let_go: Vec<(Epoch, [Content; 2])>,
}

impl Checker for Seals {
    fn name(&self) -> &'static str {
        "sealed generations"
    }

    fn check(&mut self, history: &History, event: &Event) -> Result<(), String> {
        match *event {
            Event::Wrote {
                client,
                key,
                generation,
                content,
                ..
            } if generation != Generation::SINGLE => {
                self.written.entry(client).or_default().insert(key, content);
            }
            Event::Cut {
                client,
                epoch,
                seal,
                base,
            } => {
                let base = self.images.get(&base).map(|(_, image)| image.clone());
                let mut image = base.unwrap_or_default();
                image.extend(self.written.get(&client).into_iter().flatten());
                self.images.insert(seal, (epoch, image));
            }
            Event::Retained { epoch, seals, .. } => self.let_go.push((epoch, seals)),
            Event::Ended {
                op,
                outcome: Outcome::Block(_, found),
            } => {
                let action = history.op(op).map(|started| started.action);
                if let Some(Action::ReadSeal { seal, key }) = action {
                    return self.read(seal, key, found);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Seals {
    fn read(&self, seal: Content, key: BlockKey, found: Content) -> Result<(), String> {
        let Some((epoch, image)) = self.images.get(&seal) else {
            return Err(format!("seal {seal} was read, but never cut"));
        };
        let gone = |(by, kept): &(Epoch, [Content; 2])| {
            let newest = kept[0].max(kept[1]);
            (*epoch, seal) < (*by, newest) && !kept.contains(&seal)
        };
        let expected = image.get(&key).copied().unwrap_or(NOTHING);
        if found == expected || self.let_go.iter().any(gone) {
            return Ok(());
        }
        Err(format!(
            "{key} in the image of seal {seal} of {epoch} is {found}, but was {expected} at the cut"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripts::{KEY, Script};
    use super::*;

    fn g(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    fn cut(s: &mut Script, client: ClientId, seal: Content, base: Content) {
        let epoch = Epoch(client as u32);
        s.event(Event::Cut {
            client,
            epoch,
            seal,
            base,
        });
    }

    fn read(s: &mut Script, seal: Content, found: Content) {
        let outcome = Outcome::Block(g(1, 1), found);
        s.run(0, Action::ReadSeal { seal, key: KEY }, outcome);
    }

    /// Seal 10 with 1, and 2 written after it.
    fn sealed() -> Script {
        let mut s = Script::new(Seals::default());
        s.write_in(1, 1, g(1, 1));
        cut(&mut s, 1, 10, 0);
        s.write_in(1, 2, g(1, 2));
        s
    }

    #[test]
    fn a_sealed_image_stays_as_it_was_cut() {
        let mut s = sealed();
        read(&mut s, 10, 1);
        read(&mut s, 10, 1);
        s.holds();
        for wrong in [0, 2] {
            let mut s = sealed();
            read(&mut s, 10, wrong);
            s.breaks("but was 1 at the cut");
        }
    }

    #[test]
    fn a_successor_goes_on_from_the_seal_it_found() {
        for (found, right) in [(1, true), (2, false)] {
            let mut s = sealed();
            cut(&mut s, 2, 20, 10);
            read(&mut s, 20, found);
            match right {
                true => s.holds(),
                false => s.breaks("seal 20"),
            }
        }
    }

    #[test]
    fn released_seals_are_not_judged() {
        let mut s = sealed();
        let (epoch, end) = (Epoch(2), g(2, 1));
        cut(&mut s, 2, 20, 10);
        s.event(Event::Retained {
            epoch,
            seals: [20, 20],
            end,
        });
        read(&mut s, 10, 0);
        s.holds();
    }

    #[test]
    fn a_seal_was_cut() {
        let mut s = sealed();
        read(&mut s, 11, 1);
        s.breaks("never cut");
    }
}
