//! A batch that fails by the proxy's word, and a transaction block that is left without a server.
//!
//! As in PostgreSQL, a failed transaction block goes on until its client ends it.

use bytes::{Bytes, BytesMut};

use super::super::sql::Kind;
use super::batch::RequestBatch;
use super::{Effect, Out, Phase, Session, Wait};
use protocol::frame::{self, Refusal};

/// A transaction block without a server.
#[derive(Debug)]
pub struct Broken {
    /// Why, if the client has not been told.
    untold: Option<Bytes>,
}

/// Way in which a batch ends a broken block.
enum End {
    Commit,
    Rollback,
}

impl Session {
    /// The batch fails with this, or the next one if none is under way.
    pub(super) fn fail_batch(&mut self, refusal: &Refusal, out: &mut Out) {
        if let Some(replay) = self.replay.take() {
            // What is run again is nobody's batch: a client that does nothing hears of it with what it does next.
            self.batch = replay.into_waiting();
        }
        if let Some(link) = self.link.take() {
            self.remember(&link, link.uncertain_epoch());
            self.link = Some(link);
        }
        let batch = self.batch.take();
        let was_open = self.status != b'I';
        let has_begun = batch.as_ref().is_some_and(|batch| batch.is_dispatched);
        let is_on_standby = |link: &super::Server| link.epoch().is_none();
        // What the session has on its connection stays if nothing was begun there.
        if was_open
            || has_begun
            || !self.replies.is_empty()
            || self.link.as_deref().is_some_and(is_on_standby)
        {
            self.discard_link(out);
        }
        let commits = batch.as_ref().is_some_and(|batch| batch.commits());
        let stays_open = was_open && !commits;
        self.transaction = None;
        self.session_state.end(false);
        self.end_transaction();
        let Some(mut batch) = batch else {
            self.broken = was_open.then(|| Broken {
                untold: Some(refusal.to_bytes()),
            });
            self.rest(out);
            return;
        };
        if was_open && put_closed(&batch, &mut out.client) {
            self.broken = Some(Broken {
                untold: Some(refusal.to_bytes()),
            });
        } else {
            refusal.put(&mut out.client);
            self.broken = stays_open.then_some(Broken { untold: None });
            self.status = if stays_open { b'E' } else { b'I' };
        }
        if batch.is_complete {
            frame::put_ready(&mut out.client, self.status);
            self.rest(out);
        } else {
            batch.skips = true;
            self.phase = Phase::Gathering;
            self.batch = Some(batch);
        }
    }

    /// The server in hand has an end of a transaction that nobody wants.
    fn discard_link(&mut self, out: &mut Out) {
        if self.link.take().is_some() {
            self.state = None;
            self.held_ready = None;
            self.replies.clear();
            out.server.clear();
            out.effects.push(Effect::Drop);
        }
    }

    /// The `Sync` came that ends what is skipped.
    pub(super) fn end_skipping(&mut self, out: &mut Out) {
        self.batch = None;
        frame::put_ready(&mut out.client, self.status);
        self.rest(out);
    }

    /// Nothing is under way. Who waits for notifications needs a server for it.
    fn rest(&mut self, out: &mut Out) {
        self.phase = Phase::Idle;
        let is_between = self.status == b'I' && self.broken.is_none();
        if is_between
            && self.session_state.listens()
            && self.link.is_none()
            && self.parked.is_none()
        {
            self.phase = Phase::Waiting(Wait::Server);
            self.ask_for_active(out);
        }
    }

    /// A `COMMIT` that became a rollback because something of ours had failed must not look like one that
    /// the client caused.
    pub(super) fn pay_owed(&mut self, batch: &RequestBatch, status: u8, out: &mut Out) {
        if status != b'I' && !batch.facts.goes_on {
            return;
        }
        let deferred_error = self.deferred_error.take();
        if !batch.facts.commits || !batch.was_rolled_back {
            return;
        }
        if let Some(deferred_error) = deferred_error {
            out.client.extend_from_slice(&deferred_error);
        } else if self.status == b'T' && !batch.has_failed {
            tracing::warn!("a transaction was rolled back, and its client had received no error");
            Refusal::error("40001", "the transaction was rolled back")
                .hint("Try the transaction again.")
                .put(&mut out.client);
        }
    }

    /// Answers a batch of a block without a server.
    pub(super) fn answer_broken(&mut self, out: &mut Out) {
        let (Some(mut batch), Some(broken)) = (self.batch.take(), &mut self.broken) else {
            return;
        };
        let end = end_of(&batch);
        if !put_closed(&batch, &mut out.client) {
            match (&end, broken.untold.take()) {
                (Some(End::Commit), Some(untold)) => out.client.extend_from_slice(&untold),
                (Some(_), _) => put_rollback(&batch, &mut out.client),
                (None, Some(untold)) => out.client.extend_from_slice(&untold),
                (None, None) => Refusal::error(
                    "25P02",
                    "current transaction is aborted, commands ignored until end of transaction block",
                )
                .put(&mut out.client),
            }
            self.status = if end.is_some() { b'I' } else { b'E' };
        }
        if end.is_some() {
            self.broken = None;
        }
        if batch.is_complete {
            frame::put_ready(&mut out.client, self.status);
            self.rest(out);
        } else {
            batch.skips = true;
            self.phase = Phase::Gathering;
            self.batch = Some(batch);
        }
    }
}

/// True if the batch does nothing but end the block.
fn end_of(batch: &RequestBatch) -> Option<End> {
    let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
    let end = match parts.next()?.kind {
        Kind::Commit { chain: false } => End::Commit,
        Kind::Rollback { chain: false } => End::Rollback,
        _ => return None,
    };
    parts.next().is_none().then_some(end)
}

/// The answers to a batch that does nothing but close what was prepared; nothing, and no, to any other. PostgreSQL never fails
/// there, so drivers do not look: an error that is told there is not heard, and the client takes the end of the transaction for
/// its commit.
fn put_closed(batch: &RequestBatch, out: &mut BytesMut) -> bool {
    let mut at = 0;
    let mut closes = 0;
    while let Ok(Some((tag, len))) = frame::head(&batch.bytes[at..]) {
        match tag {
            b'C' => closes += 1,
            b'S' | b'H' => {}
            _ => return false,
        }
        at += len;
    }
    let had = batch.had.unwrap_or_default().frames;
    for _ in had.max(batch.answered.frames)..closes {
        frame::put(out, b'3', &[]);
    }
    at > 0
}

/// The answers to a batch that rolls a transaction back.
fn put_rollback(batch: &RequestBatch, out: &mut BytesMut) {
    let mut at = 0;
    while let Ok(Some((tag, len))) = frame::head(&batch.bytes[at..]) {
        match tag {
            b'P' => frame::put(out, b'1', &[]),
            b'B' => frame::put(out, b'2', &[]),
            b'C' => frame::put(out, b'3', &[]),
            b'D' => {
                if batch.bytes.get(at + frame::HEADER_BYTES) == Some(&b'S') {
                    frame::put(out, b't', &[&[0, 0]]);
                }
                frame::put(out, b'n', &[]);
            }
            b'E' | b'Q' => frame::put_complete(out, "ROLLBACK"),
            _ => {}
        }
        at += len;
    }
}
