//! The promises of the protocol, each checked by a module of its own.
//!
//! A checker sees the [`History`] and each event once, and says what is wrong with it. It knows
//! nothing of clients, messages or versions; each has unit tests with histories that it rejects.

mod absence;
mod durability;
mod fence;
mod floors;
mod noc;
mod owners;
mod records;
mod seals;
mod stability;
mod strong;

use super::history::{Event, History};

/// A promise.
pub trait Checker: Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// True if the history is still right with this event.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self, history: &History, event: &Event) -> Result<(), String>;
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which checker says so.
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
}

/// All checkers, over one history.
pub struct Checkers {
    history: History,
    checkers: Vec<Box<dyn Checker>>,
}

impl Checkers {
    /// All promises; a write is durable on `sync_replicas`.
    pub fn new(sync_replicas: usize) -> Checkers {
        Checkers::of(vec![
            Box::new(strong::Strong::default()),
            Box::new(noc::Noc::default()),
            Box::new(stability::Stability::default()),
            Box::new(durability::Durability::new(sync_replicas)),
            Box::new(fence::Fence::default()),
            Box::new(owners::Owners::default()),
            Box::new(seals::Seals::default()),
            Box::new(records::Records::default()),
        ])
    }

    /// The same where a promotion that finds nothing keeps it so, as the backend promises more than DAX.
    #[must_use]
    pub fn with_absence(mut self) -> Checkers {
        self.checkers.push(Box::new(absence::Absence::default()));
        self
    }

    fn of(checkers: Vec<Box<dyn Checker>>) -> Checkers {
        Checkers {
            history: History::default(),
            checkers,
        }
    }

    /// Adds an event to the history.
    ///
    /// # Errors
    /// The first promise that it breaks.
    pub fn event(&mut self, event: &Event) -> Result<(), Violation> {
        self.history.note(event);
        for checker in &mut self.checkers {
            checker
                .check(&self.history, event)
                .map_err(|what| Violation {
                    checker: checker.name(),
                    what,
                })?;
        }
        Ok(())
    }
}

/// Histories by hand, for the checkers' own tests.
#[cfg(test)]
mod scripts {
    use super::super::history::{Action, Content, Event, OpNumber, Outcome};
    use super::{Checker, Checkers};
    use crate::ids::{BlockKey, Epoch, FileId, Generation};

    pub const KEY: BlockKey = BlockKey {
        file: FileId(1),
        block: crate::ids::BlockIndex(0),
    };

    /// A history under one checker. Client `n` owns epoch `n`; client 0 owns none.
    pub struct Script {
        checkers: Checkers,
        next: OpNumber,
        broken: Option<String>,
    }

    impl Script {
        pub fn new(checker: impl Checker + 'static) -> Script {
            Script {
                checkers: Checkers::of(vec![Box::new(checker)]),
                next: 1,
                broken: None,
            }
        }

        pub fn event(&mut self, event: Event) {
            let result = self.checkers.event(&event);
            if self.broken.is_none() {
                self.broken = result.err().map(|v| v.what);
            }
        }

        pub fn write(&mut self, client: usize, content: Content) {
            self.write_in(client, content, Generation::SINGLE);
        }

        pub fn write_in(&mut self, client: usize, content: Content, generation: Generation) {
            self.event(Event::Wrote {
                client,
                epoch: Epoch(client as u32),
                key: KEY,
                generation,
                content,
            });
        }

        pub fn start(&mut self, client: usize, action: Action) -> OpNumber {
            let op = self.next;
            self.next += 1;
            self.event(Event::Started {
                op,
                client,
                epoch: (client > 0).then_some(Epoch(client as u32)),
                action,
            });
            op
        }

        pub fn end(&mut self, op: OpNumber, outcome: Outcome) {
            self.event(Event::Ended { op, outcome });
        }

        pub fn run(&mut self, client: usize, action: Action, outcome: Outcome) {
            let op = self.start(client, action);
            self.end(op, outcome);
        }

        pub fn own(&mut self, client: usize) {
            self.run(client, Action::Own, Outcome::Owned(Epoch(client as u32)));
        }

        pub fn sync(&mut self, client: usize) {
            self.run(client, Action::Sync, Outcome::Done);
        }

        pub fn promote(&mut self, client: usize, content: Content) {
            let outcome = Outcome::Block(Generation::SINGLE, content);
            self.run(client, Action::Promote(KEY), outcome);
        }

        pub fn read(&mut self, client: usize, content: Content) {
            self.read_as_of(client, content, Generation::MAX);
        }

        pub fn read_as_of(&mut self, client: usize, content: Content, up_to: Generation) {
            let outcome = Outcome::Block(Generation::SINGLE, content);
            self.run(client, Action::Read { key: KEY, up_to }, outcome);
        }

        #[track_caller]
        pub fn holds(self) {
            assert_eq!(self.broken, None);
        }

        #[track_caller]
        pub fn breaks(self, how: &str) {
            let broken = self.broken.expect("the checker rejects this history");
            assert!(broken.contains(how), "{broken}");
        }
    }
}
