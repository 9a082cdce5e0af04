//! Definitions of a primary's member, which the log gets so that a standby compares its own with them: those that events are told of, and
//! those that nobody is told of (roles, settings, what a superuser writes into the catalog).
//!
//! ```text
//!   a definition is logged, or a minute is over ──▶ definitions and snapshot are read ──▶ the stream has passed that point, and all
//!   that it has logged was visible ──▶ they are logged ──▶ a standby that has everything before compares its own, or is set aside
//! ```
//!
//! Invariant: nothing waits for the reading, which itself gives up soon where it meets a lock.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::answer::Reply;
use super::member::Member;
use super::target::Target;
use super::wire::{Postgres, WireError};
use crate::core::catalog::{Catalog, Snapshot};
use crate::core::rows::Lsn;

const SAID: &str = include_str!("definitions.sql");
/// Definitions are read so long after something was defined: a migration defines a lot at once.
const SOON: Duration = Duration::from_millis(300);
/// Definitions of which nobody is told are read so often.
const EVERY: Duration = Duration::from_secs(60);

/// True if somebody may be between the transactions of `DROP INDEX CONCURRENTLY`: the index is none for others any more, and the command is
/// not logged. It holds the lock of its table throughout.
const BETWEEN: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_index i ON i.indrelid = l.relation \
    JOIN pg_catalog.pg_database d ON d.oid = l.database WHERE l.locktype = 'relation' AND l.mode = 'ShareUpdateExclusiveLock' \
    AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() AND d.datname = pg_catalog.current_database() AND NOT i.indisvalid)";

/// The query, for members that managers log in at as these roles.
fn said(managers: &[String]) -> String {
    let names: Vec<String> = managers
        .iter()
        .map(|name| postgres_protocol::escape::escape_literal(name))
        .collect();
    SAID.replace("OWN", &format!("ARRAY[{}]", names.join(", ")))
}

/// A number for how definitions are written: by a server of this major version, and by this query. A manager of another release has
/// another query, and what it has logged is not compared.
fn form(major: u32) -> u32 {
    const MAJOR: u32 = 0xff;
    xxh3_64(SAID.as_bytes()) as u32 & !MAJOR | major & MAJOR
}

/// Reads the definitions of the session's database, in a transaction without a search path.
pub async fn read(session: &mut Postgres, managers: &[String]) -> Result<Catalog, WireError> {
    let (said, all) = (said(managers), "pg_catalog.concat_ws(' = ', name, said)");
    let version = "SELECT pg_catalog.current_setting('server_version_num')::int / 10000";
    let version = session.query(version).await?.value();
    let pairs = |rows: Vec<Vec<Option<String>>>| {
        let pairs = rows.into_iter().map(|row| {
            let mut row = row.into_iter().map(Option::unwrap_or_default);
            (
                row.next().unwrap_or_default(),
                row.next().unwrap_or_default(),
            )
        });
        pairs.collect::<Vec<_>>()
    };
    let names = format!(
        "{said} SELECT pg_catalog.concat_ws(' ', kind, name), pg_catalog.left(pg_catalog.md5({all}), 8) FROM said ORDER BY 1, 2"
    );
    let names = pairs(session.query(&names).await?.rows());
    let sums = format!(
        "{said} SELECT kind, pg_catalog.concat_ws(' ', pg_catalog.count(*), pg_catalog.md5(pg_catalog.string_agg({all}, ', ' \
         ORDER BY ({all}) COLLATE \"C\"))) FROM said GROUP BY kind ORDER BY kind COLLATE \"C\""
    );
    let sums = pairs(session.query(&sums).await?.rows());
    let version = version.and_then(|version| version.parse().ok());
    Ok(Catalog::new(form(version.unwrap_or_default()), sums, names))
}

/// Definitions, and as of when.
struct Read {
    catalog: Catalog,
    snapshot: Snapshot,
    end: Lsn,
}

async fn read_now(target: Target, managers: Vec<String>) -> Result<Read, WireError> {
    let mut session = Postgres::connect(&target, "understudy mirror definitions").await?;
    let set = "SET lock_timeout = '1s'; SET statement_timeout = '20s'; SET search_path = ''";
    session.query(set).await?;
    let mut is_between = is_true(session.query(BETWEEN).await?);
    let began = session
        .query(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_catalog.pg_current_snapshot()",
        )
        .await?;
    is_between |= is_true(session.query(BETWEEN).await?);
    if is_between {
        return Err(unknown("an index is being dropped CONCURRENTLY"));
    }
    let catalog = read(&mut session, &managers).await?;
    let end = session
        .query("SELECT pg_catalog.pg_current_wal_insert_lsn()")
        .await?;
    let snapshot = began.value().as_deref().and_then(Snapshot::parse);
    let end = end.value().as_deref().and_then(Lsn::parse);
    match (snapshot, end) {
        (Some(snapshot), Some(end)) => Ok(Read {
            catalog,
            snapshot,
            end,
        }),
        _ => Err(unknown(
            "the member does not say as of when its definitions are",
        )),
    }
}

fn is_true(reply: Reply) -> bool {
    reply.value().as_deref() == Some("t")
}

fn unknown(why: &str) -> WireError {
    WireError::Lost(std::io::Error::other(why))
}

/// The definitions of one epoch.
pub struct Definitions {
    target: Target,
    managers: Vec<String>,
    /// Transactions that have defined something since definitions were logged last.
    defined: Vec<u32>,
    due: Instant,
    reading: Option<JoinHandle<Result<Read, WireError>>>,
    read: Option<Read>,
}

impl Definitions {
    /// Of a member.
    pub fn new(member: &Member) -> Definitions {
        Definitions {
            target: member.target.clone(),
            managers: member.managers.clone(),
            defined: Vec::new(),
            due: Instant::now() + SOON,
            reading: None,
            read: None,
        }
    }

    /// A transaction that has defined something is about to be logged.
    pub fn defined(&mut self, xid: u32) {
        self.defined.push(xid);
        self.due = self.due.min(Instant::now() + SOON);
    }

    /// Reads them later, and nothing of before.
    pub fn postpone(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
        self.read = None;
        self.due = Instant::now() + SOON;
    }

    /// Waits until there may be something to log.
    pub async fn ready(&mut self) {
        if self.read.is_some() {
            // It waits for the stream.
            return std::future::pending().await;
        }
        if self.reading.is_none() {
            tokio::time::sleep_until(self.due).await;
            let reading = read_now(self.target.clone(), self.managers.clone());
            self.reading = Some(tokio::spawn(reading));
        }
        let Some(reading) = &mut self.reading else {
            return;
        };
        let done = reading.await;
        self.reading = None;
        match done {
            Ok(Ok(read)) => self.read = Some(read),
            Ok(Err(error)) => {
                tracing::debug!(%error, "definitions cannot be read now; trying again");
                self.due = Instant::now() + SOON;
            }
            Err(_) => self.due = Instant::now() + SOON,
        }
    }

    /// Definitions that are those of this place of the log, to which the stream has been given up to `sent`: the log has all commits up to
    /// the position that comes with them.
    pub fn take(&mut self, sent: Lsn) -> Option<(Catalog, Lsn)> {
        let read = self.read.take_if(|read| read.end <= sent)?;
        let all_seen = self.defined.iter().all(|xid| read.snapshot.sees(*xid));
        if !all_seen {
            self.due = Instant::now() + SOON;
            return None;
        }
        self.defined.clear();
        self.due = Instant::now() + EVERY;
        Some((read.catalog, read.end))
    }
}

impl Drop for Definitions {
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}
