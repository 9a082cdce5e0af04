//! A transaction of a client's: what it has done, and how it commits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::frame::Refusal;
use proxy::driver::socket::Socket;
use tokio::sync::mpsc;

use super::super::hub::Event;
use super::super::member::commit;
use super::super::wire::{Wire, WireError};
use super::circle::found_in_circle;
use super::{Done, End, Result, Session, gone};
use crate::core::class::Claims;
use crate::core::locks::Tx;
use crate::core::record::{Draft, Number, Statement, Token};
use crate::sql;

/// What a transaction has done so far.
pub struct Transaction {
    pub tx: Tx,
    pub token: Token,
    pub events: mpsc::UnboundedReceiver<Event>,
    pub claims: Claims,
    pub statements: Vec<Statement>,
    pub sequences: Vec<(String, i64)>,
    pub bytes: usize,
    /// Savepoints, and how many statements there were.
    pub marks: Vec<(String, usize)>,
    /// The statements say what the session's settings are.
    pub has_settings: bool,
    /// The catalog is to be read again after it.
    pub changes_catalog: bool,
    /// The manager has begun it, for one statement or one batch.
    pub is_own: bool,
    /// When it began, if that was asked.
    pub time: Option<String>,
}

impl Transaction {
    /// Notes a statement that the member has executed.
    pub fn note(&mut self, statement: Statement) {
        let parameters: usize = statement
            .parameters
            .iter()
            .filter_map(|one| one.value.as_ref())
            .map(Vec::len)
            .sum();
        self.bytes +=
            statement.text.len() + parameters + statement.copied.as_ref().map_or(0, Vec::len);
        self.statements.push(statement);
    }

    /// The role that its client has logged in as, if it has written something.
    pub fn login(&self) -> Option<String> {
        Draft::login_of(&self.statements)
    }

    /// It has a savepoint.
    pub fn mark(&mut self, name: &str) {
        self.marks.push((name.to_owned(), self.statements.len()));
    }

    /// It goes back to a savepoint.
    pub fn back_to(&mut self, name: &str) {
        if let Some(at) = self.marks.iter().rposition(|(mark, _)| mark == name) {
            let count = self.marks[at].1;
            self.statements.truncate(count);
            self.marks.truncate(at + 1);
            self.has_settings = false;
        }
    }

    /// A savepoint is gone.
    pub fn release(&mut self, name: &str) {
        if let Some(at) = self.marks.iter().rposition(|(mark, _)| mark == name) {
            self.marks.truncate(at);
        }
    }

    /// The refusal of what is longer than the log may have.
    pub fn beyond(&self, most_bytes: usize) -> Option<Refusal> {
        (self.bytes > most_bytes).then(|| too_long(most_bytes))
    }

    fn has_something(&self) -> bool {
        self.statements
            .iter()
            .any(|one| !one.is_settings() && !sql::is_constraints(&one.text))
            || !self.sequences.is_empty()
    }
}

/// The refusal of what is longer than the log may have.
pub fn too_long(most_bytes: usize) -> Refusal {
    Refusal::error("54000", "the transaction is too long for the mirror's log")
        .detail(format!("It has more than {most_bytes} bytes."))
        .hint("Use several transactions, or raise transaction_bytes.")
}

impl Session {
    /// The transaction that is open; one begins if none is.
    pub(super) fn transaction(&mut self) -> Result<&mut Transaction> {
        if self.transaction.is_none() {
            let life = self.life;
            let token = self
                .hub
                .act(|manager, _| match manager.life() == life {
                    true => manager.token(),
                    false => None,
                })
                .ok_or_else(super::not_primary)?;
            let (tx, events) = self.hub.enter(self.process(), Some(token));
            self.last_token = Some(token.to_string());
            self.transaction = Some(Transaction {
                tx,
                token,
                events,
                claims: Claims::default(),
                statements: Vec::new(),
                sequences: Vec::new(),
                bytes: 0,
                marks: Vec::new(),
                has_settings: false,
                changes_catalog: false,
                is_own: false,
                time: None,
            });
        }
        Ok(self.transaction.as_mut().expect("one was just made"))
    }

    /// The next thing that the transaction is told.
    async fn event(&mut self) -> Result<Option<Event>> {
        let Some(transaction) = &mut self.transaction else {
            return Ok(None);
        };
        tokio::select! {
            event = transaction.events.recv() => Ok(event),
            gone = gone(&mut self.serving) => Err(gone),
        }
    }

