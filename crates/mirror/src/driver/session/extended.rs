//! The extended protocol: statements that were prepared, batches that end with `Sync`.
//!
//! What reads is passed on to the member. What writes is prepared and bound there once more, under a name of the manager's own, with
//! the text that both members execute; the client's own portal stays unused. A batch outside of a transaction is one.

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use proxy::core::frame::{self, Refusal};

use super::super::wire::reply;
use super::run::Form;
use super::{ByName, Done, Result, Session};
use crate::core::moving::Statement;
use crate::core::record::Parameter;
use crate::sql::{Plan, may_leave_something, plan_may_be_a_time};

/// A statement of a client's.
#[derive(Debug, Clone, Default)]
struct Prepared {
    text: String,
    types: Vec<u32>,
}

/// A statement with its parameters.
#[derive(Debug, Clone, Default)]
struct Portal {
    statement: Prepared,
    parameters: Vec<Parameter>,
    result_formats: Vec<i16>,
}

/// A client's statements and portals, and the batch that has begun.
#[derive(Default)]
pub struct Names {
    statements: ByName<Prepared>,
    portals: ByName<Portal>,
    /// Messages that the member has not been sent.
    pending: BytesMut,
    /// How many answers they have.
    awaited: usize,
    /// A batch has begun.
    is_open: bool,
    /// Something in the batch has failed: everything is skipped until its end.
    has_failed: bool,
    /// Answers that count only if the batch commits.
    held: BytesMut,
}

impl Names {
    /// Whether a batch has begun that has not ended.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The client's statements.
    pub fn statements(&self) -> Vec<Statement> {
        let statements = self.statements.iter();
        let mut statements: Vec<Statement> = statements
            .map(|(name, prepared)| Statement {
                name: name.clone(),
                text: prepared.text.clone(),
                types: prepared.types.clone(),
            })
            .collect();
        statements.sort_by(|one, other| one.name.cmp(&other.name));
        statements
    }

    /// A statement was prepared.
    pub fn learn(&mut self, statement: &Statement) {
        let prepared = Prepared {
            text: statement.text.clone(),
            types: statement.types.clone(),
        };
        self.statements.insert(statement.name.clone(), prepared);
    }

    /// A statement is gone, or all of them.
    pub fn forget(&mut self, name: Option<&str>) {
        match name {
            Some(name) => drop(self.statements.remove(name)),
            None => self.statements.clear(),
        }
    }
}

fn malformed() -> Refusal {
    Refusal::error("08P01", "a message makes no sense")
}

/// What `Parse` says.
fn read_parse(body: &[u8]) -> Option<(&str, Prepared)> {
    let (name, rest) = frame::name(body)?;
    let (text, mut rest) = frame::name(rest)?;
    let mut types = Vec::new();
    if rest.len() >= 2 {
        for _ in 0..rest.get_u16() {
            if rest.len() < 4 {
                return None;
            }
            types.push(rest.get_u32());
        }
    }
    let text = text.to_owned();
    Some((name, Prepared { text, types }))
}

fn formats(body: &mut &[u8]) -> Option<Vec<i16>> {
    let count = (body.len() >= 2).then(|| body.get_u16())?;
    (0..count)
        .map(|_| (body.len() >= 2).then(|| body.get_i16()))
        .collect()
}

/// What `Bind` says.
struct Bound<'a> {
    portal: &'a str,
    statement: &'a str,
    /// Whether it is binary, and the value.
    values: Vec<(bool, Option<Vec<u8>>)>,
    result_formats: Vec<i16>,
}

