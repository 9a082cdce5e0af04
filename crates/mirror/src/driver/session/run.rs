//! Executing one statement, as it was planned.

use std::sync::atomic::Ordering;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use postgres_protocol::password::scram_sha_256;
use protocol::frame::{self, Refusal};
use proxy::core::settings::quote_literal;

use super::super::member::{digest, digest_of_tag, put_extended, split_last};
use super::super::wire::{Said, Wire, fields, reply_within, status};
use super::keys::{Value, claims};
use super::own_types::holds_own_type;
use super::rows::take_rows;
use super::transaction::too_long;
use super::{Done, PENDING_BYTES, Result, Session};
use crate::core::record::{Parameter, Statement};
use crate::sql::{self, Plan, Step, Write};

/// How a statement is sent.
#[derive(Debug, Clone, Copy)]
pub enum Form<'a> {
    /// By the simple protocol.
    Simple,
    /// With parameters, and the formats of what it returns.
    Extended(&'a [Parameter], &'a [i16]),
    /// The same, by what waits of the client's own messages and this last one, its `Execute`.
    Own(&'a [Parameter], &'a [i16], &'a [u8]),
}

impl<'a> Form<'a> {
    pub fn parameters(self) -> &'a [Parameter] {
        match self {
            Form::Simple => &[],
            Form::Extended(parameters, _) | Form::Own(parameters, _, _) => parameters,
        }
    }

    pub fn result_formats(self) -> &'a [i16] {
        match self {
            Form::Simple => &[],
            Form::Extended(_, formats) | Form::Own(_, formats, _) => formats,
        }
    }
}

/// What a statement's answer became.
pub enum Ran {
    Well,
    Failed(Box<Said>),
    /// What came before it has failed, and the client was told.
    Told,
    Refused(Refusal),
    /// The catalog was changed while it waited for its locks: it must be planned again.
    Outdated,
}

impl Session {
    /// Executes one statement. The client is told what it answers, but not that it may go on.
    pub(super) async fn run(&mut self, source: &str, plan: &Plan, form: Form<'_>) -> Result<Done> {
        if self.status == b'E' && !matches!(plan, Plan::Step(_)) {
            // The member says what there is to say.
            return self.run_alone(source, form).await;
        }
        match plan {
            Plan::Alone { sets, creates } => {
                self.settle_asked(source, form.parameters()).await?;
                let done = self.run_alone(source, form).await?;
                if let Done::Well = done {
                    self.note_effects(source, *sets);
                }
                if *sets {
                    self.forget_settings();
                    self.sets_within |= self.status != b'I';
                    if let Some(transaction) = &mut self.transaction {
                        transaction.has_settings = false;
                    }
                }
                // Whatever has become of it.
                self.knows_names &= !creates;
                Ok(done)
            }
            Plan::Step(step) => self.step_of_transaction(source, step, form).await,
            Plan::Write(write) => {
                let done = self.write(source, write, form).await?;
                if let Done::Well = done {
                    self.note_effects(source, false);
                }
                Ok(done)
            }
            Plan::Unknown(name) => {
                let text = format!("relation \"{name}\" does not exist");
                self.refuse(&Refusal::error("42P01", text)).await
            }
            Plan::Refused(refusal) => self.refuse(refusal).await,
        }
    }

