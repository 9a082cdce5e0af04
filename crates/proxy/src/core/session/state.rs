//! What a session has, asked from its server (R10, R11).
//!
//! A function, `DO` or `CALL` may change settings, take locks, make temporary tables and listen, and no text says so. So behind
//! something opaque the server is asked, in the same packet as what ends its transaction; the end of the answer is told when
//! both are answered.
//!
//! ```text
//!   client:  SELECT f()                                          ◀── rows ── ReadyForQuery
//!   server:  SELECT f() │ what does the session have? ──▶ rows ──▶ state ─────┘
//! ```
//!
//! Invariant: a connection on which something opaque has run goes to nobody else before it was reset, and not at all if nobody
//! knows what it has.

use super::super::flaw::Flaw;
use super::super::settings::quote_literal;
use super::super::sql::{OWN_FUNCTIONS, ServerAffinity};
use super::batch::RequestBatch;
use super::replies::{ReplyOwner, SentMessage};
use super::{Context, Effect, Out, Phase, Server, Session};
use protocol::frame;

/// Gives a connection the state of a new one, but for its prepared statements.
pub(super) const RESET: &str = "RESET SESSION AUTHORIZATION\n; RESET ALL\n; UNLISTEN *\n; CLOSE ALL\n; \
    SELECT pg_catalog.pg_advisory_unlock_all()\n; DISCARD TEMP";

/// The beginning of the question.
pub(in crate::core) const QUESTION: &str =
    "SELECT CASE source WHEN 'session' THEN 's' ELSE 'x' END";

/// Settings of which `pg_settings` tells, and which are no session's.
const NOT_KEPT: &str =
    "ARRAY['transaction_isolation', 'transaction_read_only', 'transaction_deferrable']";

/// What a server has answered so far.
#[derive(Debug, Default)]
pub struct Answer {
    rows: Vec<(u8, String, Option<String>)>,
    has_failed: bool,
}

/// The question. `plain` settings are those that the session is known to have, `custom` those that it may have.
fn question(plain: &[&str], custom: &[&str]) -> String {
    let array = |names: &[&str]| {
        let quoted: Vec<String> = names.iter().map(|name| quote_literal(name)).collect();
        format!("ARRAY[{}]::pg_catalog.text[]", quoted.join(", "))
    };
    let equals = "OPERATOR(pg_catalog.=)";
    format!(
        "{QUESTION}, name, pg_catalog.current_setting(name) FROM pg_catalog.pg_settings \
         WHERE (source {equals} 'session' OR pg_catalog.lower(name) {equals} ANY ({plain})) \
         AND name OPERATOR(pg_catalog.<>) ALL ({NOT_KEPT}) \
         UNION ALL SELECT 'c', n, pg_catalog.current_setting(n, true) FROM pg_catalog.unnest({custom}) n \
         UNION ALL SELECT 'r', 'role', pg_catalog.current_setting('role') \
         UNION ALL SELECT 'l', '', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_locks \
         WHERE locktype {equals} 'advisory' AND pid {equals} pg_catalog.pg_backend_pid()) \
         UNION ALL SELECT 't', '', NULL WHERE pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.<>) 0 \
         AND (EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace {equals} pg_catalog.pg_my_temp_schema()) \
         OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace {equals} pg_catalog.pg_my_temp_schema())) \
         UNION ALL SELECT 'n', c, NULL FROM pg_catalog.pg_listening_channels() c \
         UNION ALL SELECT 'h', '', NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable) \
         UNION ALL SELECT 'p', name, statement FROM pg_catalog.pg_prepared_statements WHERE from_sql \
         UNION ALL SELECT 'f', '', {OWN_FUNCTIONS}",
        plain = array(plain),
        custom = array(custom),
    )
}

/// Names with a dot that a text has in it: of settings, among other things.
fn dotted_names(text: &[u8]) -> Vec<String> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$');
    let words = text.split(|byte| !is_part(byte));
    let is_name = |word: &&[u8]| {
        let mut pieces = word.split(|&byte| byte == b'.');
        let is_piece = |piece: &[u8]| {
            piece
                .first()
                .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        };
        word.contains(&b'.') && word.len() < 128 && pieces.all(is_piece)
    };
    let names = words.filter(is_name).take(100);
    names
        .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
        .collect()
}

impl Answer {
    /// True if the functions of the users' own are those that the catalog was read with.
    fn has_functions(&self, read: &str) -> bool {
        let now = self.rows.iter().find(|(kind, ..)| *kind == b'f');
        now.is_none_or(|(_, _, now)| now.as_deref() == Some(read))
    }
}

