//! The net: commits of a standby's member, compared with the log's rows of their numbers.
//!
//! Invariant: a commit that neither the log explains nor the member's own past is a difference.

use super::capture::Stream;
use super::wire::WireError;
use crate::core::record::Number;
use crate::core::rows::Rows;
use crate::core::stream::{Awaits, Captured};

impl Stream<'_> {
    /// Compares a commit of a standby's member with what the log says.
    pub(super) fn compare(&mut self, mut captured: Captured) -> Result<(), WireError> {
        captured.rows.drop_nothing();
        let end = captured.header.origin.end;
        let is_nothing = captured.rows.changes.is_empty();
        let mut awaits = None;
        if !captured.applied.is_empty() {
            self.compare_with_log(&captured);
        } else if !is_nothing && end > self.hub.look(|manager| manager.logged_of(self.system)) {
            let began = *self.hub.capture.began.lock();
            if began.is_none_or(|began| end <= began) {
                awaits = Some(Awaits::Proof);
                self.surplus.push(captured.header.origin, captured.rows);
            } else if let Some(why) = Rows::default().difference(&captured.rows) {
                self.hub.differs(
                    self.life,
                    Number(0),
                    format!("somebody else has written to the member: {why}"),
                );
            }
        }
        self.confirmed.push(end, awaits);
        Ok(())
    }

    fn compare_with_log(&self, captured: &Captured) {
        let records = self.hub.capture.take(&captured.applied);
        let Some(last) = records.last().map(|record| record.number) else {
            // It was executed before this process began.
            return;
        };
        let mut wanted = Rows::default();
        for record in &records {
            match record.draft.rows() {
                Ok(rows) => wanted.append(rows),
                Err(_) => return,
            }
        }
        wanted.drop_nothing();
        match wanted.difference(&captured.rows) {
            None => self.hub.counters.count_compared(records.len()),
            Some(why) => self.hub.differs(self.life, last, why),
        }
    }
}
