//! The active's position: what it is asked for, and what is done with the answer (R1).
//!
//! Invariant: who reads on the active in a mode that promises it finds there what standbys have shown before.

use volume::lsn::Lsn;

use super::super::flaw::Flaw;
use super::super::sql::ProxyQuery;
use super::super::version::ReadMode;
use super::batch::RequestBatch;
use super::reason::Reason;
use super::{Context, Effect, Out, Phase, Session, Wait};

impl Session {
    /// The active's position is needed before anything else, with proof that its epoch stands. What is going to read there
    /// must find what standbys have shown to others: they show a commit as soon as it is durable, and the active may be later.
    pub(super) fn ask_position(&mut self, cx: &Context<'_>, out: &mut Out) {
        let mode = self.read_mode(cx);
        let reads_there =
            |batch: &RequestBatch| executes(batch) && !self.may_read_elsewhere(cx, batch, mode);
        let shown = self.batch.as_deref().is_none_or(reads_there);
        self.asks_shown = shown && !cx.lacks(Flaw::DurableIsShown);
        self.phase = Phase::Waiting(Wait::Position);
        out.effects.push(Effect::AskPosition {
            shown: self.asks_shown,
        });
    }

    /// True if the active may have to show what it does not show yet.
    pub(super) fn active_may_be_late(&self, cx: &Context<'_>) -> bool {
        let may_be = match self.read_mode(cx) {
            ReadMode::Strong => true,
            ReadMode::Session => self.seen.is_ahead() || self.lacks_version(),
            _ => self.lacks_version(),
        };
        may_be && self.batch.as_deref().is_none_or(executes) && !cx.lacks(Flaw::DurableIsShown)
    }

    /// The active's position, asked for since [`Effect::AskPosition`] with proof that its epoch stood; `None`
    /// if there was none to be had in time.
    pub fn position(&mut self, cx: &Context<'_>, position: Option<Lsn>, out: &mut Out) {
        if self.phase == Phase::Deciding {
            self.hear_proof(cx, position.is_some(), out);
            return;
        }
        if self.phase != Phase::Waiting(Wait::Position) {
            return;
        }
        let Some(position) = position else {
            self.no_position(cx, out);
            return;
        };
        let is_question =
            |batch: &RequestBatch| batch.facts.proxy_query == Some(ProxyQuery::Version);
        if self.batch.as_deref().is_some_and(is_question) {
            self.session_state
                .settings
                .set("understudy.version", &position.to_string());
            self.route_to_active(cx, out);
            return;
        }
        self.seen.asked(position, self.asks_shown);
        let mode = self.read_mode(cx);
        let elsewhere = |batch: &RequestBatch| self.may_read_elsewhere(cx, batch, mode);
        if self.batch.as_deref().is_some_and(elsewhere) {
            let required = match mode {
                ReadMode::Bounded { lag_bytes } => Lsn(position.0.saturating_sub(lag_bytes)),
                _ => position,
            };
            self.route_to_standby(cx, required.max(self.least()), out);
        } else if !self.asks_shown && self.active_may_be_late(cx) {
            // The standbys that were there have gone.
            self.ask_position(cx, out);
        } else {
            self.route_to_active(cx, out);
        }
    }

    /// A read that must be strong fails rather than be weak; another goes to the active.
    fn no_position(&mut self, cx: &Context<'_>, out: &mut Out) {
        let is_question =
            |batch: &RequestBatch| batch.facts.proxy_query == Some(ProxyQuery::Version);
        let asks = self.batch.as_deref().is_some_and(is_question);
        let mode = self.read_mode(cx);
        if self.replay.is_some() {
            self.fail_transaction(Reason::NoServer, out);
        } else if mode == ReadMode::Strong || self.distrusts_active(cx) || asks {
            let refusal = super::Refusal::error("57P03", "no server proves that it is active")
                .detail("The position that this read must see could not be asked for in time.")
                .hint("Try again, or SET understudy.read = 'any'.");
            self.fail_batch(&refusal, out);
            if self.phase == Phase::Idle {
                self.release(cx, out);
            }
        } else {
            self.route_to_active(cx, out);
        }
    }
}

/// True if something of the batch is executed, for all that is known: of one that is run again its facts are gone.
fn executes(batch: &RequestBatch) -> bool {
    !batch.is_complete || batch.losses > 0 || !batch.facts.statements.is_empty()
}
