//! The epoch row: changed by lightweight transactions only, so one change after the other.
//!
//! A change whose answer is lost may still be applied later. Real Paxos settles it before the next
//! change; the model lets it come at any time after that. A plain quorum read may miss a change that nobody was
//! answered yet, as long as no transaction and no serial read has come after it.

use crate::lease::{Answer, Change, Row};

#[derive(Debug)]
pub struct Register {
    row: Option<Row>,
    /// What a majority has for sure, where it is not the row.
    before: Option<Option<Row>>,
    /// A condition that leaves the count of renewals out: one of the flaws.
    renewals_ignored: bool,
}

impl Register {
    pub fn new(renewals_ignored: bool) -> Register {
        Register {
            row: None,
            before: None,
            renewals_ignored,
        }
    }

    /// What a serial read finds.
    pub fn settled(&mut self) -> Option<Row> {
        self.before = None;
        self.row.clone()
    }

    /// What a quorum may tell; `old` where it still can.
    pub fn read(&self, old: bool) -> Option<Row> {
        match &self.before {
            Some(before) if old => before.clone(),
            _ => self.row.clone(),
        }
    }

    /// The last change is on a majority.
    pub fn commit(&mut self, change: &Change) {
        if self.row.as_ref() == Some(&change.new) {
            self.before = None;
        }
    }

    pub fn apply(&mut self, change: &Change) -> Answer {
        let mut change = change.clone();
        if let (true, Some(expected), Some(row)) =
            (self.renewals_ignored, &mut change.expected, &self.row)
        {
            expected.renewals = row.renewals;
        }
        if !change.applies_to(self.row.as_ref()) {
            self.before = None;
            return Answer::Refused(self.row.clone());
        }
        self.before = Some(self.row.take());
        self.row = Some(change.new);
        Answer::Applied
    }
}
