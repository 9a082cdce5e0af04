//! The member: what it has of the log, and writing there that it has more.
//!
//! Invariants: a transaction's number is written in the transaction itself, where it can be only once, so whatever breaks, nothing
//! is executed twice. Transactions of the log do not wait for the disk, so a server that crashed has lost the last of them: a session
//! that executes any is at the server that was asked what it has, which has not crashed since ([`Member::session`]).

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use parking_lot::Mutex;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use proxy::core::frame;
use proxy::core::settings::quote_literal;
use tokio::sync::Semaphore;

use super::apply::Applier;
use super::config::Target;
use super::wire::{Postgres, Reply, Wire, WireError, reply};
use crate::core::ledger::Ledger;
use crate::core::manager::Life;
use crate::core::record::{Digest, Number, Parameter, Token};
use crate::sql::{CATALOG, Facts};

/// What a manager needs in its member.
const INSTALL: &str = include_str!("install.sql");
/// Transactions of which it is remembered by which token they can be asked about.
const REMEMBERED: u64 = 100_000;
/// So long at least.
const REMEMBERED_FOR: Duration = Duration::from_secs(300);
/// So many clients' verifiers are asked for at the same time.
const LOGINS: usize = 4;

/// What a member has.
#[derive(Debug)]
pub enum Contents {
    /// It belongs to the mirror.
    Known {
        ledger: Ledger,
        /// It has everything up to here on its disk.
        saved: Number,
        is_diverged: bool,
    },
    /// It has never belonged to one.
    Empty,
}

