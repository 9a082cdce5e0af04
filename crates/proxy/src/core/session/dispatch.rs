//! Writing a unit to the server in hand, with what the proxy adds to it.

use bytes::Bytes;
use postgres_protocol::message::frontend;

use super::super::flaw::Flaw;
use super::super::settings::join;
use super::super::sql::{Kind, Part, Statement};
use super::ask::XidState;
use super::prepared::{Prepared, put_close, put_parse};
use super::slots::{Ask, To};
use super::unit::{Noted, Unit};
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
            statements.extend(link.set_up_text(&self.keeps.settings));
            if !link.is_restored && link.epoch().is_some() {
                statements.extend(self.keeps.restore());
            }
            link.is_restored = true;
        }
        if statements.is_empty() && !closes {
            self.proceed(cx, out);
            return;
        }
        self.phase = Phase::Waiting(Wait::Setup);
        if statements.is_empty() {
            self.slots.push(Ask::Sync, To::Setup);
            return;
        }
        if closes {
            self.slots.push(Ask::Sync, To::Nobody);
        }
        link.is_set_up(&self.keeps.settings);
        self.query_for_us(&join(&statements), out);
    }

    /// Sends a query whose answer is the session's own.
    pub(super) fn query_for_us(&mut self, text: &str, out: &mut Out) {
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
        self.slots.push(Ask::Query, To::Setup);
    }

    /// The server in hand has what the session has: do what it is there for.
    pub(super) fn proceed(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.tell_parameters(out);
        if self.in_doubt.is_some() {
            self.decide(cx, out);
        } else if self.replay.is_some() {
            self.replay_next(cx, out);
        } else if self.unit.is_some() {
            self.start_unit(cx, out);
        } else {
            self.phase = Phase::Idle;
            self.release(cx, out);
        }
    }

    /// Writes the unit from its beginning.
    pub(super) fn start_unit(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.phase = Phase::Running;
        let is_noted = self.unit.as_ref().is_none_or(|unit| !unit.noted.is_empty());
        if !is_noted && let Err(error) = self.note_all(cx) {
            self.malformed(&error, out);
            return;
        }
        if self.has_unasked_writes && self.status == b'T' && self.wants_xid(cx) {
            let is_simple = self.unit.as_ref().is_some_and(|unit| unit.is_simple);
            self.ask_xid_apart(cx, is_simple, out);
        }
        self.write_noted(cx, out);
    }

    /// Notes all messages of a unit that is run once more.
    pub(super) fn note_all(&mut self, cx: &Context<'_>) -> Result<(), frame::Malformed> {
        self.recall_names();
        let mut start = 0;
        while let Some(unit) = &self.unit {
            let Some((_, len)) = frame::head(&unit.bytes[start..])? else {
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
        let Some(mut unit) = self.unit.take() else {
            return;
        };
        while let Some(noted) = unit.noted.pop_front() {
            self.write_frame(cx, &mut unit, &noted, out);
            unit.written = noted.end;
            unit.is_dispatched = true;
        }
        self.ask_state_along(cx, &unit, out);
        self.unit = Some(unit);
        self.flush_emits(out);
    }

    fn write_frame(&mut self, cx: &Context<'_>, unit: &mut Unit, noted: &Noted, out: &mut Out) {
        let (start, end) = (unit.written, noted.end);
        self.lend(cx, noted, unit.is_simple, out);
        match unit.bytes[start] {
            b'Q' => self.write_query(cx, unit, noted, out),
            b'P' | b'B' | b'D' | b'C' => {
                let is_new = self.write_named(cx, unit, noted, out);
                if is_new && let Some(prepared) = &noted.prepared {
                    self.note_prepared(unit, prepared);
                }
            }
            b'E' => self.write_execute(cx, unit, noted, out),
            b'S' => {
                let asks = self.has_unasked_writes && self.wants_xid(cx);
                if asks && !unit.has_failed && !unit.facts.is_alone && !unit.facts.copies_in {
                    self.ask_xid(cx, false, unit.is_implicit(), out);
                }
                unit.has_sent_commit |= unit.is_implicit();
                out.server.extend_from_slice(&unit.bytes[start..end]);
                self.slots.push(Ask::Sync, To::Client);
            }
            tag => {
                out.server.extend_from_slice(&unit.bytes[start..end]);
                if matches!(tag, b'c' | b'f') {
                    unit.copies_ended += 1;
                    if !unit.is_simple {
                        self.slots.push(Ask::CopyEnd, To::Client);
                    }
                }
                if tag == b'F' {
                    self.note_execution(unit, noted);
                    unit.has_sent_commit |= unit.is_implicit();
                    self.slots.push(Ask::Query, To::Client);
                }
            }
        }
    }

    /// What names a prepared statement. Whether a server that sessions share has it since then.
    fn write_named(
        &mut self,
        cx: &Context<'_>,
        unit: &mut Unit,
        noted: &Noted,
        out: &mut Out,
    ) -> bool {
        let frame = &unit.bytes[unit.written..noted.end];
        if frame[0] == b'P' {
            return self.write_parse(cx, frame, noted, out);
        }
        unit.named.extend(noted.prepared.clone());
        match frame[0] {
            b'B' if self.binds_again(unit, noted, out) => false,
            b'B' => self.write_bind(cx, frame, noted, out),
            _ => self.write_about(cx, frame, noted, out),
        }
    }

    /// A statement goes to the server: what does it mean for the transaction's id?
    fn note_execution(&mut self, unit: &mut Unit, noted: &Noted) {
        let Some(statement) = &noted.statement else {
            return;
        };
        self.note_opaque(unit);
        self.has_unasked_writes |= noted.may_write;
        self.may_have_notified |= unit.facts.may_notify;
        let commits =
            |part: &Part| matches!(part.kind, Kind::Commit { .. } | Kind::PrepareTransaction);
        unit.has_sent_commit |= statement.parts.iter().any(commits);
        // What comes behind the end of a transaction may commit by itself, as may what nobody understands.
        unit.has_sent_commit |= unit.facts.goes_on && unit.facts.writes;
        for part in &statement.parts {
            for effect in &part.effects {
                self.forget_statements(unit, effect);
            }
            unit.written_parts += 1;
            self.commits_async |= part.commits_async;
            unit.may_have_set |= part.may_set();
            self.has_notified |= part.notifies();
        }
    }

    fn write_query(&mut self, cx: &Context<'_>, unit: &mut Unit, noted: &Noted, out: &mut Out) {
        let (start, end) = (unit.written, noted.end);
        if self.queries_again(unit, noted, out) {
            self.note_execution(unit, noted);
            return;
        }
        self.note_execution(unit, noted);
        let asks = self.has_unasked_writes && self.wants_xid(cx);
        let is_wrappable = noted
            .statement
            .as_ref()
            .is_some_and(|statement| is_wrappable(statement));
        if asks && unit.is_implicit() && unit.is_simple && !unit.facts.is_alone && is_wrappable {
            self.write_wrapped(cx, unit, end, out);
            return;
        }
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        unit.has_sent_commit |= unit.is_implicit();
        out.server.extend_from_slice(&unit.bytes[start..end]);
        self.slots.push(Ask::Query, To::Client);
        if asks && unit.began_in == b'T' && !unit.facts.ends && !unit.facts.copies_in {
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
            self.slots.push(Ask::Parse(None), To::Client);
        } else if !is_shared {
            link.prepared.insert(name);
            out.server.extend_from_slice(frame);
            self.slots.push(Ask::Parse(Some(name.into())), To::Client);
        } else {
            let name = prepared.name_where(link.reported.reading());
            if !link.prepared.insert(&name) {
                // It may have been made of a table or a type that is another one now.
                put_close(&name, out);
                self.slots.push(Ask::Close, To::Nobody);
            }
            put_parse(&name, &prepared.definition, out);
            self.slots.push(Ask::Parse(Some(name.into())), To::Client);
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
                self.slots.push(Ask::Parse(None), To::Nobody);
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
            let ask = Ask::Parse(Some(on_server.clone()));
            self.slots.push(ask, To::Nobody);
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
        self.slots.push(Ask::Bind, To::Client);
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
            (true, _) => Ask::Close,
            (false, b'S') => Ask::DescribeStatement,
            (false, _) => Ask::Describe,
        };
        if kind == b'S'
            && let Some(prepared) = &noted.prepared
        {
            let is_shared = self.is_shared(cx) && !name.is_empty();
            if is_close && is_shared {
                let answer = Bytes::from_static(CLOSE_COMPLETE);
                self.slots.push(Ask::Emit(answer), To::Client);
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
                self.slots.push(Ask::DescribeStatement, To::Client);
                return is_new;
            }
        }
        out.server.extend_from_slice(frame);
        self.slots.push(ask, To::Client);
        false
    }

    fn write_execute(&mut self, cx: &Context<'_>, unit: &mut Unit, noted: &Noted, out: &mut Out) {
        let commits = noted.statement.as_ref().is_some_and(|statement| {
            let commits = |part: &Part| matches!(part.kind, Kind::Commit { .. });
            statement.parts.iter().any(commits)
        });
        if commits && self.has_unasked_writes && self.wants_xid(cx) {
            self.ask_xid(cx, false, true, out);
        } else if commits && unit.facts.statements.len() > 1 && self.xid != XidState::NotAsked {
            // What comes before it is answered before it commits: those answers cannot be made up afterwards.
            frontend::flush(&mut out.server);
        }
        self.note_execution(unit, noted);
        out.server
            .extend_from_slice(&unit.bytes[unit.written..noted.end]);
        self.slots.push(Ask::Execute, To::Client);
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
