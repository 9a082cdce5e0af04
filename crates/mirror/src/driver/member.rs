//! The member: sessions there, and writing that it has more of the log.
//!
//! Invariants: a transaction's number is written in the transaction itself, where it can be only once, so whatever breaks, nothing
//! is executed twice. Transactions of the log do not wait for the disk, so a server that crashed has lost the last of them: a session
//! that executes any is at the server that was asked what it has, which has not crashed since ([`Member::session`]).

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use protocol::frame;
use proxy::core::settings::quote_literal;
use tokio::sync::Semaphore;

use super::apply::Applier;
use super::config::Target;
use super::deputy::{Deputies, Deputy};
use super::tables::Tables;
use super::wire::{Postgres, Reply, Wire, WireError, reply};
use crate::core::manager::Life;
use crate::core::record::{Digest, Number, Parameter, Token};
use crate::sql::{CATALOG, Facts};

/// So many questions of the manager's own are asked at the same time.
const QUESTIONS: usize = 4;
/// Who waits for whom at the member, by the processes of their sessions.
const WAITS: &str = "SELECT pid, pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(pid), ' ') \
    FROM pg_catalog.pg_stat_activity WHERE wait_event_type OPERATOR(pg_catalog.=) 'Lock'";

pub struct Member {
    pub target: Target,
    /// The life of the server, and the key of the lock that is held there for as long as it lasts.
    life: Mutex<Option<(Life, i64)>>,
    pub(super) idle: Mutex<Vec<Applier>>,
    pub(super) places: Semaphore,
    /// So many sessions wait at most for what is to be executed.
    most_idle: usize,
    /// Who asks something, which must not take the places of clients.
    questions: Semaphore,
    /// How often definitions have changed: settings may mean something else then, as a role that was made anew.
    pub(super) definitions: AtomicU64,
    /// How far sequences were set.
    pub(super) raised: tokio::sync::Mutex<Raised>,
    pub(super) deputies: tokio::sync::Mutex<Deputies>,
    /// Tables that rows are written to.
    pub(super) tables: Tables,
    /// The roles that managers log in as at both members.
    pub(super) managers: Vec<String>,
}

/// How far sequences were set in one life of the server: one that crashed may have lost that.
#[derive(Debug, Default)]
pub struct Raised {
    life: Life,
    sequences: HashMap<String, i64>,
}

impl Raised {
    /// What is known for this life. What an earlier one says is not kept.
    pub fn of(&mut self, life: Life) -> &mut HashMap<String, i64> {
        if self.life != life {
            self.life = life;
            self.sequences.clear();
        }
        &mut self.sequences
    }
}

/// The digest of what a statement answered.
pub fn digest(reply: &Reply) -> Digest {
    digest_of(&reply.messages)
}

/// The digest of what the last of some statements answered.
pub fn digest_of_last(reply: &Reply) -> Digest {
    digest_of(answers(&reply.messages).last().unwrap_or_default())
}

/// What was answered to each of some statements in one batch.
pub fn answers(messages: &[BytesMut]) -> impl Iterator<Item = &[BytesMut]> {
    messages.split_inclusive(|message| matches!(message[0], b'C' | b'I'))
}

/// Takes what was answered to the last `count` statements of a batch off the messages.
pub fn split_last(messages: &mut Vec<BytesMut>, count: usize) -> Vec<Vec<BytesMut>> {
    let ends: Vec<usize> = answers(messages)
        .scan(0, |end, answer| {
            *end += answer.len();
            Some(*end)
        })
        .collect();
    let mut split = Vec::new();
    for at in ends.iter().rev().skip(1).take(count) {
        split.push(messages.split_off(*at));
    }
    split.reverse();
    split
}

/// The digest of a statement's messages.
pub fn digest_of(messages: &[BytesMut]) -> Digest {
    let mut digest = Digest::default();
    for message in messages {
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
    put_parsed(out, text, parameters, result_formats)?;
    frontend::sync(out);
    Ok(())
}

/// The same without `Sync`; how many answers come before those of its execution.
pub fn put_parsed(
    out: &mut BytesMut,
    text: &str,
    parameters: &[Parameter],
    result_formats: &[i16],
) -> std::io::Result<usize> {
    let types = parameters.iter().map(|parameter| parameter.type_oid);
    // Both outlive an execution within a transaction.
    frontend::close(b'P', PORTAL, out)?;
    frontend::close(b'S', PORTAL, out)?;
    frontend::parse(PORTAL, text, types, out)?;
    put_bind(out, PORTAL, parameters, result_formats)?;
    Ok(4)
}

/// Binds and executes what the member has under this name.
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
    frontend::execute(PORTAL, 0, out)
}