pub struct Member {
    pub target: Target,
    /// The life of the server, and the key of the lock that is held there for as long as it lasts.
    life: Mutex<Option<(Life, i64)>>,
    pub(super) idle: Mutex<Vec<Applier>>,
    pub(super) places: Semaphore,
    /// So many sessions wait at most for what is to be executed.
    most_idle: usize,
    /// Who asks for verifiers, which must not take the places of clients.
    logins: Semaphore,
    /// How often definitions have changed: settings may mean something else then, as a role that was made anew.
    pub(super) definitions: AtomicU64,
    /// How far sequences were set.
    pub(super) raised: tokio::sync::Mutex<Raised>,
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
    pub fn new(target: Target, appliers: usize) -> Member {
        Member {
            target,
            life: Mutex::default(),
            idle: Mutex::default(),
            places: Semaphore::new(appliers),
            most_idle: appliers,
            logins: Semaphore::new(LOGINS),
            definitions: AtomicU64::new(0),
            raised: tokio::sync::Mutex::default(),
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

    /// A session of the manager's own in this life of the server.
    pub(super) async fn session(&self, life: Life) -> Result<Postgres, WireError> {
        let mut session = Postgres::connect(&self.target, "understudy mirror").await?;
        match self.life_at(&mut session.wire).await? {
            is_at if is_at == life => Ok(session),
            _ => Err(gone()),
        }
    }

    /// The same for executing the log; one that nobody uses, if there is any.
    pub(super) async fn applier(&self, life: Life) -> Result<Applier, WireError> {
        let idle = {
            let mut idle = self.idle.lock();
            idle.retain(|applier| applier.life == life);
            idle.pop()
        };
        match idle {
            Some(applier) => Ok(applier),
            None => Ok(Applier::new(self.session(life).await?, life)),
        }
    }

    /// What PostgreSQL keeps of a user's password.
    pub async fn verifier(&self, user: &str) -> Result<Option<String>, WireError> {
        let text = format!(
            "SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = {}",
            quote_literal(user)
        );
        // Clients may come by the hundred, and each has a connection to the member already.
        let _place = self.logins.acquire().await.map_err(|_| gone())?;
        let idle = self.idle.lock().pop();
        if let Some(mut applier) = idle
            && applier.reset().await.is_ok()
            && let Ok(reply) = applier.session.query(&text).await
        {
            self.give_back(applier);
            return Ok(reply.value());
        }
        let mut session = Postgres::connect(&self.target, "understudy mirror").await?;
        let value = session.query(&text).await?.value();
        if let Ok(life) = self.life_at(&mut session.wire).await {
            self.give_back(Applier::new(session, life));
        }
        Ok(value)
    }

    /// Keeps a session for whoever needs one next, if there are not enough.
    pub(super) fn give_back(&self, applier: Applier) {
        let mut idle = self.idle.lock();
        if idle.len() < self.most_idle {
            idle.push(applier);
        }
    }

    /// Definitions have changed.
    pub fn redefined(&self) {
        self.definitions.fetch_add(1, Ordering::AcqRel);
    }
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
    // The log is durable already: the commit need not wait for the disk.
    let text = "INSERT INTO understudy_mirror.applied \
                SELECT CASE WHEN $1 OPERATOR(pg_catalog.>) floor THEN $1 END, $2 FROM understudy_mirror.state \
                WHERE pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL";
    let out = &mut wire.output;
    wire.statements.put_open(out, text, &parameters, &[])?;
    Ok(())
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
        install_with(session, &Ledger::default(), &Tokens::default()).await?;
    }
    session.query("SET synchronous_commit = on").await?;
    let state = session
        .query("SELECT floor, is_diverged FROM understudy_mirror.state")
        .await?;
    let Some(row) = state.rows().into_iter().next() else {
        return Ok(Contents::Empty);
    };
    let saved = row.first().cloned().flatten();
    let ledger = ledger(session, saved.clone()).await?;
    Ok(Contents::Known {
        ledger,
        saved: number(saved),
        is_diverged: row.get(1).cloned().flatten().as_deref() == Some("t"),
    })
}

fn number(text: Option<String>) -> Number {
    Number(text.and_then(|text| text.parse().ok()).unwrap_or_default())
}

async fn ledger(session: &mut Postgres, floor: Option<String>) -> Result<Ledger, WireError> {
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

/// What a member says of transactions by their tokens.
#[derive(Debug, Default)]
pub struct Tokens {
    /// Those that it remembers: the number and the token of each.
    remembered: Vec<(String, String)>,
    /// The epoch and the count of the last one that it may have forgotten.
    forgotten: (u64, u64),
}

/// Reads what a member says of transactions by their tokens.
pub async fn tokens(session: &mut Postgres) -> Result<Tokens, WireError> {
    let state = session
        .query("SELECT forgotten_epoch, forgotten_count FROM understudy_mirror.state")
        .await?;
    let mut forgotten = state.row().into_iter().map(|text| number(text).0);
    let forgotten = (
        forgotten.next().unwrap_or_default(),
        forgotten.next().unwrap_or_default(),
    );
    let applied = session
        .query("SELECT number, token FROM understudy_mirror.applied")
        .await?;
    let rows = applied.rows().into_iter();
    let remembered = rows.filter_map(|row| {
        let mut row = row.into_iter().flatten();
        Some((row.next()?, row.next()?))
    });
    Ok(Tokens {
        remembered: remembered.collect(),
        forgotten,
    })
}

/// Makes what a manager needs in its member, which has this of the log: all of it, or nothing.
pub async fn install_with(
    session: &mut Postgres,
    ledger: &Ledger,
    tokens: &Tokens,
) -> Result<(), WireError> {
    session.query("SET synchronous_commit = on").await?;
    session.query("BEGIN").await?;
    session.query(INSTALL).await?;
    for some in tokens.remembered.chunks(1000) {
        let values: Vec<String> = some
            .iter()
            .map(|(number, token)| format!("({number}, {})", quote_literal(token)))
            .collect();
        let values = values.join(", ");
        session
            .query(&format!(
                "INSERT INTO understudy_mirror.applied VALUES {values}"
            ))
            .await?;
    }
    let (floor, (epoch, count)) = (ledger.floor(), tokens.forgotten);
    session
        .query(&format!(
            "INSERT INTO understudy_mirror.state (floor, forgotten_epoch, forgotten_count) \
             VALUES ({floor}, {epoch}, {count}) ON CONFLICT (one) DO UPDATE \
             SET floor = excluded.floor, is_diverged = false; COMMIT"
        ))
        .await?;
    Ok(())
}

/// Has the member write to its disk that it has everything up to `floor`, and with it everything that it committed before.
pub async fn save(session: &mut Postgres, floor: Number) -> Result<(), WireError> {
    session
        .query(&format!(
            "UPDATE understudy_mirror.state SET floor = {floor} WHERE floor < {floor}"
        ))
        .await
        .map(drop)
}

/// What may be forgotten of a member's transactions: all but the last of them, and but those of the last minutes.
#[derive(Debug, Default)]
pub struct Memory(VecDeque<(Instant, Number)>);

impl Memory {
    /// The member has everything up to `floor` now: up to where it may forget.
    pub fn forgets(&mut self, now: Instant, floor: Number) -> Number {
        self.0.push_back((now, floor));
        let is_old = |(at, _): &(Instant, Number)| now.duration_since(*at) >= REMEMBERED_FOR;
        // The last one that is old enough stays.
        while self.0.get(1).is_some_and(is_old) {
            self.0.pop_front();
        }
        let old = self.0.front().filter(|one| is_old(one));
        let old = old.map_or(0, |(_, floor)| floor.0);
        Number(old.min(floor.0.saturating_sub(REMEMBERED)))
    }
}

/// So many numbers are forgotten at a time at most: a member that was away has those of minutes, and is asked meanwhile.
const PRUNED_MAX: u32 = 50_000;

/// Forgets numbers up to this one, for which the floor stands that was saved, and remembers which tokens may be among them.
pub async fn prune(session: &mut Postgres, oldest: Number) -> Result<(), WireError> {
    session
        .query(&format!(
            "WITH gone AS (DELETE FROM understudy_mirror.applied WHERE number <= least({oldest}, \
               (SELECT pg_catalog.min(number) FROM understudy_mirror.applied) + {PRUNED_MAX}) RETURNING token), \
             named AS (SELECT pg_catalog.split_part(token, '-', 1)::bigint AS epoch, \
               pg_catalog.split_part(token, '-', 2)::bigint AS count FROM gone WHERE token <> ''), \
             last AS (SELECT epoch, count FROM named ORDER BY epoch DESC, count DESC LIMIT 1) \
             UPDATE understudy_mirror.state s SET forgotten_epoch = last.epoch, forgotten_count = last.count \
             FROM last WHERE (last.epoch, last.count) > (s.forgotten_epoch, s.forgotten_count)"
        ))
        .await
        .map(drop)
}

/// Reads what is known of the catalog.
pub async fn facts(session: &mut Postgres) -> Result<Arc<Facts>, WireError> {
    let reply = session.query(CATALOG).await?;
    let json = reply.value().unwrap_or_default();
    let facts = Facts::parse(&json)
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
    Ok(Arc::new(facts))
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

    /// At some thousands a second the last hundred thousand were gone before a client could ask.
    #[test]
    fn what_is_young_is_remembered_however_much_there_was() {
        let mut memory = Memory::default();
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(memory.forgets(at(0), Number(5_000_000)), Number(0));
        assert_eq!(memory.forgets(at(100), Number(6_000_000)), Number(0));
        assert_eq!(
            memory.forgets(at(300), Number(7_000_000)),
            Number(5_000_000)
        );
        assert_eq!(
            memory.forgets(at(390), Number(7_000_000)),
            Number(5_000_000)
        );
        assert_eq!(
            memory.forgets(at(400), Number(7_000_000)),
            Number(6_000_000)
        );
        assert_eq!(
            memory.forgets(at(9_000), Number(7_000_100)),
            Number(6_900_100)
        );
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