fn read_bind(body: &[u8]) -> Option<Bound<'_>> {
    let (portal, rest) = frame::name(body)?;
    let (statement, mut rest) = frame::name(rest)?;
    let given = formats(&mut rest)?;
    let count = (rest.len() >= 2).then(|| rest.get_u16())?;
    let mut values = Vec::new();
    for at in 0..usize::from(count) {
        let is_binary = match given.as_slice() {
            [] => false,
            [one] => *one == 1,
            many => many.get(at) == Some(&1),
        };
        let len = (rest.len() >= 4).then(|| rest.get_i32())?;
        let value = match usize::try_from(len) {
            Ok(len) if len <= rest.len() => {
                let (value, after) = rest.split_at(len);
                rest = after;
                Some(value.to_vec())
            }
            Ok(_) => return None,
            Err(_) => None,
        };
        values.push((is_binary, value));
    }
    let result_formats = formats(&mut rest)?;
    Some(Bound {
        portal,
        statement,
        values,
        result_formats,
    })
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
        let done = match message[0] {
            b'P' => self.parse(&message).await?,
            b'B' => self.bind(&message).await?,
            b'E' => self.execute(message).await?,
            b'C' => self.close(&message),
            b'H' => {
                self.pass_pending(false).await?;
                self.client.flush().await?;
                Done::Well
            }
            _ => {
                self.keep(&message, 1);
                Done::Well
            }
        };
        if let Done::Failed = done {
            self.prepared.has_failed = true;
        }
        Ok(())
    }

    fn keep(&mut self, message: &[u8], answers: usize) {
        self.prepared.pending.extend_from_slice(message);
        self.prepared.awaited += answers;
    }

    async fn parse(&mut self, message: &[u8]) -> Result<Done> {
        let Some((name, prepared)) = read_parse(frame::body(message)) else {
            return self.refuse(&malformed()).await;
        };
        self.prepared.statements.insert(name.to_owned(), prepared);
        self.keep(message, 1);
        Ok(Done::Well)
    }

    async fn bind(&mut self, message: &[u8]) -> Result<Done> {
        let Some(bound) = read_bind(frame::body(message)) else {
            return self.refuse(&malformed()).await;
        };
        if let Some(statement) = self.prepared.statements.get(bound.statement).cloned() {
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
            };
            self.prepared
                .portals
                .insert(bound.portal.to_owned(), portal);
        }
        self.keep(message, 1);
        Ok(Done::Well)
    }

    fn close(&mut self, message: &[u8]) -> Done {
        let body = frame::body(message);
        if let Some((name, _)) = body.get(1..).and_then(frame::name) {
            match body[0] {
                b'S' => drop(self.prepared.statements.remove(name)),
                _ => drop(self.prepared.portals.remove(name)),
            }
        }
        self.keep(message, 1);
        Done::Well
    }

    async fn execute(&mut self, message: BytesMut) -> Result<Done> {
        let name = frame::name(frame::body(&message)).map(|(name, _)| name.to_owned());
        let portal = name.and_then(|name| self.prepared.portals.get(&name).cloned());
        let Some(portal) = portal else {
            // The member says what there is to say.
            self.keep(&message, 1);
            return Ok(Done::Well);
        };
        let ships = portal.parameters.iter().any(may_be_a_time);
        // What is pending only reads, so planning may ask the member before it is sent that.
        let plans = self.plan(&portal.statement.text, ships).await?;
        let [(source, plan)] = &*plans else {
            // Nothing, or several, which PostgreSQL refuses.
            self.keep(&message, 1);
            return Ok(Done::Well);
        };
        let is_plain = matches!(plan, Plan::Alone { sets: false, creates } if creates.is_empty());
        let is_plain = is_plain && !may_leave_something(&portal.statement.text);
        if is_plain || self.status == b'E' && !matches!(plan, Plan::Step(_)) {
            self.keep(&message, 1);
            return Ok(Done::Well);
        }
        if let Done::Failed = self.pass_pending(true).await? {
            return Ok(Done::Failed);
        }
        let form = Form::Extended(&portal.parameters, &portal.result_formats);
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
    async fn pass_pending(&mut self, syncs: bool) -> Result<Done> {
        if self.prepared.pending.is_empty() {
            return Ok(Done::Well);
        }
        let pending = self.prepared.pending.split();
        self.server.output.extend_from_slice(&pending);
        let awaited = std::mem::take(&mut self.prepared.awaited);
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
            self.client.output.extend_from_slice(&message);
            if failed {
                return Ok(Done::Failed);
            }
        }
        Ok(Done::Well)
    }

    /// `Sync`.
    async fn end_batch(&mut self) -> Result<()> {
        let mut failed = std::mem::take(&mut self.prepared.has_failed);
        self.prepared.is_open = false;
        if failed {
            self.prepared.pending.clear();
            self.prepared.awaited = 0;
        } else if !self.prepared.pending.is_empty() {
            failed = matches!(self.pass_pending(true).await?, Done::Failed);
        }
        let held = self.prepared.held.split();
        if self.is_own() {
            match failed {
                true => self.roll_back().await?,
                false => self.end_held(held).await?,
            }
        } else if failed {
            // The member skips until it is told that the batch is over.
            frontend::sync(&mut self.server.output);
            self.server.flush().await?;
            self.status = reply(&mut self.server).await?.status;
        }
        if self.status == b'I' {
            self.prepared.portals.clear();
        }
        self.ready();
        Ok(())
    }
}

fn may_be_a_time(parameter: &Parameter) -> bool {
    let text = parameter
        .value
        .as_deref()
        .and_then(|value| std::str::from_utf8(value).ok());
    text.is_some_and(plan_may_be_a_time)
}
