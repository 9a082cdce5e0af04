//! What the machine is told of the active, and when it wants to hear the next.

use std::time::Duration;

use coordination::channel::Request;
use serde_json::json;
use volume::journal::JournalPos;

use super::super::driver::Order;
use super::{Follower, POLL_WAITING};
use crate::machine::{Event, Machine};

impl Follower<'_> {
    /// Attaches again for the active's slots, once in a while at most: clients read here.
    pub(super) fn judge_slots(&self) {
        let differs = self.slots_differ.lock().take();
        if let Some(why) = differs
            && self.context.skips.may_attach_for_slots()
        {
            self.must_reattach(why);
        }
    }

    /// How long until the verdict, the base, or this node's turn may come by itself.
    pub(super) fn wake(&self) -> Duration {
        let now = self.context.now();
        let due = [
            self.detector.wake_at(),
            self.mover.wake_at(),
            self.context.driver.look(Machine::wake_at),
        ];
        let due = due.into_iter().flatten().map(|at| at.saturating_sub(now));
        due.fold(self.detector.poll(), Duration::min)
    }

    /// While a better standby is given its head start, its success should be noticed soon.
    pub(super) fn poll_every(&self) -> Duration {
        let poll = self.detector.poll();
        match self.context.driver.look(Machine::awaits_turn) {
            true => poll.min(POLL_WAITING),
            false => poll,
        }
    }

    /// Tells what the detector thinks.
    pub(super) fn judge(&mut self) {
        self.tell(self.context.known_control());
        let verdict = self.detector.verdict(self.context.now());
        self.tell(Event::Judged(verdict));
    }

    /// What an operator asks of a standby.
    pub(super) fn order(&mut self, order: Order) {
        // Every restart of a standby's PostgreSQL is a fresh attach (N4).
        let answer = match order.request {
            Request::Restart => {
                self.must_reattach("an operator ordered a restart");
                "restarting"
            }
            Request::Reinitialize => {
                self.forgets = true;
                self.must_reattach("an operator ordered it recreated");
                "reinitializing"
            }
            Request::Reload { journal } => {
                self.reload_at(JournalPos(journal));
                "reloading"
            }
            _ => return self.context.driver.order(order),
        };
        // Who asked may have gone; the order stands.
        let _ = order.answer.send(Ok(json!({ answer: true })));
    }
}