impl Session {
    /// Something opaque goes to the server in hand.
    pub(super) fn note_opaque(&mut self, batch: &mut RequestBatch) {
        if let Some(link) = &mut self.link {
            link.is_tainted |= batch.facts.taints;
            link.is_unasked |= batch.facts.is_opaque;
            link.has_run_own |= batch.facts.runs_own;
            link.is_changed |= batch.facts.is_opaque;
        }
        if batch.facts.runs_unseen {
            for name in dotted_names(&batch.bytes) {
                if !self.named_settings.contains(&name) && self.named_settings.len() < 1000 {
                    self.named_settings.push(name);
                }
            }
        }
    }

    /// The whole batch was written, and nothing is open behind it, most probably: the question goes with it.
    pub(super) fn ask_state_along(
        &mut self,
        cx: &Context<'_>,
        batch: &RequestBatch,
        out: &mut Out,
    ) {
        let ends = batch.is_implicit() || batch.facts.ends && !batch.facts.goes_on;
        let is_plain = !batch.facts.copies_in && !batch.facts.is_unread && !batch.is_copying_in;
        if batch.is_complete && ends && is_plain && self.phase == Phase::Running {
            self.ask_state(cx, out);
        }
    }

    /// Asks if there is something to ask. Whether it is asked now.
    fn ask_state(&mut self, cx: &Context<'_>, out: &mut Out) -> bool {
        let wants = self.link.as_deref().is_some_and(|link| link.is_unasked);
        if !wants || self.state.is_some() || cx.lacks(Flaw::StateNotAsked) {
            return false;
        }
        let of_session = self.session_state.settings.names();
        let (custom, plain): (Vec<&str>, Vec<&str>) =
            of_session.partition(|name| name.contains('.'));
        let named = self.named_settings.iter().map(String::as_str);
        let in_catalog = cx.catalog.custom_settings.iter().map(AsRef::as_ref);
        let mut custom: Vec<&str> = custom.into_iter().chain(named).chain(in_catalog).collect();
        custom.sort_unstable();
        custom.dedup();
        let text = question(&plain, &custom);
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
        self.replies.push(SentMessage::Query, ReplyOwner::State);
        self.state = Some(Answer::default());
        true
    }

    /// The batch is answered. Whether its end is told later, when it is known what the session has.
    pub(super) fn holds_ready(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) -> bool {
        if self.phase != Phase::Running || self.batch.is_none() {
            return false;
        }
        let is_asked = self
            .replies
            .front()
            .is_some_and(|slot| slot.owner == ReplyOwner::State);
        let is_held = is_asked || status == b'I' && self.state.is_none() && self.ask_state(cx, out);
        if is_held {
            self.held_ready = Some(status);
        }
        is_held
    }

    /// A row of the answer.
    pub(super) fn hear_state(&mut self, row: &[u8]) {
        let mut columns = frame::columns(row);
        let mut text = || {
            let column = columns.next().flatten()?;
            Some(String::from_utf8_lossy(column).into_owned())
        };
        let (kind, name, value) = (text(), text(), text());
        let kind = kind.and_then(|kind| kind.bytes().next());
        if let (Some(answer), Some(kind)) = (&mut self.state, kind) {
            answer.rows.push((kind, name.unwrap_or_default(), value));
        }
    }

    /// It cannot be answered, or was cancelled: it is asked again.
    pub(super) fn state_failed(&mut self) {
        if let Some(answer) = &mut self.state {
            answer.has_failed = true;
        }
    }

    /// The answer is there.
    pub(super) fn state_ready(&mut self, cx: &Context<'_>, status: u8, out: &mut Out) {
        let answer = self.state.take().unwrap_or_default();
        let Some(held) = self.held_ready.take() else {
            // Something else is still to be answered of the batch.
            self.take_state_if(cx, answer, status, out);
            return;
        };
        self.finish_with(cx, held, Some((answer, status)), out);
    }

    fn finish_with(
        &mut self,
        cx: &Context<'_>,
        held: u8,
        answer: Option<(Answer, u8)>,
        out: &mut Out,
    ) {
        self.pending_state = answer;
        self.finish(cx, held, out);
    }

    /// The batch's own effects are noted: what the server says comes on top.
    pub(super) fn take_pending_state(&mut self, cx: &Context<'_>, out: &mut Out) {
        if let Some((answer, status)) = self.pending_state.take() {
            self.take_state_if(cx, answer, status, out);
        }
    }

