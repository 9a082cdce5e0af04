//! Writing a batch to the server in hand, with what the proxy adds to it.

use bytes::Bytes;
use postgres_protocol::message::frontend;

use super::super::flaw::Flaw;
use super::super::settings::join;
use super::super::sql::{Kind, SingleStatement, Statement};
use super::ask::XidState;
use super::batch::{Noted, RequestBatch};
use super::prepared::{Prepared, put_close, put_parse};
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Out, Phase, PoolMode, Role, Session, Wait};
use protocol::frame;

const CLOSE_COMPLETE: &[u8] = b"3\0\0\0\x04";

impl Session {
    /// There is something to do, or the end of it: find out where.
    pub(super) fn dispatch(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.broken.is_some() {
            self.answer_broken(out);
        } else if self.status == b'I' {
            self.route(cx, out);
        } else {
            self.prepare(cx, out);
        }
    }

    /// A server is in hand: give it what the session has, then go on.
    pub(super) fn prepare(&mut self, cx: &Context<'_>, out: &mut Out) {
        let closes = self.close_surplus(cx, out);
        let Some(link) = &mut self.link else {
            self.phase = Phase::Waiting(Wait::Server);
            return;
        };
        let mut statements = Vec::new();
        if (self.status == b'I' || self.replay.is_some()) && !cx.lacks(Flaw::SettingsForgotten) {
            statements.extend(link.set_up_text(&self.session_state.settings));
            if !link.is_restored && link.epoch().is_some() {
                statements.extend(self.session_state.restore());
            }
            link.is_restored = true;
        }
        if statements.is_empty() && !closes {
            self.proceed(cx, out);
            return;
        }
        self.phase = Phase::Waiting(Wait::Setup);
        if statements.is_empty() {
            self.replies.push(SentMessage::Sync, ReplyOwner::Setup);
            return;
        }
        if closes {
            self.replies.push(SentMessage::Sync, ReplyOwner::Nobody);
        }
        link.is_set_up(&self.session_state.settings);
        self.query_for_us(&join(&statements), out);
    }

    /// Sends a query whose answer is the session's own.
    pub(super) fn query_for_us(&mut self, text: &str, out: &mut Out) {
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
        self.replies.push(SentMessage::Query, ReplyOwner::Setup);
    }

    /// The server in hand has what the session has: do what it is there for.
    pub(super) fn proceed(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.tell_parameters(out);
        if self.in_doubt.is_some() {
            self.decide(cx, out);
        } else if self.replay.is_some() {
            self.replay_next(cx, out);
        } else if self.batch.is_some() {
            self.start_batch(cx, out);
        } else {
            self.phase = Phase::Idle;
            self.release(cx, out);
        }
    }

    /// Writes the batch from its beginning.
    pub(super) fn start_batch(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.phase = Phase::Running;
        let is_noted = self
            .batch
            .as_ref()
            .is_none_or(|batch| !batch.noted.is_empty());
        if !is_noted && let Err(error) = self.note_all(cx) {
            self.malformed(&error, out);
            return;
        }
        if self.has_unasked_writes && self.status == b'T' && self.wants_xid(cx) {
            let is_simple = self.batch.as_ref().is_some_and(|batch| batch.is_simple);
            self.ask_xid_apart(cx, is_simple, out);
        }
        self.write_noted(cx, out);
    }

    /// Notes all messages of a batch that is run once more.
    pub(super) fn note_all(&mut self, cx: &Context<'_>) -> Result<(), frame::Malformed> {
        self.recall_names();
        let mut start = 0;
        while let Some(batch) = &self.batch {
            let Some((_, len)) = frame::head(&batch.bytes[start..])? else {
                break;
            };
            self.note(cx, start, start + len)?;
            start += len;
        }
        Ok(())
    }