    async fn step_of_transaction(
        &mut self,
        source: &str,
        step: &Step,
        form: Form<'_>,
    ) -> Result<Done> {
        match step {
            Step::Commit => {
                let was_failed = self.status == b'E';
                let done = self.commit().await?;
                if let Done::Well = done {
                    let tag = if was_failed { "ROLLBACK" } else { "COMMIT" };
                    frame::put_complete(&mut self.client.output, tag);
                }
                return Ok(done);
            }
            // The client's own messages may prepare it as well.
            Step::Rollback if self.begins && !matches!(form, Form::Own(..)) => {
                self.roll_back().await?;
                frame::put_complete(&mut self.client.output, "ROLLBACK");
                return Ok(Done::Well);
            }
            Step::Begin { is_plain: true, .. }
                if self.status == b'I' && !matches!(form, Form::Own(..)) =>
            {
                self.begins = true;
                self.status = b'T';
                self.names.has_snapshot = false;
                frame::put_complete(&mut self.client.output, "BEGIN");
                return Ok(Done::Well);
            }
            Step::Rollback => {
                let done = self.run_alone(source, form).await?;
                self.forget_settings();
                self.keeps.end(false);
                self.end_transaction();
                return Ok(done);
            }
            _ => {}
        }
        let done = self.run_alone(source, form).await?;
        if let (Step::Begin { has_snapshot, .. }, Done::Well) = (step, &done) {
            self.names.has_snapshot = *has_snapshot;
        }
        if let Done::Well = done {
            match step {
                Step::Savepoint(name) => self.keeps.savepoint(name),
                Step::RollbackTo(name) => self.keeps.rollback_to(name),
                _ => {}
            }
        }
        if let (Some(transaction), Done::Well) = (&mut self.transaction, &done) {
            match step {
                Step::Savepoint(name) => transaction.mark(name),
                Step::RollbackTo(name) => transaction.back_to(name),
                Step::Release(name) => transaction.release(name),
                _ => {}
            }
        } else if let Step::Savepoint(name) = step
            && matches!(done, Done::Well)
        {
            self.transaction()?.mark(name);
        }
        if let Step::RollbackTo(_) = step {
            self.forget_settings();
            let changes_catalog = self
                .transaction
                .as_ref()
                .is_some_and(|one| one.changes_catalog);
            if changes_catalog && matches!(done, Done::Well) {
                // What was changed since the savepoint is not.
                self.reread_facts().await?;
            }
        }
        Ok(done)
    }

    /// Has the member execute a statement as it is, and passes on what it answers.
    pub(super) async fn run_alone(&mut self, source: &str, form: Form<'_>) -> Result<Done> {
        if let Form::Simple = form
            && let Some(said) = self.begin_alone().await?
        {
            self.tell(&said);
            return Ok(Done::Failed);
        }
        self.send(source, form)?;
        self.server.flush().await?;
        self.pass_answer(form).await
    }

    /// Passes on an answer as it comes, up to its end; of a statement that the manager has put into the extended protocol,
    /// what the client has not asked for is left out.
    pub(super) async fn pass_answer(&mut self, form: Form<'_>) -> Result<Done> {
        let mut done = Done::Well;
        loop {
            let message = self.server.receive().await?;
            match message[0] {
                b'Z' => {
                    self.status = status(&message);
                    self.check_lease()?;
                    return Ok(done);
                }
                b'1' | b'2' | b'3' if matches!(form, Form::Extended(..)) => continue,
                b'1' | b'3' => self.prepared.answered(message[0]),
                b'E' => {
                    self.prepared.fail();
                    done = Done::Failed;
                }
                b'G' => {
                    self.client.output.extend_from_slice(&message);
                    self.copy_in(None, |_| false, form).await?;
                    continue;
                }
                _ => {}
            }
            self.client.output.extend_from_slice(&message);
            if self.client.output.len() >= PENDING_BYTES {
                self.client.flush().await?;
            }
        }
    }

    pub(super) fn send(&mut self, text: &str, form: Form<'_>) -> Result<()> {
        match form {
            Form::Simple => frontend::query(text, &mut self.server.output)?,
            Form::Extended(parameters, formats) => {
                self.put_begin()?;
                put_extended(&mut self.server.output, text, parameters, formats)?
            }
            Form::Own(_, _, execute) => {
                self.put_own(execute)?;
                self.server.sync();
            }
        }
        Ok(())
    }

    /// How much longer the transaction may become.
    pub(super) fn room(&mut self) -> Result<usize> {
        let most = self.hub.config.transaction_bytes;
        Ok(most.saturating_sub(self.transaction()?.bytes))
    }

