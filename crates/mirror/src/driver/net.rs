//! The net: commits of a standby's member, compared with the log's rows of their numbers.
//!
//! Invariant: a commit that neither the log explains nor the member's own past is a difference.

use super::capture::Stream;
use super::wire::WireError;
use crate::core::manager::Manager;
use crate::core::record::Number;
use crate::core::rows::Rows;
use crate::core::stream::{Awaits, Captured};

impl Stream<'_> {
    /// Compares a commit of a standby's member with what the log says.
    pub(super) fn compare(&mut self, mut captured: Captured) -> Result<(), WireError> {
        let end = captured.header.origin.end;
        let mut awaits = None;
        if !captured.applied.is_empty() {
            self.compare_with_log(captured);
            self.confirmed.push(end, awaits);
            return Ok(());
        }
        captured.rows.drop_nothing();
        let is_nothing = captured.rows.changes.is_empty();
        if !is_nothing && end > self.hub.look(|manager| manager.logged_of(self.system)) {
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

    /// Compares a commit that executes transactions of the log with those.
    fn compare_with_log(&self, mut captured: Captured) {
        let (hub, end) = (self.hub, captured.header.origin.end);
        // Zero says what was undone.
        captured.applied.retain(|number| *number != Number(0));
        let Some(last) = captured.applied.last().copied() else {
            return;
        };
        // Another life of the member has a stream of its own, which compares it.
        if hub.look(Manager::life) != self.life || !hub.capture.compares(end) {
            return;
        }
        let records = hub.capture.take(&captured.applied);
        let known = records
            .iter()
            .map(|record| record.number.0 - record.first().0 + 1);
        if known.sum::<u64>() != captured.applied.len() as u64 {
            let began = *hub.capture.began.lock();
            if records.is_empty() && began.is_none_or(|began| end <= began) {
                // It was executed before this process looked at the member.
                return hub.counters.count_uncompared(captured.applied.len());
            }
            let why = "the member has committed it with other transactions, or another session than the manager's has";
            return hub.differs(self.life, last, why.to_owned());
        }
        let mut wanted = Rows::default();
        for record in &records {
            match record.draft.rows() {
                Ok(rows) => wanted.append(rows),
                Err(_) => return,
            }
        }
        wanted.drop_nothing();
        captured.rows.drop_nothing();
        match wanted.difference(&captured.rows) {
            None => hub.counters.count_compared(records.len()),
            Some(why) => hub.differs(self.life, last, why),
        }
    }
}