    /// Writes the messages that were noted.
    pub(super) fn write_noted(&mut self, cx: &Context<'_>, out: &mut Out) {
        if self.is_too_much_for_standby(cx) {
            match self.cannot_run_again() {
                Some(why) => self.fail_transaction(why, out),
                None => self.leave_standby(cx, out),
            }
            return;
        }
        let Some(mut batch) = self.batch.take() else {
            return;
        };
        while let Some(noted) = batch.noted.pop_front() {
            self.write_frame(cx, &mut batch, &noted, out);
            batch.written = noted.end;
            batch.is_dispatched = true;
        }
        self.ask_state_along(cx, &batch, out);
        self.batch = Some(batch);
        self.flush_emits(out);
    }

    fn write_frame(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) {
        let (start, end) = (batch.written, noted.end);
        self.lend(cx, noted, batch.is_simple, out);
        match batch.bytes[start] {
            b'Q' => self.write_query(cx, batch, noted, out),
            b'P' | b'B' | b'D' | b'C' => {
                let is_new = self.write_named(cx, batch, noted, out);
                if is_new && let Some(prepared) = &noted.prepared {
                    self.note_prepared(batch, prepared);
                }
            }
            b'E' => self.write_execute(cx, batch, noted, out),
            b'S' => {
                let asks = self.has_unasked_writes && self.wants_xid(cx);
                if asks && !batch.has_failed && !batch.facts.is_alone && !batch.facts.copies_in {
                    self.ask_xid(cx, false, batch.is_implicit(), out);
                }
                batch.has_sent_commit |= batch.is_implicit();
                out.server.extend_from_slice(&batch.bytes[start..end]);
                self.replies.push(SentMessage::Sync, ReplyOwner::Client);
            }
            tag => {
                out.server.extend_from_slice(&batch.bytes[start..end]);
                if matches!(tag, b'c' | b'f') {
                    batch.copies_ended += 1;
                    if !batch.is_simple {
                        self.replies.push(SentMessage::CopyEnd, ReplyOwner::Client);
                    }
                }
                if tag == b'F' {
                    self.note_execution(batch, noted);
                    batch.has_sent_commit |= batch.is_implicit();
                    self.replies.push(SentMessage::Query, ReplyOwner::Client);
                }
            }
        }
    }

    /// What names a prepared statement. Whether a server that sessions share has it since then.
    fn write_named(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        let frame = &batch.bytes[batch.written..noted.end];
        if frame[0] == b'P' {
            return self.write_parse(cx, frame, noted, out);
        }
        batch.named.extend(noted.prepared.clone());
        match frame[0] {
            b'B' if self.binds_again(batch, noted, out) => false,
            b'B' => self.write_bind(cx, frame, noted, out),
            _ => self.write_about(cx, frame, noted, out),
        }
    }

    /// A statement goes to the server: what does it mean for the transaction's id?
    fn note_execution(&mut self, batch: &mut RequestBatch, noted: &Noted) {
        let Some(statement) = &noted.statement else {
            return;
        };
        self.note_opaque(batch);
        self.has_unasked_writes |= noted.may_write;
        self.may_have_notified |= batch.facts.may_notify;
        let commits = |part: &SingleStatement| {
            matches!(part.kind, Kind::Commit { .. } | Kind::PrepareTransaction)
        };
        batch.has_sent_commit |= statement.parts.iter().any(commits);
        // What comes behind the end of a transaction may commit by itself, as may what nobody understands.
        batch.has_sent_commit |= batch.facts.goes_on && batch.facts.writes;
        for part in &statement.parts {
            for effect in &part.effects {
                self.forget_statements(batch, effect);
            }
            batch.written_parts += 1;
            self.commits_async |= part.commits_async;
            batch.may_have_set |= part.may_set();
            self.has_notified |= part.notifies();
        }
    }

