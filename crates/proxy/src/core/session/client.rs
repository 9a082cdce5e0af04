//! Puts a client's messages together to batches.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use super::super::flaw::Flaw;
use super::super::sql::{Statement, Verdict};
use super::batch::{Noted, RequestBatch};
use super::prepared::Prepared;
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Effect, Out, Phase, Session};
use protocol::frame::{self, Malformed, Refusal};

/// A batch of the extended protocol that is longer goes to a server before its `Sync` is there.
const GATHER_BYTES: usize = 64 << 10;
/// So does one that is not complete after this time.
pub(in crate::core) const GATHER_TIME: Duration = Duration::from_millis(5);

impl Session {
    /// Tells the client what the server in hand has reported and the client does not know.
    pub(super) fn tell_parameters(&mut self, out: &mut Out) {
        let Some(server) = &self.link else {
            return;
        };
        let news: Vec<(String, String)> = server
            .reported
            .news_to(&self.told)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, value) in news {
            frame::put_parameter(&mut out.client, &name, &value);
            self.told.put(&name, &value);
        }
    }

    /// Takes as many messages off `input` as can be taken now.
    pub fn client_input(&mut self, cx: &Context<'_>, input: &mut BytesMut, out: &mut Out) {
        while self.takes_client() {
            match frame::take(input, cx.rules.message_bytes) {
                Ok(Some(frame)) => {
                    if let Err(error) = self.client_frame(cx, frame, out) {
                        self.malformed(&error, out);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.malformed(&error, out);
                }
            }
        }
        if self.phase == Phase::Gathering && self.batch.as_ref().is_some_and(|batch| !batch.skips) {
            // More may come in a moment. If not, its client waits for an answer, which is due without a `Sync` as well.
            out.effects.push(Effect::Wake(GATHER_TIME));
        }
    }

    fn client_frame(
        &mut self,
        cx: &Context<'_>,
        frame: BytesMut,
        out: &mut Out,
    ) -> Result<(), Malformed> {
        let tag = frame[0];
        if self.batch.as_ref().is_some_and(|batch| batch.is_copying_in) {
            self.copy_frame(cx, &frame, out);
            return Ok(());
        }
        match tag {
            b'X' => self.shut(out),
            b'Q' | b'F' | b'P' | b'B' | b'D' | b'E' | b'C' | b'H' | b'S' => {
                self.batch_frame(cx, frame, out)?;
            }
            // What is left of a COPY that the server has ended.
            b'd' | b'c' | b'f' | b'p' => self.late_copy_frame(&frame, out),
            _ => {
                let refusal =
                    Refusal::fatal("08P01", format!("invalid frontend message type {tag}"));
                self.close(&refusal, out);
            }
        }
        Ok(())
    }

    /// Data for `COPY`.
    fn copy_frame(&mut self, cx: &Context<'_>, frame: &[u8], out: &mut Out) {
        match frame[0] {
            b'd' | b'c' | b'f' => {
                self.keep_frame(cx, frame);
                out.server.extend_from_slice(frame);
                if frame[0] != b'd'
                    && let Some(mut batch) = self.batch.take()
                {
                    batch.is_copying_in = false;
                    batch.has_ended_copy = true;
                    batch.copies_ended += 1;
                    batch.has_sent_commit |= batch.is_implicit();
                    if batch.is_wrapped {
                        self.end_wrapped(cx, &mut batch, out);
                    }
                    self.batch = Some(batch);
                }
            }
            b'X' => self.shut(out),
            // The server would ignore them.
            b'H' | b'S' => {}
            tag => {
                let text = format!("unexpected message type 0x{tag:02X} during COPY from stdin");
                self.close(&Refusal::fatal("08P01", text), out);
            }
        }
    }

    /// Appends to the batch a message that is already on its way, for the case that it must be sent again.
    fn keep_frame(&mut self, cx: &Context<'_>, frame: &[u8]) {
        if let Some(batch) = &mut self.batch {
            if batch.bytes.len() + frame.len() > cx.rules.replay_bytes {
                batch.facts.cannot_repeat = true;
            } else {
                batch.bytes.extend_from_slice(frame);
                batch.written = batch.bytes.len();
            }
        }
    }

    /// Data for `COPY` that comes before the server asked for it, or after it has refused.
    fn late_copy_frame(&mut self, frame: &[u8], out: &mut Out) {
        let Some(batch) = &mut self.batch else {
            return;
        };
        // After an error the server ignores it, and answers the next `Sync`.
        if batch.is_simple || batch.skips || batch.has_failed {
            return;
        }
        if !batch.is_dispatched {
            let refusal =
                Refusal::fatal("08P01", "data for COPY came before the server asked for it")
                    .hint("Wait for the answer to COPY, as libpq and other drivers do.");
            self.close(&refusal, out);
            return;
        }
        batch.facts.cannot_repeat = true;
        out.server.extend_from_slice(frame);
        if frame[0] != b'd' {
            batch.copies_ended += 1;
            self.replies.push(SentMessage::CopyEnd, ReplyOwner::Client);
        }
    }

    fn batch_frame(
        &mut self,
        cx: &Context<'_>,
        frame: BytesMut,
        out: &mut Out,
    ) -> Result<(), Malformed> {
        let tag = frame[0];
        let status = self.status;
        let batch = self
            .batch
            .get_or_insert_with(|| Box::new(RequestBatch::new(status)));
        if batch.skips {
            if tag == b'S' {
                self.end_skipping(out);
            }
            return Ok(());
        }
        if batch.has_failed && !batch.is_simple && tag != b'S' {
            // The server would skip it, whatever it is.
            return Ok(());
        }
        let is_first = batch.bytes.is_empty() && !batch.is_dispatched;
        batch.is_simple |= matches!(tag, b'Q' | b'F') && is_first;
        batch.is_complete |= matches!(tag, b'Q' | b'F' | b'S');
        let end = if batch.bytes.is_empty() {
            batch.bytes = frame;
            batch.bytes.len()
        } else {
            batch.bytes.extend_from_slice(&frame);
            batch.bytes.len()
        };
        let start = batch.noted.back().map_or(batch.written, |last| last.end);
        self.note(cx, start, end)?;
        let is_enough =
            matches!(tag, b'Q' | b'F' | b'S' | b'H') || end - start_of(&self.batch) > GATHER_BYTES;
        match self.phase {
            Phase::Running => {
                self.write_noted(cx, out);
                if self.phase == Phase::Running {
                    self.forget_written(cx);
                }
            }
            _ if is_enough => self.dispatch(cx, out),
            _ => self.phase = Phase::Gathering,
        }
        Ok(())
    }

    /// A batch whose end does not come is not kept for ever, for the case that it must be sent again.
    fn forget_written(&mut self, cx: &Context<'_>) {
        if let Some(batch) = &mut self.batch
            && !batch.is_complete
            && batch.bytes.len() > cx.rules.replay_bytes
        {
            batch.bytes = BytesMut::new();
            batch.written = 0;
            batch.is_cut = true;
            if let Some(mut batch) = self.batch.take() {
                self.note_completed(&mut batch);
                self.batch = Some(batch);
            }
        }
    }

    /// Finds out what the message between `start` and `end` of the batch names and does.
    pub(super) fn note(
        &mut self,
        cx: &Context<'_>,
        start: usize,
        end: usize,
    ) -> Result<(), Malformed> {
        let Some(batch) = &mut self.batch else {
            return Ok(());
        };
        let frame = &batch.bytes[start..end];
        let body = frame::body(frame);
        let mut noted = Noted {
            end,
            prepared: None,
            statement: None,
            may_write: false,
            needs: Vec::new(),
        };
        match frame[0] {
            b'Q' => {
                let (text, _) = frame::text(body).ok_or(Malformed::Body(b'Q'))?;
                noted.statement = Some(cx.statements.look(text));
            }
            b'F' => {
                let number = body.first_chunk().ok_or(Malformed::Body(b'F'))?;
                let statement = Statement::call_of(u32::from_be_bytes(*number));
                noted.statement = Some(Arc::new(statement));
            }
            b'P' => {
                let reading = self.told.reading();
                let (name, prepared) = Prepared::read(body, cx.statements, reading)?;
                let prepared = Arc::new(prepared);
                self.names.define(name, Some(prepared.clone()));
                batch.facts.proxy_query =
                    batch.facts.proxy_query.or(prepared.statement.proxy_query);
                noted.prepared = Some(prepared);
            }
            b'B' => {
                let (portal, rest) = frame::name(body).ok_or(Malformed::Body(b'B'))?;
                let (name, _) = frame::name(rest).ok_or(Malformed::Body(b'B'))?;
                noted.prepared = self.names.statement(name, self.told.reading());
                if let Some(prepared) = &noted.prepared {
                    self.names.bind(portal, prepared.statement.clone());
                }
            }
            b'D' | b'C' => {
                let (kind, rest) = body.split_first().ok_or(Malformed::Body(frame[0]))?;
                let (name, _) = frame::name(rest).ok_or(Malformed::Body(frame[0]))?;
                if *kind == b'S' {
                    noted.prepared = self.names.statement(name, self.told.reading());
                    if frame[0] == b'C' {
                        self.names.define(name, None);
                    }
                }
            }
            b'E' => {
                let (portal, _) = frame::name(body).ok_or(Malformed::Body(b'E'))?;
                // A portal that nobody bound is an error, or a cursor that SQL has declared.
                let bound = self.names.portal(portal).cloned();
                noted.statement = Some(bound.unwrap_or_else(|| Arc::new(Statement::opaque())));
            }
            _ => {}
        }
        let prepared = noted.prepared.as_ref().map(|one| one.statement.clone());
        if let Some(statement) = noted.statement.clone().or(prepared) {
            noted.needs = self.needs(&statement);
        }
        if let Some(statement) = noted.statement.clone() {
            self.judge(cx, &statement, &mut noted);
        }
        if let Some(batch) = &mut self.batch {
            batch.noted.push_back(noted);
        }
        Ok(())
    }
}

