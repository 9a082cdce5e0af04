//! A standby in hand: what it must not be given, and how its session leaves it.
//!
//! Its connection goes to others after each transaction, and its locks are its own. Invariant: nothing of a session stays on it,
//! and what it cannot do the active does, in the place of it.

use super::super::sql::{Hint, SingleStatement};
use super::batch::RequestBatch;
use super::{Context, Effect, Out, Phase, Role, Server, Session};

/// `read_only_sql_transaction`
pub const READ_ONLY: &[u8] = b"25006";

impl Session {
    /// True if the messages that were noted must not go to the standby in hand, which others have next.
    pub(super) fn is_too_much_for_standby(&self, cx: &Context<'_>) -> bool {
        let is_standby = |link: &Server| link.epoch().is_none();
        let noted = self.batch.iter().flat_map(|batch| &batch.noted);
        let mut parts = noted
            .filter_map(|noted| noted.statement.as_ref())
            .flat_map(|statement| &statement.parts);
        let is_hinted =
            |batch: &RequestBatch| batch.facts.hint == Some(Hint::Standby) && batch.is_implicit();
        let is_vouched_for = self.batch.as_deref().is_some_and(is_hinted);
        let is_for_active = |part: &SingleStatement| match is_vouched_for {
            true => part.is_for_active(),
            false => cx.catalog.is_for_active(part),
        };
        self.link.as_deref().is_some_and(is_standby) && parts.any(is_for_active)
    }

    /// True if the standby in hand does not answer anybody.
    pub(super) fn is_on_silent_standby(&self, cx: &Context<'_>) -> bool {
        let role = self.link.as_deref().map(|link| &link.role);
        matches!(role, Some(Role::Standby(name)) if cx.topology.silent.contains(name))
    }

    /// True if an error tells that this is nothing for a standby, or not now.
    pub(super) fn moves_to_active(&self, code: &[u8]) -> bool {
        let is_standby = |link: &Server| matches!(link.role, Role::Standby(_));
        let is_moving = matches!(code, b"0A000" | b"40001" | b"40P01" | b"55000");
        (is_moving || code == READ_ONLY)
            && self.link.as_deref().is_some_and(is_standby)
            && self.phase == Phase::Running
            && self
                .batch
                .as_ref()
                .is_some_and(|batch| !batch.is_streamed && !batch.is_cut)
    }

    /// A standby says that the batch writes: what was known of a function is not so any more, or something writes that
    /// nobody looks into.
    pub(super) fn learn_that_it_writes(&mut self, out: &mut Out) {
        if let Some(batch) = &mut self.batch {
            batch.is_known_to_write = true;
        }
        out.effects.push(Effect::LearnFunctions);
    }

    /// The batch cannot be done by the standby in hand: the active does it.
    pub(super) fn leave_standby(&mut self, cx: &Context<'_>, out: &mut Out) {
        if let Some(link) = self.link.take() {
            self.remember(&link, None);
        }
        self.state = None;
        self.replies.clear();
        out.server.clear();
        out.effects.push(Effect::Drop);
        if let Some(batch) = &mut self.batch {
            batch.again();
            batch.avoids_standbys = true;
        }
        if self.transaction.is_some() && !self.begin_replay(cx, out) {
            return;
        }
        self.route_past_standbys(cx, out);
    }

    /// Gives the standby in hand back, and takes the active in hand again if it was there.
    pub(super) fn unlink_standby(&mut self, out: &mut Out) {
        self.return_link(out);
        self.unpark(out);
    }

    /// Closes the connection to the standby in hand, and takes the active in hand again if it was there.
    pub(super) fn drop_standby(&mut self, out: &mut Out) {
        if self.link.take().is_some() {
            out.effects.push(Effect::Drop);
        }
        self.unpark(out);
    }

    fn unpark(&mut self, out: &mut Out) {
        if self.parked.is_some() {
            self.link = self.parked.take();
            out.effects.push(Effect::Unpark);
        }
    }
}
