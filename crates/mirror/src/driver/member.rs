//! The member: what it has of the log, and executing more of it.
//!
//! Invariant: a transaction's number is written in the transaction itself, where it can be only once, so whatever breaks, nothing
//! is executed twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use proxy::core::frame;
use proxy::core::settings::quote_literal;
use tokio::sync::Semaphore;

use super::config::Target;
use super::wire::{Postgres, Reply, Wire, WireError, reply};
use crate::core::class::{Class, Mode};
use crate::core::ledger::Ledger;
use crate::core::record::{Digest, Number, Parameter, Record, Statement, Token};
use crate::sql::{CATALOG, Facts};

/// What a manager needs in its member.
const INSTALL: &str = include_str!("install.sql");
/// Answers are read after so much was sent, so that neither side waits for the other to read.
const SENT_BYTES: usize = 16 << 10;
/// How often an error is taken for one that passes.
const ATTEMPTS: u32 = 20;
/// How far ahead sequences are set, so that they need not be set each time.
const AHEAD: i64 = 32;
/// Transactions of which it is remembered by which token they can be asked about.
const REMEMBERED: u64 = 100_000;

/// What came of executing a transaction of the log.
#[derive(Debug)]
pub enum Applied {
    /// The member has it.
    Done,
    /// The member answered something else than the primary.
    Differs(String),
    /// The member cannot be asked.
    Lost,
}

/// What a member has.
#[derive(Debug)]
pub enum Contents {
    /// It belongs to the mirror.
    Known { ledger: Ledger, is_diverged: bool },
    /// It has never belonged to one.
    Empty,
}

pub struct Member {
    pub target: Target,
    idle: Mutex<Vec<Postgres>>,
    places: Semaphore,
    raised: tokio::sync::Mutex<HashMap<String, i64>>,
}

/// Why a transaction of the log was not executed.
enum Failed {
    Wire(WireError),
    Differs(String),
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Failed {
        Failed::Wire(error)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::Wire(error.into())
    }
}

/// The digest of what a statement answered.
pub fn digest(reply: &Reply) -> Digest {
    let mut digest = Digest::default();
    for message in &reply.messages {
        match message[0] {
            b'D' => digest.row(frame::body(message)),
            b'C' => digest.tag(frame::body(message)),
            _ => {}
        }
    }
    digest
}

/// The digest of a statement that returns nothing.
pub fn digest_of_tag(tag: &str) -> Digest {
    let mut digest = Digest::default();
    digest.tag(&[tag.as_bytes(), b"\0"].concat());
    digest
}

/// The portal, and the statement, of the manager's own in a session of the member.
pub const PORTAL: &str = "understudy";

/// Puts a statement with parameters, with names of the manager's own, up to `Sync`.
pub fn put_extended(
    out: &mut BytesMut,
    text: &str,
    parameters: &[Parameter],
    result_formats: &[i16],
) -> std::io::Result<()> {
    let types = parameters.iter().map(|parameter| parameter.type_oid);
    // Both outlive an execution within a transaction.
    frontend::close(b'P', PORTAL, out)?;
    frontend::close(b'S', PORTAL, out)?;
    frontend::parse(PORTAL, text, types, out)?;
    put_bind(out, PORTAL, parameters, result_formats)
}

/// Binds and executes what the member has under this name, up to `Sync`.
pub fn put_bind(
    out: &mut BytesMut,
    statement: &str,
    parameters: &[Parameter],
    result_formats: &[i16],
) -> std::io::Result<()> {
    let formats = parameters
        .iter()
        .map(|parameter| i16::from(parameter.is_binary));
    let bound = frontend::bind(
        PORTAL,
        statement,
        formats,
        parameters,
        |parameter, out| {
            Ok(match &parameter.value {
                Some(value) => {
                    out.extend_from_slice(value);
                    IsNull::No
                }
                None => IsNull::Yes,
            })
        },
        result_formats.iter().copied(),
        out,
    );
    if let Err(frontend::BindError::Serialization(error)) = bound {
        return Err(error);
    }
    frontend::execute(PORTAL, 0, out)?;
    frontend::sync(out);
    Ok(())
}

