//! Passing on what the client and the member say.
//!
//! PostgreSQL itself lets a COMMIT wait until the log has it, so nothing is noted here but what the session has when it goes on
//! elsewhere. At the only member nothing waits, and what a mirror would refuse is refused.
//!
//! Invariant: what is read is passed on only while the epoch stands, and a session moves only with nothing under way. Where an answer
//! was not told, the client is told that its transaction may have committed.

use std::sync::atomic::Ordering;

use bytes::BytesMut;
use postgres_protocol::escape::escape_literal;
use postgres_protocol::message::frontend;
use protocol::frame::{self, Refusal, error_fields};
use proxy::core::sql::{Effect, Kind};

use super::super::rows;
use super::super::wire::{ServerError, WireError, status};
use super::bound::read_parse;
use super::{End, PENDING_BYTES, Result, Session, gone};
use crate::core::cancelled::hides_warnings;
use crate::rows::shared;

/// A text that says a refusal in place of another one: it fails where that would, and the session goes on.
fn raised(refusal: &Refusal) -> String {
    let of = |text: &str| escape_literal(text).trim_start().to_owned();
    let call = format!(
        "BEGIN RAISE EXCEPTION USING ERRCODE = {}, MESSAGE = {}, HINT = {}; END",
        of(refusal.code),
        of(&refusal.message),
        of(refusal.hint.as_deref().unwrap_or_default())
    );
    format!("DO {}", escape_literal(&call))
}

/// The name of the transaction that is open.
const TOKEN: &str = "SELECT understudy_mirror.transaction() AS \"understudy.transaction\"";
/// The same where transactions have no names.
const NO_TOKEN: &str = "SELECT NULL::pg_catalog.text AS \"understudy.transaction\"";

/// True if a text asks for the name of a transaction.
fn is_show_token(text: &str) -> bool {
    text.trim()
        .trim_end_matches(';')
        .eq_ignore_ascii_case("show understudy.transaction")
}

/// The function of PostgreSQL's that lets a commit wait, and says so if it does not.
const WAITS: &[u8] = b"SyncRepWaitForLSN";

/// True if a transaction of the client's may have committed before the member has said this.
fn ends_transaction(message: &[u8]) -> bool {
    match message[0] {
        b'Z' => status(message) == b'I',
        _ => ["COMMIT", "CALL", "DO"]
            .iter()
            .any(|tag| frame::body(message).starts_with(tag.as_bytes())),
    }
}

impl Session {
    /// Passes on what comes next, of either side.
    pub(super) async fn step_directly(&mut self) -> Result<()> {
        let is_between = self.is_between();
        if is_between {
            self.inside = None;
        }
        self.client.flush().await?;
        if self.server.is_gone() {
            return Err(End::Leaves);
        }
        self.server
            .flush()
            .await
            .map_err(|error| self.unanswered(End::Lost(error)))?;
        tokio::select! {
            message = self.client.receive() => {
                let message = message.map_err(|_| End::Terminated)?;
                if is_between && !self.begin().await {
                    self.client.put_back(&message);
                    return Err(End::Leaves);
                }
                self.pass_to_member(message)
            }
            message = self.server.receive() => match message {
                // It says why it ends a session with nothing under way, if it ends that itself.
                Ok(message) => match self.pass_to_client(message).await {
                    Err(End::Lost(error)) if is_between => self.lose_server(error).await,
                    passed => passed,
                },
                Err(error) if is_between => self.lose_server(error).await,
                Err(error) => Err(self.unanswered(End::Lost(error))),
            },
            gone = gone(&mut self.serving) => {
                Err(if is_between { End::Leaves } else { self.unanswered(gone) })
            }
        }
    }

    /// Passes on what the client says.
    fn pass_to_member(&mut self, first: BytesMut) -> Result<()> {
        let mut next = Some(first);
        while let Some(message) = next {
            self.hub.counters.statements.fetch_add(1, Ordering::Relaxed);
            self.say(&message)?;
            next = match self.server.output.len() < PENDING_BYTES {
                true => self.client.take().map_err(|_| End::Terminated)?,
                false => None,
            };
        }
        Ok(())
    }