    /// Claims what a statement conflicts on.
    pub(super) async fn lock(&mut self, claims: &Claims) -> Result<Option<Refusal>> {
        if claims.is_empty() {
            return Ok(None);
        }
        let transaction = self.transaction()?;
        transaction.claims.extend(claims);
        let (tx, epoch) = (transaction.tx, transaction.token.epoch);
        let is_of_now = self.hub.act(|manager, out| {
            let is_of_now = manager.epoch() == Some(epoch);
            if is_of_now {
                manager.lock(tx, claims, out);
            }
            is_of_now
        });
        if !is_of_now {
            // What it has locked so far, it has not any more.
            return Err(super::not_primary());
        }
        Ok(match self.wait_for_lock(tx).await? {
            Some(Event::Granted) => None,
            Some(Event::Cancelled) => Some(Refusal::error(
                "57014",
                "canceling statement due to user request",
            )),
            Some(Event::Deadlock | Event::Circle) => Some(
                Refusal::error("40P01", "deadlock detected")
                    .detail("The transaction waits, in the mirror, for one that waits for it there or at the member.")
                    .hint("Run the transaction again."),
            ),
            _ => Some(
                Refusal::error("55P03", "canceling statement due to lock timeout")
                    .detail("Another transaction of the mirror has what this one needs, for longer than lock_timeout.")
                    .hint("Run the transaction again."),
            ),
        })
    }

    /// What becomes of what the transaction has asked for; nothing if that takes too long.
    async fn wait_for_lock(&mut self, tx: Tx) -> Result<Option<Event>> {
        let told = self.transaction.as_mut();
        if let Some(Ok(event)) = told.map(|transaction| transaction.events.try_recv()) {
            // Most locks are free.
            return Ok(Some(event));
        }
        *self.cancel.waits.lock() = Some(tx);
        let patience = self.hub.config.lock_timeout;
        let waited = self.event_or_end(patience).await;
        *self.cancel.waits.lock() = None;
        match waited? {
            Some(event @ (Event::Granted | Event::Deadlock)) => {
                // Whoever wanted to cancel it was late.
                self.forget_events();
                Ok(Some(event))
            }
            given_up => {
                // What is given from here on would be taken for something else that it asks for.
                self.hub.act(|manager, out| manager.stop_waiting(tx, out));
                let last = self.forget_events();
                Ok(given_up.or(last))
            }
        }
    }

    /// Takes what the transaction was told and does not wait for; what became of a lock at the last moment.
    fn forget_events(&mut self) -> Option<Event> {
        let events = &mut self.transaction.as_mut()?.events;
        let told = std::iter::from_fn(|| events.try_recv().ok());
        told.filter(|event| matches!(event, Event::Granted | Event::Deadlock))
            .last()
    }

    /// The next thing that the transaction is told, unless its client goes away first.
    async fn event_or_end(&mut self, patience: Duration) -> Result<Option<Event>> {
        let deadline = tokio::time::Instant::now() + patience;
        let tx = self.transaction.as_ref().map(|transaction| transaction.tx);
        let in_circle = found_in_circle(self.hub.clone(), tx);
        tokio::pin!(in_circle);
        loop {
            let Some(transaction) = &mut self.transaction else {
                return Ok(None);
            };
            // What the client sends in advance is kept, but not without limit.
            let may_read = self.client.input.len() < super::PENDING_BYTES;
            tokio::select! {
                event = transaction.events.recv() => return Ok(event),
                gone = gone(&mut self.serving) => return Err(gone),
                read = self.client.read(), if may_read => read.map_err(|_| End::Terminated)?,
                () = &mut in_circle => return Ok(Some(Event::Circle)),
                () = tokio::time::sleep_until(deadline) => return Ok(None),
            }
        }
    }