fn put(wire: &mut Wire, statement: &Statement) -> std::io::Result<()> {
    let out = &mut wire.output;
    if let Some(copied) = &statement.copied {
        frontend::query(&statement.text, out)?;
        for chunk in copied.chunks(64 << 10) {
            frontend::CopyData::new(chunk)?.write(out);
        }
        frontend::copy_done(out);
        return Ok(());
    }
    // What has no parameters is rarely said twice, but for the settings, of which nobody wants to know the answer.
    let is_alone = statement.parameters.is_empty() && statement.result_formats.is_empty();
    if is_alone && statement.digest.is_some() {
        return frontend::query(&statement.text, out);
    }
    wire.statements.put(
        out,
        &statement.text,
        &statement.parameters,
        &statement.result_formats,
    )
}

impl Member {
    pub fn new(target: Target, appliers: usize) -> Member {
        Member {
            target,
            idle: Mutex::default(),
            places: Semaphore::new(appliers),
            raised: tokio::sync::Mutex::default(),
        }
    }

    /// Connections that go to a server that is gone are of no use.
    pub fn forget(&self) {
        self.idle.lock().clear();
    }

    /// What PostgreSQL keeps of a user's password.
    pub async fn verifier(&self, user: &str) -> Result<Option<String>, WireError> {
        let text = format!(
            "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = {}",
            quote_literal(user)
        );
        let idle = self.idle.lock().pop();
        if let Some(mut session) = idle
            && let Ok(reply) = session.query(&text).await
        {
            self.idle.lock().push(session);
            return Ok(reply.value());
        }
        let mut session = Postgres::connect(&self.target, "understudy mirror").await?;
        let reply = session.query(&text).await?;
        self.idle.lock().push(session);
        Ok(reply.value())
    }

    /// Executes a transaction of the log, unless the member has it.
    pub async fn apply(&self, record: &Record) -> Applied {
        let Ok(_place) = self.places.acquire().await else {
            return Applied::Lost;
        };
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            match self.attempt(record).await {
                Ok(()) => return Applied::Done,
                Err(Failed::Differs(why)) => return Applied::Differs(why),
                Err(Failed::Wire(WireError::Lost(error))) => {
                    tracing::debug!(%error, number = %record.number, "a session of the member was lost");
                    last = error.to_string();
                    if attempt > 2 {
                        return Applied::Lost;
                    }
                }
                Err(Failed::Wire(WireError::Said(said))) => {
                    last = format!("{}: {}", said.code, said.message);
                    // What passes: conflicts, missing resources, a server that stops.
                    let passes = ["40", "53", "55", "57", "58"]
                        .iter()
                        .any(|class| said.code.starts_with(class));
                    if !passes {
                        return Applied::Differs(last);
                    }
                    if said.code.starts_with("57P0") {
                        return Applied::Lost;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20 << attempt.min(5))).await;
        }
        Applied::Differs(last)
    }

    async fn attempt(&self, record: &Record) -> Result<(), Failed> {
        let idle = self.idle.lock().pop();
        let mut session = match idle {
            Some(session) => session,
            None => Postgres::connect(&self.target, "understudy mirror").await?,
        };
        let executed = self.execute(&mut session, record).await;
        let executed = match executed {
            // It may be there already, by a session that has ended since.
            Err(failed @ (Failed::Differs(_) | Failed::Wire(WireError::Said(_)))) => {
                session.query("ROLLBACK").await?;
                match has(&mut session, record.number).await? {
                    true => Ok(()),
                    false => Err(failed),
                }
            }
            other => other,
        };
        match executed {
            Ok(()) => session.wire.statements.seen(),
            Err(_) => session.wire.statements.failed(),
        }
        if !matches!(executed, Err(Failed::Wire(WireError::Lost(_)))) {
            self.idle.lock().push(session);
        }
        executed
    }

