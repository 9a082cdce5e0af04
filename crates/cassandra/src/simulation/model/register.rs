//! The epoch row: changed by lightweight transactions only, so one change after the other.
//!
//! A change whose answer is lost may still be applied later. Real Paxos settles it before the next
//! change; the model lets it come at any time after that.

use crate::lease::{Answer, Change, Row};

/// See the module.
#[derive(Debug)]
pub struct Register {
    row: Option<Row>,
    /// A condition that leaves the count of renewals out: one of the flaws.
    renewals_ignored: bool,
}

impl Register {
    pub fn new(renewals_ignored: bool) -> Register {
        Register {
            row: None,
            renewals_ignored,
        }
    }

    pub fn row(&self) -> Option<&Row> {
        self.row.as_ref()
    }

    pub fn apply(&mut self, change: &Change) -> Answer {
        let mut change = change.clone();
        if let (true, Some(expected), Some(row)) =
            (self.renewals_ignored, &mut change.expected, &self.row)
        {
            expected.renewals = row.renewals;
        }
        if !change.applies_to(self.row.as_ref()) {
            return Answer::Refused(self.row.clone());
        }
        self.row = Some(change.new);
        Answer::Applied
    }
}
