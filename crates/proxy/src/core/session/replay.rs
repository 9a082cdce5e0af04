//! An open transaction is run again on another server, and its answers are compared (R6).

use bytes::{Bytes, BytesMut};
use protocol::frame;

use super::super::flaw::Flaw;
use super::super::sql::SingleStatement;
use super::super::sql::kept::Place;
use super::batch::{Noted, RequestBatch};
use super::kept::Binding;
use super::reason::Reason;
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Out, Phase, Session};

/// Takes away what `currval` and `lastval` go by.
const FORGET: &str = "DISCARD SEQUENCES";

/// How far a replay is.
#[derive(Debug)]
pub struct Replay {
    /// The batch that is run, or is run next.
    at: usize,
    /// The batch that was under way when the server was lost.
    waiting: Option<Box<RequestBatch>>,
}

impl Replay {
    /// The same, as it waits.
    pub fn waiting(&self) -> Option<&RequestBatch> {
        self.waiting.as_deref()
    }

    /// The batch that was under way when the server was lost.
    pub fn into_waiting(self) -> Option<Box<RequestBatch>> {
        self.waiting
    }
}

impl Session {
    /// The transaction is to be run again, when a server is there. If it cannot be, its client is told.
    pub(super) fn begin_replay(&mut self, cx: &Context<'_>, out: &mut Out) -> bool {
        if let Some(replay) = self.replay.take() {
            self.batch = replay.waiting;
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
            waiting: self.batch.take(),
        });
        self.names.rewind();
        self.session_state.rewind();
        true
    }

    /// Runs the next batch of the transaction, or goes on with what was under way.
    pub(super) fn replay_next(&mut self, cx: &Context<'_>, out: &mut Out) {
        let Some(replay) = &mut self.replay else {
            return;
        };
        let stored = self
            .transaction
            .as_ref()
            .and_then(|transaction| transaction.batches.get(replay.at));
        let Some(stored) = stored else {
            self.batch = replay.waiting.take();
            self.replay = None;
            self.counts.replayed += 1;
            self.phase = Phase::Idle;
            if self.batch.is_some() {
                self.start_batch(cx, out);
            }
            return;
        };
        let began_in = if replay.at == 0 { b'I' } else { b'T' };
        let mut batch = RequestBatch::new(began_in);
        batch.bytes = BytesMut::from(&stored.bytes[..]);
        batch.rows = stored.rows.clone();
        batch.is_complete = true;
        batch.is_simple = matches!(batch.bytes.first(), Some(b'Q' | b'F'));
        batch.has_ended_copy = true;
        self.batch = Some(Box::new(batch));
        self.phase = Phase::Replaying;
        if let Err(error) = self.note_all(cx) {
            self.malformed(&error, out);
            return;
        }
        self.write_noted(cx, out);
    }

    /// A batch was run again: its answers must be what they were.
    pub(super) fn replayed(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) {
        let Some(replay) = &mut self.replay else {
            return;
        };
        let stored = self
            .transaction
            .as_ref()
            .and_then(|transaction| transaction.batches.get(replay.at));
        let batch = self.batch.take();
        let has_failed = self.deferred_error.take().is_some();
        let is_same = !has_failed
            && match (stored, &batch) {
                (Some(stored), Some(batch)) => {
                    stored.answered == batch.answered && stored.status == status
                }
                _ => false,
            };
        if !is_same && !cx.lacks(Flaw::AnswersNotCompared) {
            self.batch = replay.waiting.take();
            self.replay = None;
            self.fail_transaction(Reason::OtherAnswers, out);
            return;
        }
        replay.at += 1;
        if let Some(mut batch) = batch {
            self.note_effects(&mut batch, status);
        }
        self.replay_next(cx, out);
    }
}

fn part(batch: &RequestBatch, at: usize) -> Option<&SingleStatement> {
    let mut parts = batch.facts.statements.iter().flat_map(|all| &all.parts);
    parts.nth(at)
}

impl Session {
    /// An answer of the server's for the client: what has to be kept of it is.
    pub(super) fn keep_rows(&mut self, tag: u8, frame: &[u8]) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        let at = batch.complete.len();
        let is_in_block = batch.began_in == b'T' || batch.facts.begins.is_some();
        if matches!(tag, b'D' | b'T')
            && is_in_block
            && self.phase == Phase::Running
            && part(batch, at).is_some_and(|part| part.keeps_values)
        {
            batch.rows.note(at, tag, frame);
        }
    }

    /// The text of a query that is run once more, with the values that it told.
    pub(super) fn queries_again(
        &mut self,
        batch: &RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        if self.phase != Phase::Replaying {
            return false;
        }
        let is_one = noted
            .statement
            .as_ref()
            .is_some_and(|statement| statement.only().is_some_and(|part| part.keeps_values));
        let body = frame::body(&batch.bytes[batch.written..noted.end]);
        let text = frame::name(body).map(|(text, _)| text);
        let again = text
            .filter(|_| is_one)
            .and_then(|text| batch.rows.again(0, text, Place::Text));
        let Some(again) = again else {
            return false;
        };
        let moves = again.moves.unwrap_or_default();
        let first = format!("{moves};{FORGET}");
        for (text, to) in [
            (first.as_str(), ReplyOwner::Nobody),
            (again.text.as_str(), ReplyOwner::Client),
        ] {
            frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
            self.replies.push(SentMessage::Query, to);
        }
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        true
    }

    /// The same for a statement that is bound: it is prepared with parameters for the values behind the client's own. What is
    /// bound is the next that the batch executes.
    pub(super) fn binds_again(
        &mut self,
        batch: &RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        let prepared = noted.prepared.as_deref();
        let Some(prepared) = prepared.filter(|_| self.phase == Phase::Replaying) else {
            return false;
        };
        let frame = &batch.bytes[batch.written..noted.end];
        let at = batch.written_parts;
        let is_next = part(batch, at)
            .is_some_and(|part| part.keeps_values && prepared.statement.only() == Some(part));
        if !is_next {
            return false;
        }
        let written = Binding::read(frame::body(frame)).and_then(|binding| {
            let (text, types) = frame::name(&prepared.definition)?;
            let place = Place::Parameters(binding.parameters);
            let again = batch.rows.again(at, text, place)?;
            let bind = binding.with(&again.parameters);
            Some((again, Bytes::copy_from_slice(types), bind))
        });
        let Some((again, types, bind)) = written else {
            return false;
        };
        if let Some(moves) = &again.moves {
            self.execute_for_us(moves, out);
        }
        self.execute_for_us(FORGET, out);
        let pieces = [b"\0".as_slice(), again.text.as_bytes(), b"\0", &types];
        frame::put(&mut out.server, b'P', &pieces);
        self.replies
            .push(SentMessage::Parse(None), ReplyOwner::Nobody);
        frame::put(&mut out.server, b'B', &[&bind]);
        self.replies.push(SentMessage::Bind, ReplyOwner::Client);
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        true
    }

    /// A statement of our own among messages of the extended protocol; if it fails, so does what follows.
    fn execute_for_us(&mut self, text: &str, out: &mut Out) {
        frame::put(&mut out.server, b'P', &[b"\0", text.as_bytes(), b"\0\0\0"]);
        frame::put(&mut out.server, b'B', &[b"\0\0\0\0\0\0\0\0"]);
        frame::put(&mut out.server, b'E', &[b"\0\0\0\0\0"]);
        for ask in [
            SentMessage::Parse(None),
            SentMessage::Bind,
            SentMessage::Execute,
        ] {
            self.replies.push(ask, ReplyOwner::Nobody);
        }
    }
}
