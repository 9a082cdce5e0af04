//! The extended protocol: statements that were prepared, batches that end with `Sync`.
//!
//! What both members can execute as it is, the primary's member is sent as the client's own messages, together with the beginning
//! of its transaction. Of other statements that write, the text that the other member executes is prepared and bound there once
//! more, under a name of the manager's own, and the client's own portal stays unused. A batch outside of a transaction is one.

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use protocol::frame::{self, Refusal};

use super::super::wire::{Reply, reply};
use super::bound::{most_rows, read_bind, read_parse};
use super::names::{Portal, Prepared};
use super::own_types::holds_own_type;
use super::run::Form;
use super::{Done, Result, Session};
use crate::core::record::Parameter;
use crate::sql::{Plan, Step, may_leave_something, plan_may_be_a_time};

fn malformed() -> Refusal {
    Refusal::error("08P01", "a message makes no sense")
}

impl Session {
    /// Takes a message of the extended protocol.
    pub(super) async fn extended(&mut self, message: BytesMut) -> Result<()> {
        if message[0] == b'S' {
            return self.end_batch().await;
        }
        self.prepared.is_open = true;
        if self.prepared.has_failed {
            return Ok(());
        }
        let before = self.client.output.len();
        let done = match message[0] {
            b'P' => match self.parse(&message) {
                Some((name, prepared)) => {
                    self.prepared.parse(&name, prepared, &message);
                    Done::Well
                }
                None => self.refuse(&malformed()).await?,
            },
            b'B' => self.bind(&message).await?,
            b'E' => self.execute(message).await?,
            b'C' => {
                self.prepared.close(&message);
                Done::Well
            }
            b'H' => {
                // Nobody may take it for committed before `Sync` is answered, and the client may wait for it.
                let held = self.prepared.held.split();
                self.client.output.extend_from_slice(&held);
                self.flushed();
                let done = self.pass_pending(false).await?;
                self.client.flush().await?;
                done
            }
            _ => {
                self.prepared.keep(&message);
                Done::Well
            }
        };
        if let Done::Failed = done {
            self.tell_held(before);
            self.prepared.fail();
            self.prepared.has_failed = true;
        }
        Ok(())
    }

    /// Tells what the batch has held back, before what its failure has told from `before` on. Nobody takes that for committed, and
    /// the names that it has taken are taken.
    fn tell_held(&mut self, before: usize) {
        let held = self.prepared.held.split();
        if !held.is_empty() {
            let after = self.client.output.len().min(before);
            let failure = self.client.output.split_off(after);
            self.client.output.extend_from_slice(&held);
            self.client.output.extend_from_slice(&failure);
        }
    }

    fn parse(&mut self, message: &[u8]) -> Option<(String, Prepared)> {
        let (name, prepared) = read_parse(frame::body(message))?;
        Some((name.to_owned(), prepared))
    }

    async fn bind(&mut self, message: &[u8]) -> Result<Done> {
        let Some(bound) = read_bind(frame::body(message)) else {
            return self.refuse(&malformed()).await;
        };
        let Some(statement) = self.prepared.statement(bound.statement).cloned() else {
            // It may be one of PREPARE, which was not looked into for this.
            let text = format!("prepared statement \"{}\" does not exist", bound.statement);
            let refusal = Refusal::error("26000", text)
                .hint("What PREPARE has made is executed by EXECUTE through the mirror.");
            return self.refuse(&refusal).await;
        };
        let values = bound.values.into_iter().enumerate();
        let parameters = values.map(|(at, (is_binary, value))| Parameter {
            type_oid: statement.types.get(at).copied().unwrap_or(0),
            is_binary,
            value,
        });
        let portal = Portal {
            parameters: parameters.collect(),
            statement,
            result_formats: bound.result_formats,
            is_pending: true,
            is_closed: false,
        };
        let name = bound.portal.to_owned();
        self.prepared.portals.insert(name, portal);
        self.prepared.keep(message);
        Ok(Done::Well)
    }