    fn write_query(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) {
        let (start, end) = (batch.written, noted.end);
        if self.queries_again(batch, noted, out) {
            self.note_execution(batch, noted);
            return;
        }
        self.note_execution(batch, noted);
        let asks = self.has_unasked_writes && self.wants_xid(cx);
        let is_wrappable = noted
            .statement
            .as_ref()
            .is_some_and(|statement| is_wrappable(statement));
        if asks && batch.is_implicit() && batch.is_simple && !batch.facts.is_alone && is_wrappable {
            self.write_wrapped(cx, batch, end, out);
            return;
        }
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        batch.has_sent_commit |= batch.is_implicit();
        out.server.extend_from_slice(&batch.bytes[start..end]);
        self.replies.push(SentMessage::Query, ReplyOwner::Client);
        if asks && batch.began_in == b'T' && !batch.facts.ends && !batch.facts.copies_in {
            self.ask_xid_apart(cx, true, out);
        }
    }

    /// True if other sessions use the server in hand as well, so that names must not meet.
    pub(super) fn is_shared(&self, cx: &Context<'_>) -> bool {
        let is_standby = |link: &super::Server| matches!(link.role, Role::Standby(_));
        cx.rules.mode == PoolMode::Transaction || self.link.as_deref().is_some_and(is_standby)
    }

    fn write_parse(
        &mut self,
        cx: &Context<'_>,
        frame: &[u8],
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        let is_shared = self.is_shared(cx);
        let (Some(prepared), Some(link)) = (&noted.prepared, &mut self.link) else {
            return false;
        };
        let name = frame::name(frame::body(frame)).map_or("", |(name, _)| name);
        if name.is_empty() {
            link.unnamed = Some(prepared.shared_name.clone());
            out.server.extend_from_slice(frame);
            self.replies
                .push(SentMessage::Parse(None), ReplyOwner::Client);
        } else if !is_shared {
            link.prepared.insert(name);
            out.server.extend_from_slice(frame);
            self.replies
                .push(SentMessage::Parse(Some(name.into())), ReplyOwner::Client);
        } else {
            let name = prepared.name_where(link.reported.reading());
            if !link.prepared.insert(&name) {
                // It may have been made of a table or a type that is another one now.
                put_close(&name, out);
                self.replies.push(SentMessage::Close, ReplyOwner::Nobody);
            }
            put_parse(&name, &prepared.definition, out);
            self.replies
                .push(SentMessage::Parse(Some(name.into())), ReplyOwner::Client);
            return true;
        }
        false
    }

    /// Makes sure that the server in hand has the statement, and says by which name; and whether it is one that sessions share
    /// and has it since now.
    fn ensure_prepared(
        &mut self,
        cx: &Context<'_>,
        name: &str,
        prepared: &Prepared,
        out: &mut Out,
    ) -> (Box<str>, bool) {
        let is_shared = self.is_shared(cx);
        let Some(link) = &mut self.link else {
            return (name.into(), false);
        };
        if name.is_empty() {
            if link.unnamed.as_ref() != Some(&prepared.shared_name) {
                link.unnamed = Some(prepared.shared_name.clone());
                put_parse("", &prepared.definition, out);
                self.replies
                    .push(SentMessage::Parse(None), ReplyOwner::Nobody);
            }
            return (name.into(), false);
        }
        let on_server: Box<str> = if is_shared {
            prepared.name_where(link.reported.reading()).into()
        } else {
            name.into()
        };
        let is_new = link.prepared.insert(&on_server);
        if is_new {
            put_parse(&on_server, &prepared.definition, out);
            let ask = SentMessage::Parse(Some(on_server.clone()));
            self.replies.push(ask, ReplyOwner::Nobody);
        }
        (on_server, is_new && is_shared)
    }

