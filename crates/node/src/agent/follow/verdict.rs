//! When a standby takes over: what it suspects, who goes first, and what it is asked.

use std::time::Duration;

use serde_json::json;

use super::super::status::Order;
use super::{Follower, POLL_WAITING, StandbyEnd};
use crate::channel::Request;
use crate::detector::Verdict;
use crate::records::{ActiveState, Cause, Heartbeat};
use volume::journal::JournalPos;

impl Follower<'_> {
    /// How long until the verdict, or the base, may change by itself.
    pub(super) fn wake(&self) -> Duration {
        let now = self.context.now();
        let due = [
            self.detector.wake_at(),
            self.mover.wake_at(),
            self.take_over_at,
        ];
        let due = due.into_iter().flatten().map(|at| at.saturating_sub(now));
        due.fold(self.detector.poll(), Duration::min)
    }

    /// While a better standby is given its head start, its success should be noticed soon.
    pub(super) fn poll_every(&self) -> Duration {
        let poll = self.detector.poll();
        match self.take_over_at {
            Some(_) => poll.min(POLL_WAITING),
            None => poll,
        }
    }

    /// Whether a vacant active's heartbeat leaves the epoch to us.
    pub(super) fn is_meant(&self, beat: &Heartbeat) -> bool {
        match &beat.state {
            ActiveState::Released { to: Some(to) } => *to == self.context.me.node,
            _ => true,
        }
    }

    pub(super) fn judge(&mut self) -> Option<StandbyEnd> {
        let now = self.context.now();
        self.take_over_at = None;
        let Verdict::Suspect { evidence, since } = self.detector.verdict(now) else {
            return None;
        };
        let paused = self.context.control.borrow().is_paused();
        if self.context.config.tags.nofailover || (paused && !self.chosen) {
            return None;
        }
        let begin = since + self.candidates.head_start();
        if now < begin && !self.chosen {
            self.take_over_at = Some(begin);
            return None;
        }
        Some(StandbyEnd::TakeOver {
            cause: match self.chosen {
                true => Cause::Switchover,
                false => Cause::Failover {
                    evidence: evidence.to_string(),
                },
            },
            detect: now.saturating_sub(self.seen_at),
            previous: Some(self.active.clone()),
        })
    }

    pub(super) fn order(&mut self, order: Order) -> Option<StandbyEnd> {
        let Request::Failover { to, .. } = &order.request else {
            return self.maintenance(order);
        };
        if to.as_ref().is_some_and(|to| *to != self.context.me.node) {
            let why = format!(
                "ask {} itself, or the active",
                to.as_ref().map_or("", |t| t.as_str())
            );
            drop(order.answer.send(Err(why)));
            return None;
        }
        if self.context.config.tags.nofailover {
            let why =
                "this node is tagged nofailover; ask another one, or change its configuration";
            drop(order.answer.send(Err(why.to_owned())));
            return None;
        }
        drop(order.answer.send(Ok(json!({ "taking_over": true }))));
        Some(StandbyEnd::TakeOver {
            cause: Cause::Forced,
            detect: Duration::ZERO,
            previous: Some(self.active.clone()),
        })
    }

    /// What an operator asks of a standby but to take over.
    fn maintenance(&mut self, order: Order) -> Option<StandbyEnd> {
        // Every restart of a standby's PostgreSQL is a fresh attach (N4).
        let (answer, end) = match order.request {
            Request::Restart => (Ok("restarting"), Some(StandbyEnd::Superseded)),
            Request::Reinitialize => (Ok("reinitializing"), Some(StandbyEnd::Reinitialize)),
            Request::Reload { journal } => {
                self.reload_at(JournalPos(journal));
                (Ok("reloading"), None)
            }
            _ => (Err("this node is a standby already".to_owned()), None),
        };
        // Who asked may have gone; the order stands.
        let _ = order.answer.send(answer.map(|what| json!({ what: true })));
        end
    }
}