    async fn execute(&self, session: &mut Postgres, record: &Record) -> Result<(), Failed> {
        let number = record.number;
        let out = &mut session.wire.output;
        frontend::query("BEGIN", out)?;
        frontend::query(&format!("SELECT understudy_mirror.has({number})"), out)?;
        let mut sent: Vec<Option<&Statement>> = vec![None, None];
        let mut statements = record.draft.statements.iter();
        while !sent.is_empty() {
            while session.wire.output.len() < SENT_BYTES {
                let Some(statement) = statements.next() else {
                    break;
                };
                put(&mut session.wire, statement)?;
                sent.push(Some(statement));
            }
            session.wire.flush().await?;
            let mut outcome = Ok(());
            // All answers are read, whatever the first says: the session may be used again.
            for statement in sent.drain(..) {
                let reply = session.reply().await?;
                outcome = outcome.and_then(|()| match statement {
                    Some(statement) => check(statement, reply),
                    None => expect_absent(reply),
                });
            }
            outcome?;
            if let Some(statement) = statements.next() {
                put(&mut session.wire, statement)?;
                sent.push(Some(statement));
            }
        }
        let mut claims = record.draft.claims.iter();
        let may_set_back = claims.any(|one| one == (&Class::Database, Mode::Exclusive));
        if may_set_back {
            // Definitions have changed: texts may mean something else.
            session.wire.statements.drop_all();
        }
        // The transaction may have run as somebody with fewer rights.
        frontend::query("SET LOCAL ROLE NONE", &mut session.wire.output)?;
        let raises = may_set_back || !record.draft.sequences.is_empty();
        if raises {
            session.wire.flush().await?;
            session.reply().await?.checked()?;
        }
        self.raise(session, &record.draft.sequences, may_set_back)
            .await?;
        put_commit(&mut session.wire, number, record.draft.token)?;
        session.wire.flush().await?;
        let mut replies = Vec::new();
        for _ in 0..if raises { 2 } else { 3 } {
            replies.push(session.reply().await?);
        }
        for reply in replies {
            reply.checked()?;
        }
        Ok(())
    }

    /// Sets sequences at least so far. One after the other, so that none is set back.
    async fn raise(
        &self,
        session: &mut Postgres,
        sequences: &[(String, i64)],
        may_set_back: bool,
    ) -> Result<(), Failed> {
        if sequences.is_empty() && !may_set_back {
            return Ok(());
        }
        let mut raised = self.raised.lock().await;
        if may_set_back {
            raised.clear();
        }
        for (name, value) in sequences {
            if raised.get(name).is_some_and(|raised| raised >= value) {
                continue;
            }
            let name_text = quote_literal(name);
            let described = session
                .query(&format!(
                    "SELECT seqincrement, pg_catalog.pg_sequence_last_value(seqrelid) FROM pg_catalog.pg_sequence \
                     WHERE seqrelid = {name_text}::pg_catalog.regclass"
                ))
                .await?;
            let row = described.row();
            let number = |at: usize| {
                row.get(at)
                    .cloned()
                    .flatten()
                    .and_then(|text: String| text.parse::<i64>().ok())
            };
            let (increment, last) = (number(0).unwrap_or(1), number(1));
            let ahead = value.saturating_add(increment.saturating_mul(AHEAD));
            let is_behind = |last: i64| {
                if increment > 0 {
                    last < *value
                } else {
                    last > *value
                }
            };
            let mut reached = last.unwrap_or(*value);
            if last.is_none_or(is_behind) {
                // Not beyond its range, which would be an error.
                let set = format!(
                    "SELECT pg_catalog.setval(s.seqrelid::pg_catalog.regclass, \
                     least(s.seqmax, greatest(s.seqmin, {ahead}))) \
                     FROM pg_catalog.pg_sequence s WHERE s.seqrelid = {name_text}::pg_catalog.regclass"
                );
                session.query(&set).await?;
                reached = ahead;
            }
            if increment > 0 {
                raised.insert(name.clone(), reached);
            }
        }
        Ok(())
    }
}

async fn has(session: &mut Postgres, number: Number) -> Result<bool, WireError> {
    let reply = session
        .query(&format!("SELECT understudy_mirror.has({number})"))
        .await?;
    Ok(reply.value().as_deref() == Some("t"))
}

/// Commits a transaction with its number, which fails if the member has it: what is answered to both.
pub async fn commit(
    wire: &mut Wire,
    number: Number,
    token: Token,
) -> Result<[Reply; 2], WireError> {
    put_commit(wire, number, token)?;
    wire.flush().await?;
    let replies = [reply(wire).await?, reply(wire).await?];
    match replies[0].error {
        None => wire.statements.seen(),
        Some(_) => wire.statements.failed(),
    }
    Ok(replies)
}

