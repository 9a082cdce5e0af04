//! What the zones have, and what is on its way to them.

use super::super::{Record, Who};

/// An operation of a host.
#[derive(Debug, Clone)]
pub enum Operation {
    Read,
    Own,
    Write(Record),
}

/// What a host hears.
#[derive(Debug, Clone)]
pub enum Answer {
    Read(Option<Record>),
    Owned(u32, Option<Record>),
    Written(Record),
    Refused,
}

#[derive(Debug, Default)]
pub struct Zones {
    epoch: u32,
    record: Option<Record>,
    /// A record that reached some zone only.
    partial: Option<Record>,
}

impl Zones {
    /// True if the record says that this host runs the machine.
    pub fn names_active(&self, who: &Who) -> bool {
        self.record
            .as_ref()
            .is_some_and(|record| record.active == *who)
    }

    /// Carries an operation out; `is_whole` says whether a write reaches enough zones, and `luck` which of two records is found.
    pub fn perform(
        &mut self,
        operation: Operation,
        is_fenced: bool,
        is_whole: bool,
        luck: bool,
    ) -> Answer {
        match operation {
            Operation::Read => Answer::Read(match (&self.partial, luck) {
                (Some(partial), true) => Some(partial.clone()),
                _ => self.record.clone(),
            }),
            Operation::Own => {
                self.epoch += 1;
                if let Some(partial) = self.partial.take().filter(|_| luck) {
                    self.record = Some(partial);
                }
                Answer::Owned(self.epoch, self.record.clone())
            }
            Operation::Write(record) => {
                if record.epoch < self.epoch && is_fenced {
                    return Answer::Refused;
                }
                if !is_whole {
                    self.partial = Some(record);
                    return Answer::Refused;
                }
                self.partial = None;
                self.record = Some(record.clone());
                Answer::Written(record)
            }
        }
    }
}
