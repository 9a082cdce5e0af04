//! Numbers of a client on their way to those of its user and database, and to the totals.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Client;
use super::numbers::Numbers;
use crate::core::stats::Activity;
use crate::driver::handle::{BEGINNING, IDLE, SHUTDOWN, TRANSACTION, WAITING};

impl Client {
    /// Counts what is over since it was looked last.
    pub(super) fn note_activity(&mut self) {
        let (activity, counts) = (Activity::of(&self.session), self.session.counts());
        let Numbers { clocks, tally, .. } = &mut self.numbers;
        if clocks.differ(activity, &counts) {
            clocks.note(activity, &counts, Instant::now(), &mut tally.lock());
        }
    }

    /// Adds what is new to the numbers of all clients.
    pub(super) fn count(&mut self) {
        let counts = self.session.counts();
        let numbers = &mut self.numbers;
        if counts != numbers.counted {
            self.proxy.totals.add(&numbers.counted, &counts);
            self.handle.batches.store(counts.batches, Ordering::Relaxed);
            numbers.counted = counts;
        }
        if numbers.received + numbers.sent > 0 {
            let mut tally = numbers.tally.lock();
            tally.received += std::mem::take(&mut numbers.received);
            tally.sent += std::mem::take(&mut numbers.sent);
        }
    }

    /// Tells others what the client is doing.
    pub(super) fn show_state(&mut self) {
        let state = if self.session.has_begun() {
            TRANSACTION
        } else if self.session.is_waiting() {
            WAITING
        } else if self.session.is_idle() {
            IDLE
        } else {
            BEGINNING
        };
        self.handle.state.store(state, Ordering::Release);
        self.count();
        if state == IDLE && self.is_shutting_down {
            self.handle.poke(SHUTDOWN);
        }
    }
}
