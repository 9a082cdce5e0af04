//! The member: sessions there, and writing that it has more of the log.
//!
//! Invariants: a transaction's number is written in the transaction itself, where it can be only once, so whatever breaks, nothing
//! is executed twice. Transactions of the log do not wait for the disk, so a server that crashed has lost the last of them: a session
//! that executes any is at the server that was asked what it has, which has not crashed since ([`Member::session`]).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use postgres_protocol::IsNull;
use postgres_protocol::message::frontend;
use proxy::core::settings::quote_literal;
use tokio::sync::Semaphore;

use super::apply::Applier;
use super::deputy::{Deputies, Deputy};
use super::statements::Parameter;
use super::tables::Tables;
use super::target::Target;
use super::wire::{Postgres, Reply, Wire, WireError, reply};
use crate::core::manager::Life;
use crate::core::record::{Number, Token};

/// The name of sessions that execute the log: of an earlier process they are ended before the member is asked what it has.
const APPLIER: &str = "understudy applier";
/// So many questions of the manager's own are asked at the same time.
const QUESTIONS: usize = 4;

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
    pub(super) deputies: tokio::sync::Mutex<Deputies>,
    /// Tables that rows are written to.
    pub(super) tables: Tables,
    /// The roles that managers log in as at both members.
    pub(super) managers: Vec<String>,
}

/// What was answered to each of some statements in one batch.
pub fn answers(messages: &[BytesMut]) -> impl Iterator<Item = &[BytesMut]> {
    messages.split_inclusive(|message| matches!(message[0], b'C' | b'I'))
}

/// The portal, and the statement, of the manager's own in a session of the member.
pub const PORTAL: &str = "understudy";

/// Puts a statement with parameters, with names of the manager's own, up to `Sync`.
pub fn put_extended(
    out: &mut BytesMut,
    text: &str,
    parameters: &[Parameter],
) -> std::io::Result<()> {
    put_parsed(out, text, parameters)?;
    frontend::sync(out);
    Ok(())
}

/// The same without `Sync`; how many answers come before those of its execution.
pub fn put_parsed(
    out: &mut BytesMut,
    text: &str,
    parameters: &[Parameter],
) -> std::io::Result<usize> {
    let types = parameters.iter().map(|parameter| parameter.type_oid);
    // Both outlive an execution within a transaction.
    frontend::close(b'P', PORTAL, out)?;
    frontend::close(b'S', PORTAL, out)?;
    frontend::parse(PORTAL, text, types, out)?;
    put_bind(out, PORTAL, parameters)?;
    Ok(4)
}

/// Binds and executes what the member has under this name.
pub fn put_bind(
    out: &mut BytesMut,
    statement: &str,
    parameters: &[Parameter],
) -> std::io::Result<()> {
    let bound = frontend::bind(
        PORTAL,
        statement,
        [],
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
        [],
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
        self.enters(wire).await.map(|(life, _)| life)
    }

    /// That life, and true if the session shows no warnings: settings of roles and of the database may say so.
    pub async fn enters(&self, wire: &mut Wire) -> Result<(Life, bool), WireError> {
        let Some((life, key)) = *self.life.lock() else {
            return Err(gone());
        };
        let text = format!(
            "SELECT pg_catalog.pg_try_advisory_lock_shared({key}), pg_catalog.current_setting('client_min_messages')"
        );
        frontend::query(&text, &mut wire.output)?;
        wire.flush().await?;
        let row = reply(wire).await?.checked()?.row();
        let field = |at: usize| row.get(at).and_then(|text| text.as_deref());
        // Whoever holds it has a session at the same server, and had that before it was asked.
        match field(0) {
            Some("f") => Ok((life, field(1) == Some("error"))),
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
        let mut session = Postgres::connect(target, APPLIER).await?;
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
        let session = Postgres::connect(&self.target, APPLIER).await?;
        let mut applier = Applier::new(session, Life::default(), Deputy::Own.name());
        applier.reset().await?;
        let reply = applier.session.query(text).await?;
        if let Ok(life) = self.life_at(&mut applier.session.wire).await {
            applier.life = life;
            self.give_back(applier);
        }
        Ok(reply)
    }

    /// The same of one in which clients' code may have run: without what that has left.
    pub(super) async fn give_back_clean(&self, mut applier: Applier) {
        if applier.secret.is_none() || applier.session.discard().await.is_ok() {
            self.give_back(applier);
        }
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

/// Puts the end of a transaction, up to `Sync`.
pub(super) fn put_commit(wire: &mut Wire) -> std::io::Result<()> {
    let Wire {
        statements, output, ..
    } = wire;
    statements.put(output, "COMMIT", &[])
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
        value: Some(value.into_bytes()),
    };
    let parameters = [
        parameter(INT8, number.to_string()),
        parameter(TEXT, token.to_string()),
    ];
    let out = &mut wire.output;
    wire.statements.put_open(out, NUMBER, &parameters)?;
    Ok(())
}