    fn take_state_if(&mut self, cx: &Context<'_>, answer: Answer, status: u8, out: &mut Out) {
        if answer.has_failed || status != b'I' {
            return;
        }
        let Some(mut link) = self.link.take() else {
            return;
        };
        let is_read = answer.has_functions(&cx.catalog.own_functions);
        if !is_read {
            out.effects.push(Effect::LearnFunctions);
        }
        // It may have a setting that nobody knows the name of yet: it is asked again with whatever comes next.
        let is_unread = !is_read && link.has_run_own;
        link.is_unasked = is_unread;
        link.has_run_own = is_unread;
        let computed = cx
            .catalog
            .computes_settings
            .then_some(ServerAffinity::Unknown);
        let unread = is_unread.then_some(ServerAffinity::Unread);
        self.take_state(&answer, computed.or(unread), &mut link);
        self.link = Some(link);
    }

    fn take_state(&mut self, answer: &Answer, hidden: Option<ServerAffinity>, link: &mut Server) {
        let is_active = link.epoch().is_some();
        let (mut affinities, mut channels, mut prepared) = (Vec::new(), Vec::new(), Vec::new());
        for (kind, name, value) in &answer.rows {
            let name = name.to_ascii_lowercase();
            let has = self.session_state.settings.has(&name);
            let value = value.as_deref();
            match kind {
                b's' | b'c' | b'r' => {
                    let none = if *kind == b'r' { "none" } else { "" };
                    let is_set = value.is_some_and(|value| value != none) || *kind == b's';
                    let value = value.unwrap_or_default();
                    if is_set && self.session_state.settings.value(&name) != Some(value) {
                        self.session_state.settings.set(&name, value);
                        link.settings.set(&name, value);
                    } else if !is_set && has && self.session_state.settings.value(&name) != Some("")
                    {
                        self.session_state.settings.remove(&name);
                        link.settings.remove(&name);
                    }
                }
                b'x' => {
                    self.session_state.settings.remove(&name);
                    link.settings.remove(&name);
                }
                b'l' => affinities.push(ServerAffinity::Advisory),
                b't' => affinities.push(ServerAffinity::Temporary),
                b'h' => affinities.push(ServerAffinity::HeldCursor),
                _ => {}
            }
        }
        for (kind, name, value) in &answer.rows {
            match kind {
                b'n' => channels.push(name.as_str().into()),
                b'p' => {
                    prepared.push((name.as_str().into(), value.as_deref().unwrap_or("").into()))
                }
                _ => {}
            }
        }
        if is_active {
            self.session_state
                .has_on_server(&affinities, channels, prepared);
            if let Some(affinity) = hidden {
                self.session_state.bind(affinity);
            }
        } else if !affinities.is_empty() || !channels.is_empty() || !prepared.is_empty() {
            link.is_tainted = true;
        }
    }

    /// The server is lost before it has said what the session has.
    pub(super) fn lose_state(&mut self, cx: &Context<'_>, out: &mut Out) {
        self.state = None;
        self.pending_state = None;
        let is_active =
            |link: &Server| link.epoch().is_some() && link.is_unasked && link.has_run_own;
        let was_unasked = self.link.as_deref().is_some_and(is_active);
        if let Some(status) = self.held_ready.take() {
            // It was answered, but for its end.
            self.finish(cx, status, out);
        }
        let is_between = self.status == b'I' && self.batch.is_none();
        if was_unasked && is_between && !cx.lacks(Flaw::StateNotAsked) {
            self.session_state.bind(ServerAffinity::Unknown);
        }
    }

    /// Gives the connection in hand back for others, or closes it if it may have something that no reset takes away.
    pub(super) fn return_link(&mut self, out: &mut Out) {
        let Some(mut server) = self.link.take() else {
            return;
        };
        // Whoever gets it next may have something that it was never given.
        server.is_restored = false;
        if server.is_tainted || server.is_unasked {
            out.effects.push(Effect::Drop);
            return;
        }
        server.must_reset |= server.is_changed;
        server.is_changed = false;
        out.effects.push(Effect::Return(server));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_settings_are_found_in_a_text() {
        let text =
            b"DO $$ BEGIN PERFORM set_config('App.tenant', '7', false); SET my.x_1 = 3.5; END $$";
        assert_eq!(dotted_names(text), ["app.tenant", "my.x_1"]);
    }
}