    async fn execute(&mut self, message: BytesMut) -> Result<Done> {
        let name = frame::name(frame::body(&message)).map(|(name, _)| name.to_owned());
        let portal = name.and_then(|name| self.prepared.portals.get(&name).cloned());
        let Some(portal) = portal else {
            // The member says what there is to say.
            self.prepared.keep(&message);
            return Ok(Done::Well);
        };
        if portal.is_closed {
            return self
                .refuse(&Refusal::error("34000", "the portal was closed"))
                .await;
        }
        if self.hub.config.single {
            return self.execute_singly(&message, &portal).await;
        }
        let ships = portal.parameters.iter().any(means_something_else);
        // What is pending only reads, so planning may ask the member before it is sent that.
        let plans = self.plan(&portal.statement.text, ships).await?;
        let [(source, plan)] = &*plans else {
            // Nothing, or several, which PostgreSQL refuses.
            self.prepared.keep(&message);
            return Ok(Done::Well);
        };
        let is_plain = matches!(
            plan,
            Plan::Alone {
                sets: false,
                creates: false
            }
        );
        let is_plain = is_plain && !may_leave_something(&portal.statement.text);
        if is_plain && self.status != b'E' {
            self.settle_asked(source, &portal.parameters).await?;
        }
        if is_plain || self.status == b'E' && !matches!(plan, Plan::Step(_)) {
            self.prepared.keep(&message);
            return Ok(Done::Well);
        }
        let is_whole = portal.is_pending && most_rows(&message) == Some(0);
        let passes = match plan {
            Plan::Write(write) => write.runs_as_it_is(source, &self.names),
            Plan::Alone { .. } => true,
            Plan::Step(step) => *step != Step::Commit,
            _ => false,
        };
        let form = match plan {
            Plan::Step(Step::Commit | Step::Rollback | Step::Begin { is_plain: true, .. })
                if is_whole
                    && !self.is_own()
                    && self.prepared.answer_bind(&mut self.client.output) =>
            {
                Form::Extended(&portal.parameters, &portal.result_formats)
            }
            _ if is_whole && passes => {
                Form::Own(&portal.parameters, &portal.result_formats, &message)
            }
            _ => {
                if let Done::Failed = self.pass_pending(true).await? {
                    return Ok(Done::Failed);
                }
                Form::Extended(&portal.parameters, &portal.result_formats)
            }
        };
        let before = self.client.output.len();
        let done = self.run(source, plan, form).await?;
        if self.is_own()
            && let Done::Well = done
            && before <= self.client.output.len()
        {
            let held = self.client.output.split_off(before);
            self.prepared.held.extend_from_slice(&held);
        }
        Ok(done)
    }

    /// Sends the member what it has not been sent, and passes on what it answers; up to `Sync` if `syncs`.
    pub(super) async fn pass_pending(&mut self, syncs: bool) -> Result<Done> {
        if self.prepared.pending.is_empty() {
            return Ok(Done::Well);
        }
        self.put_begin()?;
        let awaited = self.prepared.send(&mut self.server.output);
        if !syncs {
            frontend::flush(&mut self.server.output);
            self.server.flush().await?;
            return self.pass_counted(awaited).await;
        }
        frontend::sync(&mut self.server.output);
        self.server.flush().await?;
        let own = self.is_own();
        self.pass_reply(own).await
    }

    /// Passes on a whole answer as it comes; holds it back if the batch has written.
    async fn pass_reply(&mut self, holds: bool) -> Result<Done> {
        if holds {
            let reply = reply(&mut self.server).await?;
            self.note_answers(&reply);
            self.status = reply.status;
            super::pass(&reply.messages, &mut self.prepared.held);
            return Ok(match reply.error {
                Some(said) => {
                    self.tell(&said);
                    Done::Failed
                }
                None => Done::Well,
            });
        }
        // Nothing that copies from the client is passed on unplanned.
        self.pass_answer(Form::Simple).await
    }

    /// Passes on so many answers, or an error.
    async fn pass_counted(&mut self, mut awaited: usize) -> Result<Done> {
        while awaited > 0 {
            let message = self.server.receive().await?;
            if matches!(
                message[0],
                b'1' | b'2' | b'3' | b'T' | b'n' | b'C' | b'I' | b's' | b'E'
            ) {
                awaited -= 1;
            }
            let failed = message[0] == b'E';
            self.prepared.answered(message[0]);
            self.client.output.extend_from_slice(&message);
            if failed {
                return Ok(Done::Failed);
            }
        }
        // The client sees it before there is a `Sync`.
        self.check_lease()?;
        Ok(Done::Well)
    }

    /// What the member has answered to the client's own messages.
    pub(super) fn note_answers(&mut self, reply: &Reply) {
        for message in &reply.messages {
            self.prepared.answered(message[0]);
        }
        if reply.error.is_some() {
            self.prepared.fail();
        }
    }

    /// `Sync`.
    async fn end_batch(&mut self) -> Result<()> {
        let was_failed = self.status == b'E';
        let mut failed = std::mem::take(&mut self.prepared.has_failed);
        self.prepared.is_open = false;
        let before = self.client.output.len();
        if failed {
            self.prepared.fail();
        } else if !self.prepared.pending.is_empty() {
            failed = matches!(self.pass_pending(true).await?, Done::Failed);
        }
        if failed {
            self.tell_held(before);
        }
        let held = self.prepared.held.split();
        if self.is_own() {
            match failed {
                true => self.roll_back().await?,
                false => self.end_held(held).await?,
            }
        } else if failed {
            // The member skips until it is told that the batch is over.
            self.put_begin()?;
            frontend::sync(&mut self.server.output);
            self.server.flush().await?;
            self.status = reply(&mut self.server).await?.status;
        }
        if self.hub.config.single {
            self.end_singly(was_failed, failed).await?;
        }
        if self.status == b'I' {
            self.prepared.portals.clear();
        }
        self.ready();
        Ok(())
    }
}

/// True if the other member may take a parameter for something else.
fn means_something_else(parameter: &Parameter) -> bool {
    let value = parameter.value.as_deref().unwrap_or_default();
    may_be_a_time(parameter) || parameter.is_binary && holds_own_type(value)
}

fn may_be_a_time(parameter: &Parameter) -> bool {
    let text = parameter
        .value
        .as_deref()
        .and_then(|value| std::str::from_utf8(value).ok());
    text.is_some_and(plan_may_be_a_time)
}