    /// Executes a statement that is mirrored.
    async fn write(&mut self, source: &str, write: &Write, form: Form<'_>) -> Result<Done> {
        let begins = self.status == b'I';
        if begins {
            self.begins = true;
            self.status = b'T';
        }
        self.transaction()?.is_own |= begins;
        let mut ran = self.run_write(source, write, form).await?;
        while let Ran::Outdated = ran {
            let ships = write.ship.is_some();
            let plans = self.plan(source, ships).await?;
            ran = match plans.first() {
                Some((_, Plan::Write(write))) => self.run_write(source, write, form).await?,
                Some((_, Plan::Refused(refusal))) => Ran::Refused((**refusal).clone()),
                _ => return self.run_alone(source, form).await,
            };
        }
        match ran {
            Ran::Outdated | Ran::Well => Ok(Done::Well),
            Ran::Failed(said) => {
                self.tell(&said);
                Ok(Done::Failed)
            }
            Ran::Refused(refusal) => self.refuse(&refusal).await,
            Ran::Told => Ok(Done::Failed),
        }
    }

    async fn run_write(&mut self, source: &str, write: &Write, form: Form<'_>) -> Result<Ran> {
        let mut form = form;
        let as_it_is = match form {
            Form::Own(_, _, execute) if write.runs_as_it_is(source, &self.names) => Some(execute),
            Form::Own(parameters, formats, _) => {
                if let Done::Failed = self.pass_pending(true).await? {
                    return Ok(Ran::Told);
                }
                form = Form::Extended(parameters, formats);
                None
            }
            Form::Simple => match self.begin_alone().await? {
                Some(said) => return Ok(Ran::Failed(said)),
                None => None,
            },
            Form::Extended(..) => None,
        };
        let known = self.facts();
        // What is not logged does not depend on them there.
        if write.is_logged
            && let Some(ran) = self.note_settings().await?
        {
            return Ok(ran);
        }
        let needs = match as_it_is {
            Some(_) => &[],
            None => write.needs.as_slice(),
        };
        let values = match self.evaluate(needs).await? {
            Ok(values) => values,
            Err(said) => return Ok(Ran::Failed(said)),
        };
        let claims = claims(write, form.parameters(), &values);
        if let Some(refusal) = self.lock(&claims).await? {
            return Ok(Ran::Refused(refusal));
        }
        if !std::sync::Arc::ptr_eq(&known, &self.facts()) {
            return Ok(Ran::Outdated);
        }
        if let Some(execute) = as_it_is {
            return self.run_as_it_is(write, form, execute).await;
        }
        let mut literals: Vec<String> = values
            .iter()
            .map(|(value, of)| sql::substitute(value.as_deref(), of))
            .collect();
        let kept = write.password.as_ref();
        literals.extend(kept.map(|password| quote_literal(&scram_sha_256(password.as_bytes()))));
        let text = write.template.fill(&literals);
        if write.is_copy {
            return self.run_copy(write, &text, form).await;
        }
        match form {
            Form::Simple | Form::Own(..) => self.send(&text, form)?,
            Form::Extended(parameters, formats) => {
                self.put_begin()?;
                let Wire {
                    statements, output, ..
                } = &mut self.server;
                let mut formats = formats.to_vec();
                if let Some(ship) = &write.ship
                    && formats.len() > 1
                {
                    // One for each column, and these are texts.
                    formats.resize(formats.len() + ship.width(), 0);
                }
                statements.put_open(output, &text, parameters, &formats)?;
                self.put_sequences(&write.sequences)?;
                self.server.sync();
            }
        }
        self.server.flush().await?;
        let room = match write.ship {
            Some(_) => self.room()?,
            None => usize::MAX,
        };
        let (mut reply, is_beyond) = reply_within(&mut self.server, room).await?;
        self.status = reply.status;
        if let Some(said) = reply.error {
            self.server.statements.failed();
            return Ok(Ran::Failed(said));
        }
        self.server.statements.seen();
        if is_beyond {
            return Ok(Ran::Refused(too_long(self.hub.config.transaction_bytes)));
        }
        if matches!(form, Form::Extended(..)) {
            let asked = usize::from(!write.sequences.is_empty());
            for answer in split_last(&mut reply.messages, asked) {
                self.note_sequences(&answer)?;
            }
            reply
                .messages
                .retain(|message| !matches!(message[0], b'1' | b'2' | b'3'));
        }
        if let Some(refusal) = self.note(write, text, &mut reply, form)? {
            return Ok(Ran::Refused(refusal));
        }
        if let Form::Simple = form
            && let Some(said) = self.ask_sequences(&write.sequences).await?
        {
            return Ok(Ran::Failed(said));
        }
        let ran = self.after_write(write).await?;
        if let Ran::Well = ran {
            super::pass(&reply.messages, &mut self.client.output);
        }
        Ok(ran)
    }