impl Member {
    pub fn new(target: Target, appliers: usize, managers: Vec<String>) -> Member {
        Member {
            target,
            life: Mutex::default(),
            idle: Mutex::default(),
            places: Semaphore::new(appliers),
            most_idle: appliers,
            questions: Semaphore::new(QUESTIONS),
            definitions: AtomicU64::new(0),
            raised: tokio::sync::Mutex::default(),
            deputies: tokio::sync::Mutex::default(),
            tables: Tables::default(),
            managers,
        }
    }

    /// A life of the server begins: a session holds this lock for as long as it lasts.
    pub fn begin(&self, life: Life, key: i64) {
        *self.life.lock() = Some((life, key));
    }

    /// The life has ended. Connections that go to a server that is gone are of no use.
    pub fn forget(&self) {
        *self.life.lock() = None;
        self.idle.lock().clear();
    }

    /// The life of the server that a session is at: of one that has not crashed since it was asked what it has. Whoever begins a
    /// session holds this against it, before anything is read there.
    pub async fn life_at(&self, wire: &mut Wire) -> Result<Life, WireError> {
        let Some((life, key)) = *self.life.lock() else {
            return Err(gone());
        };
        let text = format!("SELECT pg_catalog.pg_try_advisory_lock_shared({key})");
        frontend::query(&text, &mut wire.output)?;
        wire.flush().await?;
        // Whoever holds it has a session at the same server, and had that before it was asked.
        match reply(wire).await?.checked()?.value().as_deref() {
            Some("f") => Ok(life),
            _ => Err(gone()),
        }
    }

    /// A session in this life of the server that executes the log, as a deputy; one that nobody uses, if there is any.
    pub(super) async fn applier(&self, life: Life, deputy: &Deputy) -> Result<Applier, WireError> {
        let idle = {
            let mut idle = self.idle.lock();
            idle.retain(|applier| applier.life == life);
            take_of(&mut idle, deputy.name())
        };
        if let Some(applier) = idle {
            return Ok(applier);
        }
        let target = match deputy {
            Deputy::Own => &self.target,
            Deputy::Role(target) => target,
        };
        let mut session = Postgres::connect(target, "understudy mirror").await?;
        match self.life_at(&mut session.wire).await? {
            is_at if is_at == life => Ok(Applier::new(session, life, deputy.name())),
            _ => Err(gone()),
        }
    }

    /// Secret that PostgreSQL keeps of a user's password, if the password is valid.
    pub async fn verifier(&self, user: &str) -> Result<Option<String>, WireError> {
        let text = format!(
            "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = {} \
             AND (rolvaliduntil IS NULL OR rolvaliduntil > pg_catalog.now())",
            quote_literal(user)
        );
        Ok(self.ask(&text).await?.value())
    }

    /// Reads what is known of the catalog.
    pub async fn facts(&self) -> Result<Arc<Facts>, WireError> {
        let json = self.ask(CATALOG).await?.value().unwrap_or_default();
        let facts = Facts::parse(&json)
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
        Ok(Arc::new(facts))
    }

    /// Who waits for whom there, by the processes of their sessions.
    pub async fn waits(&self) -> Result<BTreeMap<i32, Vec<i32>>, WireError> {
        let rows = self.ask(WAITS).await?.rows();
        let waits = rows.into_iter().filter_map(|row| {
            let mut row = row.into_iter().flatten();
            let waits: i32 = row.next()?.parse().ok()?;
            let for_whom = row.next()?;
            let for_whom = for_whom.split(' ').filter_map(|pid| pid.parse().ok());
            Some((waits, for_whom.collect()))
        });
        Ok(waits.collect())
    }

    /// Asks something in a session of the manager's own: one that nobody uses, or a new one.
    pub(super) async fn ask(&self, text: &str) -> Result<Reply, WireError> {
        // Clients may come by the hundred, and each has a connection to the member already.
        let _place = self.questions.acquire().await.map_err(|_| gone())?;
        let idle = take_of(&mut self.idle.lock(), Deputy::Own.name());
        if let Some(mut applier) = idle
            && applier.reset().await.is_ok()
            && let Ok(reply) = applier.session.query(text).await
        {
            self.give_back(applier);
            return Ok(reply);
        }
        let session = Postgres::connect(&self.target, "understudy mirror").await?;
        let mut applier = Applier::new(session, Life::default(), Deputy::Own.name());
        applier.reset().await?;
        let reply = applier.session.query(text).await?;
        if let Ok(life) = self.life_at(&mut applier.session.wire).await {
            applier.life = life;
            self.give_back(applier);
        }
        Ok(reply)
    }