    fn write_bind(&mut self, cx: &Context<'_>, frame: &[u8], noted: &Noted, out: &mut Out) -> bool {
        let mut is_new = false;
        let body = frame::body(frame);
        let names = frame::name(body).and_then(|(portal, rest)| {
            let (name, rest) = frame::name(rest)?;
            Some((portal, name, rest))
        });
        if let (Some((portal, name, rest)), Some(prepared)) = (names, &noted.prepared) {
            let on_server;
            (on_server, is_new) = self.ensure_prepared(cx, name, prepared, out);
            if *on_server == *name {
                out.server.extend_from_slice(frame);
            } else {
                let pieces = [portal.as_bytes(), b"\0", on_server.as_bytes(), b"\0", rest];
                frame::put(&mut out.server, b'B', &pieces);
            }
        } else {
            out.server.extend_from_slice(frame);
        }
        self.replies.push(SentMessage::Bind, ReplyOwner::Client);
        is_new
    }

    /// `Describe` and `Close`.
    fn write_about(
        &mut self,
        cx: &Context<'_>,
        frame: &[u8],
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        let is_close = frame[0] == b'C';
        let (kind, rest) = (frame::body(frame)[0], &frame::body(frame)[1..]);
        let name = frame::name(rest).map_or("", |(name, _)| name);
        let ask = match (is_close, kind) {
            (true, _) => SentMessage::Close,
            (false, b'S') => SentMessage::DescribeStatement,
            (false, _) => SentMessage::Describe,
        };
        if kind == b'S'
            && let Some(prepared) = &noted.prepared
        {
            let is_shared = self.is_shared(cx) && !name.is_empty();
            if is_close && is_shared {
                let answer = Bytes::from_static(CLOSE_COMPLETE);
                self.replies
                    .push(SentMessage::Emit(answer), ReplyOwner::Client);
                return false;
            }
            if is_close && let Some(link) = &mut self.link {
                link.prepared.remove(name);
                if name.is_empty() {
                    link.unnamed = None;
                }
            }
            if !is_close {
                let (on_server, is_new) = self.ensure_prepared(cx, name, prepared, out);
                let pieces = [b"S".as_slice(), on_server.as_bytes(), b"\0"];
                frame::put(&mut out.server, b'D', &pieces);
                self.replies
                    .push(SentMessage::DescribeStatement, ReplyOwner::Client);
                return is_new;
            }
        }
        out.server.extend_from_slice(frame);
        self.replies.push(ask, ReplyOwner::Client);
        false
    }

    fn write_execute(
        &mut self,
        cx: &Context<'_>,
        batch: &mut RequestBatch,
        noted: &Noted,
        out: &mut Out,
    ) {
        let commits = noted.statement.as_ref().is_some_and(|statement| {
            let commits = |part: &SingleStatement| matches!(part.kind, Kind::Commit { .. });
            statement.parts.iter().any(commits)
        });
        if commits && self.has_unasked_writes && self.wants_xid(cx) {
            self.ask_xid(cx, false, true, out);
        } else if commits && batch.facts.statements.len() > 1 && self.xid != XidState::NotAsked {
            // What comes before it is answered before it commits: those answers cannot be made up afterwards.
            frontend::flush(&mut out.server);
        }
        self.note_execution(batch, noted);
        out.server
            .extend_from_slice(&batch.bytes[batch.written..noted.end]);
        self.replies.push(SentMessage::Execute, ReplyOwner::Client);
    }

    /// The transaction's id is known, or that it has none.
    pub(super) fn hear_xid(&mut self, text: Option<&[u8]>) {
        let xid = text
            .and_then(|text| std::str::from_utf8(text).ok())
            .and_then(|text| text.parse().ok());
        self.xid = match xid {
            Some(xid) => XidState::Is(super::Xid(xid)),
            None => XidState::None,
        };
    }
}

/// True if a statement may run in a transaction of the proxy's.
fn is_wrappable(statement: &Statement) -> bool {
    let is_plain = |kind: &Kind| matches!(kind, Kind::Write | Kind::Read | Kind::CopyIn);
    statement.only().is_some_and(|part| is_plain(&part.kind))
}