    /// What follows once a statement has been executed and noted.
    pub(super) async fn after_write(&mut self, write: &Write) -> Result<Ran> {
        if write.changes_catalog {
            self.transaction()?.changes_catalog = true;
            if let Some(said) = self.reread_facts().await? {
                return Ok(Ran::Failed(said));
            }
        }
        Ok(Ran::Well)
    }

    /// Notes what the other member is to execute.
    fn note(
        &mut self,
        write: &Write,
        text: String,
        reply: &mut super::Reply,
        form: Form<'_>,
    ) -> Result<Option<Refusal>> {
        let most = self.hub.config.transaction_bytes;
        if let Some(ship) = &write.ship {
            let rows = take_rows(reply, ship.width());
            self.hub
                .counters
                .rows_sent
                .fetch_add(rows.len() as u64, Ordering::Relaxed);
            let transaction = self.transaction()?;
            for (text, tag) in ship.statements(&rows) {
                transaction.note(Statement {
                    text,
                    digest: Some(digest_of_tag(&tag)),
                    ..Statement::default()
                });
            }
        } else if write.is_logged {
            if let Some(refusal) = refuse_own_types(&reply.messages, form) {
                return Ok(Some(refusal));
            }
            let parameters = form.parameters().iter().map(Parameter::portable);
            let statement = Statement {
                text,
                parameters: parameters.collect(),
                result_formats: form.result_formats().to_vec(),
                copied: None,
                digest: Some(digest(reply)),
            };
            self.transaction()?.note(statement);
        }
        Ok(self.transaction()?.beyond(most))
    }

    /// Has the member evaluate what differs: each value, and its type.
    async fn evaluate(
        &mut self,
        needs: &[String],
    ) -> Result<std::result::Result<Vec<Value>, Box<Said>>> {
        if needs.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let reply = self
            .ask_again(&sql::question(needs, self.names.has_other_times))
            .await?;
        if let Some(said) = reply.error {
            return Ok(Err(said));
        }
        let row = reply.row();
        let pairs = row.chunks(2).map(|pair| {
            let of = pair.get(1).cloned().flatten().unwrap_or_default();
            (pair.first().cloned().flatten(), of)
        });
        Ok(Ok(pairs.collect()))
    }
}

/// Why what was answered cannot be compared with what the other member will answer, if so.
pub(super) fn refuse_own_types(messages: &[BytesMut], form: Form<'_>) -> Option<Refusal> {
    let is_binary = form.result_formats().contains(&1);
    let mut rows = messages.iter().filter(|message| message[0] == b'D');
    let has = is_binary && rows.any(|row| fields(row).into_iter().flatten().any(holds_own_type));
    has.then(|| {
        Refusal::error("0A000", "what is returned in binary cannot be mirrored")
            .detail("It has the numbers of types of your own, which each member gives by itself.")
            .hint("Cast it to text, ask for results as text, or read it by a SELECT after it.")
    })
}