    /// Keeps a session for whoever needs one next, if there are not enough.
    pub(super) fn give_back(&self, applier: Applier) {
        let mut idle = self.idle.lock();
        if idle.len() >= self.most_idle {
            // Whoever was here longest is needed least.
            idle.remove(0);
        }
        idle.push(applier);
    }

    /// Definitions have changed.
    pub fn redefined(&self) {
        self.definitions.fetch_add(1, Ordering::AcqRel);
    }
}

/// The one of these that was used last.
fn take_of(idle: &mut Vec<Applier>, deputy: &str) -> Option<Applier> {
    let at = idle.iter().rposition(|one| one.deputy == deputy)?;
    Some(idle.remove(at))
}

/// The server has crashed, or was exchanged for another one.
fn gone() -> WireError {
    let text = "the member's server has ended since it was asked what it has";
    WireError::Lost(std::io::Error::other(text))
}

/// Takes a lock that nobody else has, for as long as the session lasts: its key.
pub async fn hold(session: &mut Postgres) -> Result<i64, WireError> {
    let key = i64::from_ne_bytes(RandomState::new().hash_one(Instant::now()).to_ne_bytes());
    session
        .query(&format!("SELECT pg_catalog.pg_advisory_lock({key})"))
        .await?;
    Ok(key)
}

/// Commits a transaction with its number, which fails if the member has it.
pub async fn commit(wire: &mut Wire, number: Number, token: Token) -> Result<Reply, WireError> {
    put_number(wire, number, token)?;
    put_commit(wire)?;
    wire.flush().await?;
    let reply = reply(wire).await?;
    match reply.error {
        None => wire.statements.seen(),
        Some(_) => wire.statements.failed(),
    }
    Ok(reply)
}

/// Puts the end of a transaction, up to `Sync`.
pub(super) fn put_commit(wire: &mut Wire) -> std::io::Result<()> {
    let Wire {
        statements, output, ..
    } = wire;
    statements.put(output, "COMMIT", &[], &[])
}

/// The statement of [`put_number`], as a text.
pub(super) fn number_text(number: Number, token: Token) -> String {
    NUMBER
        .replace("$1", &format!("{number}::bigint"))
        .replace("$2", &quote_literal(&token.to_string()))
}

/// The log is durable already: the commit need not wait for the disk.
const NUMBER: &str = "INSERT INTO understudy_mirror.applied \
    SELECT CASE WHEN $1 OPERATOR(pg_catalog.>) floor THEN $1 END, $2 FROM understudy_mirror.state \
    WHERE pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL";

/// Puts a transaction's number into it, without `Sync`. It fails if the member has the transaction: also if that is so long ago that
/// the number was forgotten.
pub(super) fn put_number(wire: &mut Wire, number: Number, token: Token) -> std::io::Result<()> {
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
    let out = &mut wire.output;
    wire.statements.put_open(out, NUMBER, &parameters, &[])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(all: &[(u8, &str)]) -> Vec<BytesMut> {
        let made = all.iter().map(|(kind, body)| {
            let mut out = BytesMut::new();
            frame::put(&mut out, *kind, &[body.as_bytes()]);
            out
        });
        made.collect()
    }

    #[test]
    fn each_statement_of_a_batch_has_a_digest_of_its_own() {
        let all = messages(&[
            (b'2', ""),
            (b'D', "one"),
            (b'C', "SELECT 1\0"),
            (b'1', ""),
            (b'2', ""),
            (b'T', "x"),
            (b'D', "two"),
            (b'C', "SELECT 1\0"),
        ]);
        let digests: Vec<Digest> = answers(&all).map(digest_of).collect();
        assert_eq!(digests.len(), 2);
        assert_ne!(digests[0], digests[1]);
        let alone = messages(&[(b'D', "two"), (b'C', "SELECT 1\0")]);
        assert_eq!(digests[1], digest_of(&alone));
        let mut rest = all.clone();
        let last = split_last(&mut rest, 1);
        assert_eq!(digest_of(&rest), digests[0]);
        assert_eq!(
            last.iter().map(|one| digest_of(one)).collect::<Vec<_>>(),
            [digests[1]]
        );
        assert!(split_last(&mut rest, 1).is_empty() && rest.len() == 3);
        let reply = Reply {
            messages: all,
            ..Reply::default()
        };
        assert_eq!(digest_of_last(&reply), digests[1]);
    }
}