fn put_commit(wire: &mut Wire, number: Number, token: Token) -> std::io::Result<()> {
    const INT8: u32 = 20;
    const TEXT: u32 = 25;
    let parameter = |type_oid, value: String| Parameter {
        type_oid,
        is_binary: false,
        value: Some(value.into_bytes()),
    };
    let parameters = [
        parameter(INT8, number.to_string()),
        parameter(TEXT, token.to_string()),
    ];
    let text = "SELECT understudy_mirror.commit($1, $2)";
    wire.statements
        .put(&mut wire.output, text, &parameters, &[])?;
    frontend::query("COMMIT", &mut wire.output)
}

/// It must not be there before it is executed.
fn expect_absent(reply: Reply) -> Result<(), Failed> {
    match reply.checked()?.value().as_deref() {
        Some("t") => Err(Failed::Differs("it is there".to_owned())),
        _ => Ok(()),
    }
}

fn check(statement: &Statement, reply: Reply) -> Result<(), Failed> {
    let reply = reply.checked()?;
    match statement.digest {
        Some(wanted) if digest(&reply) != wanted => {
            let told = format!(
                "{}: answered {} and {} rows",
                shortened(&statement.text),
                reply.tag(),
                reply.rows().len()
            );
            Err(Failed::Differs(told))
        }
        _ => Ok(()),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(500).collect()
}

/// Reads what a member has; `install` if it shall belong to a new mirror.
pub async fn contents(session: &mut Postgres, install: bool) -> Result<Contents, WireError> {
    let there = session
        .query("SELECT pg_catalog.to_regclass('understudy_mirror.state') IS NOT NULL")
        .await?;
    if there.value().as_deref() != Some("t") {
        if !install {
            return Ok(Contents::Empty);
        }
        install_with(session, &Ledger::default()).await?;
    }
    session.query("SET synchronous_commit = on").await?;
    let state = session
        .query("SELECT floor, is_diverged FROM understudy_mirror.state")
        .await?;
    let Some(row) = state.rows().into_iter().next() else {
        return Ok(Contents::Empty);
    };
    let ledger = ledger(session, row.first().cloned().flatten()).await?;
    Ok(Contents::Known {
        ledger,
        is_diverged: row.get(1).cloned().flatten().as_deref() == Some("t"),
    })
}

async fn ledger(session: &mut Postgres, floor: Option<String>) -> Result<Ledger, WireError> {
    let number =
        |text: Option<String>| Number(text.and_then(|text| text.parse().ok()).unwrap_or_default());
    let floor = number(floor);
    let above = session
        .query(&format!(
            "SELECT number FROM understudy_mirror.applied WHERE number > {floor}"
        ))
        .await?;
    let above = above
        .rows()
        .into_iter()
        .map(|row| number(row.into_iter().next().flatten()));
    Ok(Ledger::new(floor, above))
}

/// Makes what a manager needs in its member, which has this of the log.
pub async fn install_with(session: &mut Postgres, ledger: &Ledger) -> Result<(), WireError> {
    session.query(INSTALL).await?;
    let floor = ledger.floor();
    let above: Vec<String> = (floor.0 + 1..=ledger.last().0)
        .filter(|number| ledger.contains(Number(*number)))
        .map(|number| format!("INSERT INTO understudy_mirror.applied VALUES ({number}, '');"))
        .collect();
    session
        .query(&format!(
            "INSERT INTO understudy_mirror.state (floor) VALUES ({floor}) ON CONFLICT (one) DO UPDATE \
             SET floor = excluded.floor, is_diverged = false; {}",
            above.concat()
        ))
        .await?;
    Ok(())
}

/// Forgets the numbers that everything up to `floor` stands for, but for those that may still be asked about.
pub async fn prune(session: &mut Postgres, floor: Number) -> Result<(), WireError> {
    let oldest = floor.0.saturating_sub(REMEMBERED);
    session
        .query(&format!(
            "BEGIN; UPDATE understudy_mirror.state SET floor = {floor} WHERE floor < {floor}; \
             DELETE FROM understudy_mirror.applied WHERE number <= {oldest}; COMMIT"
        ))
        .await?;
    Ok(())
}

/// Reads what is known of the catalog.
pub async fn facts(session: &mut Postgres) -> Result<Arc<Facts>, WireError> {
    let reply = session.query(CATALOG).await?;
    let json = reply.value().unwrap_or_default();
    let facts = Facts::parse(&json)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
    Ok(Arc::new(facts))
}