impl Session {
    /// Takes the catalog's judgement of a statement of the batch.
    fn judge(&mut self, cx: &Context<'_>, statement: &Arc<Statement>, noted: &mut Noted) {
        let Some(mut batch) = self.batch.take() else {
            return;
        };
        let verdicts: Vec<Verdict> = statement
            .parts
            .iter()
            .map(|part| cx.catalog.judge(part))
            .collect();
        batch.executes(statement, &verdicts);
        self.forget_names(&mut batch, statement);
        if cx.lacks(Flaw::ChainsOverlooked) {
            (batch.facts.goes_on, batch.facts.is_alone) = (false, false);
        }
        noted.may_write = batch.is_known_to_write;
        for (part, verdict) in statement.parts.iter().zip(&verdicts) {
            // A function may write, whatever the statement is, and whatever the catalog said when it was read.
            noted.may_write |= match cx.lacks(Flaw::CatalogBelieved) {
                false => verdict.may_write,
                true => part.writes() || !verdict.may_run_on_standby,
            };
            if cx.lacks(Flaw::NamesBelieved) && !part.writes() && part.calls.is_empty() {
                noted.may_write = false;
            }
        }
        batch.facts.writes |= noted.may_write;
        self.batch = Some(batch);
    }
}

/// Bytes of the batch that were written.
fn start_of(batch: &Option<Box<RequestBatch>>) -> usize {
    batch.as_ref().map_or(0, |batch| batch.written)
}