    fn say(&mut self, message: &[u8]) -> Result<()> {
        let body = frame::body(message);
        let mut own = BytesMut::new();
        match message[0] {
            b'X' => return Err(End::Terminated),
            b'Q' => {
                let text = frame::name(body).map(|(text, _)| text);
                let carried = match text {
                    Some(text) => self.carried(text),
                    None => self.unread("a text that is not UTF-8"),
                };
                if let Some(carried) = carried {
                    frontend::query(&carried, &mut own)?;
                }
                let text = text.unwrap_or_default();
                self.prepared.end();
                self.direct.sent.push_back(vec![text.to_owned()]);
            }
            // Large objects are written this way, and other functions could be called that write.
            b'F' => {
                if let Some(carried) = self.unread("functions that are called without a statement")
                {
                    frontend::query(&carried, &mut own)?;
                }
                self.prepared.end();
                self.direct.sent.push_back(Vec::new());
            }
            // PostgreSQL takes it for nothing while it copies.
            b'S' if self.direct.watched.is_copying() => {}
            b'S' => {
                let batch = std::mem::take(&mut self.direct.batch);
                self.prepared.end();
                self.direct.sent.push_back(batch);
            }
            b'P' => {
                if let Some((name, mut prepared)) = read_parse(body) {
                    if let Some(carried) = self.carried(&prepared.text) {
                        frontend::parse(name, &carried, prepared.types.iter().copied(), &mut own)?;
                        prepared.text = carried;
                    }
                    self.prepared.parse(name, prepared);
                } else if let Some(carried) = self.unread("a text that is not UTF-8") {
                    let name = frame::name(body).map_or("", |(name, _)| name);
                    frontend::parse(name, &carried, [], &mut own)?;
                }
            }
            b'C' => self.prepared.close(body),
            b'B' => {
                if let Some((portal, rest)) = frame::name(body)
                    && let Some((statement, _)) = frame::name(rest)
                    && let Some(prepared) = self.prepared.statement(statement)
                {
                    let text = prepared.text.clone();
                    self.direct.portals.insert(portal.to_owned(), text);
                }
            }
            b'E' => {
                let text =
                    frame::name(body).and_then(|(portal, _)| self.direct.portals.get(portal));
                self.direct.batch.extend(text.cloned());
            }
            _ => {}
        }
        self.direct.watched.client_says(message[0]);
        let message = if own.is_empty() { message } else { &own };
        self.server.output.extend_from_slice(message);
        Ok(())
    }

    /// A text that fails, in place of what the manager cannot read; nothing at the only member, where nothing is missed by that.
    fn unread(&self, what: &str) -> Option<String> {
        if self.hub.config.single {
            return None;
        }
        let refusal = Refusal::error("0A000", format!("the mirror does not carry {what}"));
        Some(self.refused(&refusal.hint(
            "Use the client encoding UTF8, statements in place of calls, and bytea in place of large objects.",
        )))
    }

    /// A text that fails as the refusal says, which is counted.
    fn refused(&self, refusal: &Refusal) -> String {
        self.hub.counters.refused.fetch_add(1, Ordering::Relaxed);
        raised(refusal)
    }

    /// A text as the member is to execute it; nothing if that is the text itself.
    fn carried(&mut self, text: &str) -> Option<String> {
        self.hides_warnings |= hides_warnings(text);
        let is_single = self.hub.config.single;
        if is_show_token(text) {
            return Some(if is_single { NO_TOKEN } else { TOKEN }.to_owned());
        }
        match self.checked(text) {
            // The only member has nothing that notes it.
            Ok(carried) => carried.filter(|_| !is_single),
            Err(refusal) => Some(self.refused(&refusal)),
        }
    }

    /// The same, or a refusal: a transaction that somebody else is to end is not in the log before that.
    fn checked(&self, text: &str) -> std::result::Result<Option<String>, Box<Refusal>> {
        let known = self.hub.texts.look(text.as_bytes());
        let prepares = |kind: &Kind| matches!(kind, Kind::PrepareTransaction);
        if known.parts.iter().any(|part| prepares(&part.kind)) {
            let refusal = Refusal::error("0A000", "PREPARE TRANSACTION cannot be mirrored");
            return Err(Box::new(refusal.hint("Commit the transaction itself.")));
        }
        shared::carried(text, &self.hub.member.target.database)
    }

