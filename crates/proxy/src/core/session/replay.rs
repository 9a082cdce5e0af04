//! An open transaction is run again on another server, and its answers are compared (R6).

use bytes::BytesMut;

use super::super::flaw::Flaw;
use super::reason::Reason;
use super::unit::Unit;
use super::{Context, Out, Phase, Session};

/// How far a replay is.
#[derive(Debug)]
pub struct Replay {
    /// The unit that is run, or is run next.
    at: usize,
    /// The unit that was under way when the server was lost.
    waiting: Option<Box<Unit>>,
}

impl Replay {
    /// The same, as it waits.
    pub fn waiting(&self) -> Option<&Unit> {
        self.waiting.as_deref()
    }

    /// The unit that was under way when the server was lost.
    pub fn into_waiting(self) -> Option<Box<Unit>> {
        self.waiting
    }
}

impl Session {
    /// The transaction is to be run again, when a server is there. If it cannot be, its client is told.
    pub(super) fn begin_replay(&mut self, cx: &Context<'_>, out: &mut Out) -> bool {
        if let Some(replay) = self.replay.take() {
            self.unit = replay.waiting;
        }
        if cx.lacks(Flaw::ReplayForgotten) {
            self.transaction = None;
            self.replay = None;
            return true;
        }
        let obstacle = match &self.transaction {
            _ if !self.replays(cx) => Some(Reason::Off),
            Some(transaction) => transaction.obstacle,
            None => Some(Reason::NotKept),
        };
        if let Some(obstacle) = obstacle {
            self.fail_transaction(obstacle, out);
            return false;
        }
        self.replay = Some(Replay {
            at: 0,
            waiting: self.unit.take(),
        });
        self.names.rewind();
        self.keeps.rewind();
        true
    }

    /// Runs the next unit of the transaction, or goes on with what was under way.
    pub(super) fn replay_next(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(replay) = &mut self.replay else {
            return;
        };
        let stored = self
            .transaction
            .as_ref()
            .and_then(|transaction| transaction.units.get(replay.at));
        let Some(stored) = stored else {
            self.unit = replay.waiting.take();
            self.replay = None;
            self.counts.replayed += 1;
            self.phase = Phase::Idle;
            if self.unit.is_some() {
                self.start_unit(cx, out);
            }
            return;
        };
        let began_in = if replay.at == 0 { b'I' } else { b'T' };
        let mut unit = Unit::new(began_in);
        unit.bytes = BytesMut::from(&stored.bytes[..]);
        unit.rows = stored.rows.clone();
        unit.is_complete = true;
        unit.is_simple = matches!(unit.bytes.first(), Some(b'Q' | b'F'));
        unit.has_ended_copy = true;
        self.unit = Some(Box::new(unit));
        self.phase = Phase::Replaying;
        if let Err(error) = self.note_all(cx) {
            self.malformed(&error, out);
            return;
        }
        self.write_noted(cx, out);
    }

    /// A unit was run again: its answers must be what they were.
    pub(super) fn replayed(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) {
        let Some(replay) = &mut self.replay else {
            return;
        };
        let stored = self
            .transaction
            .as_ref()
            .and_then(|transaction| transaction.units.get(replay.at));
        let unit = self.unit.take();
        let has_failed = self.owed.take().is_some();
        let is_same = !has_failed
            && match (stored, &unit) {
                (Some(stored), Some(unit)) => {
                    stored.answered == unit.answered && stored.status == status
                }
                _ => false,
            };
        if !is_same && !cx.lacks(Flaw::AnswersNotCompared) {
            self.unit = replay.waiting.take();
            self.replay = None;
            self.fail_transaction(Reason::OtherAnswers, out);
            return;
        }
        replay.at += 1;
        if let Some(mut unit) = unit {
            self.note_effects(&mut unit, status);
        }
        self.replay_next(cx, out);
    }
}