    /// The transaction is over without anything in the log. Whoever waits for a lock has it given up.
    pub(super) fn end_transaction(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.hub.leave(transaction.tx);
        }
        if std::mem::take(&mut self.sets_within) {
            // What it has set may be undone now.
            self.forget_settings();
        }
        self.own_facts = None;
        self.names.has_snapshot = false;
        // Something temporary may have been there until now only.
        self.knows_names &= self.names.temporary.is_empty();
    }

    /// Rolls back.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        if self.forget_begin() {
            self.status = b'I';
        } else if self.status != b'I' {
            self.ask("ROLLBACK").await?;
        }
        self.forget_settings();
        self.keeps.end(false);
        self.end_transaction();
        Ok(())
    }

    /// Commits. What the client is told of it is not written here, unless it fails.
    pub(super) async fn commit(&mut self) -> Result<Done> {
        let has_something = self
            .transaction
            .as_ref()
            .is_some_and(Transaction::has_something);
        if !has_something && self.forget_begin() {
            self.status = b'I';
            self.keeps.end(true);
            self.end_transaction();
            return Ok(Done::Well);
        }
        if self.status == b'E' || !has_something {
            return self.end_on_member().await;
        }
        if self.facts().has_deferrable {
            let reply = self.ask("SET CONSTRAINTS ALL IMMEDIATE").await?;
            if let Some(said) = reply.error {
                self.tell(&said);
                self.roll_back().await?;
                return Ok(Done::Failed);
            }
        }
        let Some(transaction) = &mut self.transaction else {
            return Ok(Done::Well);
        };
        let draft = Draft {
            token: transaction.token,
            claims: transaction.claims.clone(),
            statements: std::mem::take(&mut transaction.statements),
            sequences: std::mem::take(&mut transaction.sequences),
        };
        let (tx, token, changes_catalog) = (
            transaction.tx,
            transaction.token,
            transaction.changes_catalog,
        );
        self.cancel.is_committing.store(true, Ordering::Release);
        let committed = self.commit_draft(tx, token, draft, changes_catalog).await;
        self.cancel.is_committing.store(false, Ordering::Release);
        let lost = committed.map_err(|end| in_doubt(end, token))?;
        self.keeps.end(true);
        self.end_transaction();
        if let Some(error) = lost {
            // It has committed, by another session than the client's, and the client is told nothing else. Before its next
            // statement the client's gets a new one of the member, or ends if that cannot have what it had.
            tracing::debug!(%error, "a session has committed and lost the member's");
            self.server = Wire::new(Socket::Gone);
            self.status = b'I';
        }
        Ok(Done::Well)
    }

    /// Has the member end a transaction of which the log has nothing.
    async fn end_on_member(&mut self) -> Result<Done> {
        let (was_failed, is_own) = (self.status == b'E', self.is_own());
        let reply = self.ask("COMMIT").await?;
        self.keeps.end(!was_failed && reply.error.is_none());
        self.end_transaction();
        if was_failed || reply.error.is_some() {
            // It was rolled back: temporary tables that it dropped are there again.
            self.forget_settings();
        }
        if let Some(said) = reply.error {
            self.tell(&said);
            return Ok(Done::Failed);
        }
        if was_failed && is_own {
            // Nobody has told the client: its statement went well, and something that the manager asked after it did not.
            let text = "the statement was rolled back, because the manager could not find out what it has changed";
            let refusal = Refusal::error("25P02", text);
            refusal
                .hint("Try again; the member's log says what failed.")
                .put(&mut self.client.output);
            return Ok(Done::Failed);
        }
        if !was_failed {
            // What was read, as by `SELECT ... FOR UPDATE`, is told now.
            self.check_lease()?;
        }
        Ok(Done::Well)
    }

    /// The log, the member, the standby. The error is that of the member's session, if that was lost on the way.
    async fn commit_draft(
        &mut self,
        tx: Tx,
        token: Token,
        draft: Draft,
        changes_catalog: bool,
    ) -> Result<Option<std::io::Error>> {
        let is_of_now = self.hub.act(|manager, out| {
            let is_of_now = manager.epoch() == Some(token.epoch);
            if is_of_now {
                manager.commit(tx, draft, out);
            }
            is_of_now
        });
        if !is_of_now {
            return Err(super::not_primary());
        }
        let number = loop {
            match self.event().await? {
                Some(Event::Commit(number)) => break number,
                Some(_) => {}
                None => return Err(super::not_primary()),
            }
        };
        let lost = match self.commit_on_member(number, token).await {
            Ok(()) => {
                if changes_catalog {
                    // Nobody else plans with what is not right any more: its locks are still held. Whatever comes of it, the manager
                    // is told below that the member has the transaction, or it would wait for that from then on.
                    self.hub.follow_definitions(token.epoch).await;
                }
                let life = self.life;
                self.hub
                    .act(|manager, out| manager.committed(life, number, out));
                None
            }
            Err(error) => {
                tracing::warn!(%error, %number, "a transaction of the log is executed again, because its session was lost");
                self.hub
                    .act(|manager, out| manager.commit_failed(number, out));
                Some(std::io::Error::other(error))
            }
        };
        loop {
            match self.event().await? {
                Some(Event::Answer(_)) => return Ok(lost),
                Some(_) => {}
                None => return Err(super::not_primary()),
            }
        }
    }

    async fn commit_on_member(
        &mut self,
        number: Number,
        token: Token,
    ) -> std::result::Result<(), WireError> {
        let reply = commit(&mut self.server, number, token).await?;
        self.status = reply.status;
        reply.checked()?;
        Ok(())
    }
}

/// Nobody here knows what became of a commit that was under way: whoever is primary does.
fn in_doubt(end: End, token: Token) -> End {
    match end {
        End::Terminated => End::Terminated,
        // Never at a commit: only between transactions.
        End::Leaves => End::Leaves,
        _ => End::Told(Box::new(
            Refusal::fatal(
                "08007",
                "the manager is not primary any more while a commit is under way",
            )
            .detail(format!(
                "The transaction may have committed; it is {token}."
            ))
            .hint(format!(
                "Ask the new primary: SELECT understudy_mirror.committed('{token}')."
            )),
        )),
    }
}