    /// Passes on what the member says.
    async fn pass_to_client(&mut self, first: BytesMut) -> Result<()> {
        let mut next = Some(first);
        while let Some(message) = next {
            self.hear(&message).await?;
            self.client.output.extend_from_slice(&message);
            next = match self.client.output.len() < PENDING_BYTES {
                true => self.server.take()?,
                false => None,
            };
        }
        Ok(())
    }

    async fn hear(&mut self, message: &[u8]) -> Result<()> {
        if self.is_between() && message[0] == b'E' {
            return Err(
                WireError::Server(Box::new(ServerError::read(BytesMut::from(message)))).into(),
            );
        }
        // What it has read, or that there was nothing to read.
        if matches!(message[0], b'D' | b'C' | b'Z') {
            self.check_lease()
                .await
                .map_err(|end| self.unanswered(end))?;
        }
        match message[0] {
            // The server's warning may not be among the messages that the client wants.
            b'C' | b'Z'
                if (self.hides_warnings || self.cancel.requests.lock().is_possible())
                    && !self.hub.config.single
                    && ends_transaction(message) =>
            {
                self.wait_for_log().await?;
            }
            b'E' => {
                self.direct.has_failed = true;
                self.prepared.fail();
            }
            b'1' | b'3' => self.prepared.answered(),
            b'N' if error_fields(message).routine == WAITS && !self.hub.config.single => {
                self.wait_for_log().await?
            }
            b'G' if self.direct.watched.is_extended() => {
                // PostgreSQL takes the ends of batches that come while it copies for nothing.
                let sent = std::mem::take(&mut self.direct.sent);
                self.direct.batch = sent.into_iter().flatten().collect();
                self.prepared.join();
            }
            _ => {}
        }
        self.direct.watched.server_says(message);
        if message[0] == b'Z' {
            self.prepared.ended();
            let was_failed = self.status == b'E';
            self.status = status(message);
            let texts = self.direct.sent.pop_front().unwrap_or_default();
            if !std::mem::take(&mut self.direct.has_failed) {
                texts
                    .iter()
                    .for_each(|text| self.note_text(text, was_failed));
            }
            if self.is_between() {
                self.cancel.requests.lock().answered();
            }
            if self.status == b'I' {
                self.direct.portals.clear();
                self.keeps.end(true);
            }
        }
        Ok(())
    }

    /// Notes what a text has left with the session.
    pub(super) fn note_text(&mut self, text: &str, was_failed: bool) {
        let known = self.hub.texts.look(text.as_bytes());
        for part in &known.parts {
            match &part.kind {
                Kind::Savepoint(name) => self.keeps.savepoint(name),
                Kind::RollbackTo(name) => self.keeps.rollback_to(name),
                Kind::Release(name) => self.keeps.release(name),
                Kind::Rollback { .. } => self.keeps.end(false),
                Kind::Commit { .. } => self.keeps.end(!was_failed),
                _ => {}
            }
            for effect in &part.effects {
                match effect {
                    Effect::Deallocate(name) => self.prepared.forget(name.as_deref()),
                    Effect::DiscardAll => self.prepared.forget(None),
                    _ => {}
                }
                self.keeps.note(effect);
            }
        }
    }

    /// A commit has not waited, because it was cancelled: what is told of it waits here.
    async fn wait_for_log(&mut self) -> Result<()> {
        let hub = self.hub.clone();
        let waited = async {
            let end = rows::end_now(&hub.member).await?;
            hub.capture.reaches(end).await;
            Ok::<(), WireError>(())
        };
        tokio::select! {
            waited = waited => waited.map_err(|error| self.unanswered(error.into())),
            gone = gone(&mut self.serving) => Err(self.unanswered(gone)),
        }
    }

    /// Why a session ends with something under way: whatever it has been told of that.
    fn unanswered(&self, end: End) -> End {
        if self.direct.watched.is_answered() {
            return end;
        }
        let refusal = Refusal::fatal(
            "08007",
            "the member, or this manager's epoch, was lost before the answer came",
        )
        .detail("A transaction whose commit was under way may have committed.")
        .hint(
            "Connect again, and look whether it has; name both managers in the connection string.",
        );
        match end {
            End::Lost(_) | End::Told(_) | End::Server(_) => End::Told(Box::new(refusal)),
            end @ (End::Leaves | End::Terminated) => end,
        }
    }
}
