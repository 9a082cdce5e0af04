//! Compares two snapshots of the same transactions, and holds nobody up: a table's lock is given back when the table is compared, or as soon
//! as somebody else waits for it.
//!
//! Some changes are visible in an older snapshot (TRUNCATE, a rewrite, another column), so one member may show them before the other
//! one does. Such a difference is gone in the next snapshots, and a real one is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postgres_protocol::escape::escape_identifier;

use super::super::definitions;
use super::super::target::Target;
use super::super::wire::{Postgres, WireError};

/// Names of tables. One that inherits comes with its columns by their names: a copy has inherited ones first.
const TABLES: &str = "SELECT n.nspname, c.relname, (SELECT pg_catalog.string_agg(pg_catalog.format('t.%I', a.attname), ', ' \
      ORDER BY a.attname) FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid \
      WHERE i.inhrelid = c.oid AND i.inhseqno = 1 AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped) \
    FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.relkind IN ('r', 'm') AND c.relispopulated AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%' \
    AND n.nspname NOT IN ('information_schema', 'understudy_mirror') ORDER BY 1, 2";

const SEQUENCES: &str = "SELECT seqrelid::pg_catalog.regclass, pg_catalog.pg_sequence_last_value(seqrelid), seqincrement \
    FROM pg_catalog.pg_sequence JOIN pg_catalog.pg_class c ON c.oid = seqrelid WHERE c.relpersistence <> 't'";

/// Time in which sequences must be as far at the standby: they are logged after the transactions that have used them.
const PATIENCE_SEQUENCES: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody waits for a lock of the comparison's.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Begins what gives its locks back at its end; the snapshot stays.
const APART: &str = "SAVEPOINT one";
/// Ends it.
const GIVE_BACK: &str = "ROLLBACK TO one; RELEASE one";
/// A statement was cancelled.
const CANCELLED: &str = "57014";

/// A table's name, ready for SQL.
pub(super) type Table = String;

/// Two sessions with snapshots of the same transactions.
pub(super) struct Pair {
    pub(super) ours: Side,
    pub(super) theirs: Side,
}

/// One of them.
pub(super) struct Side {
    target: Target,
    pub(super) session: Postgres,
    pid: String,
    /// Columns of tables that inherit.
    columns: BTreeMap<Table, String>,
    /// The session that looks who waits, once that is needed.
    guard: Option<Postgres>,
}

/// Findings, by table.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Tables that were compared, with the rows that the primary's member has in them.
    pub(super) compared: BTreeMap<Table, u64>,
    pub(super) differences: BTreeMap<Table, String>,
    /// Tables whose comparison was given up, because somebody waited for their lock.
    pub(super) given_up: BTreeSet<Table>,
    /// Differences of definitions and sequences.
    pub(super) defined: Vec<String>,
}

impl Found {
    /// Everything is compared, and equal.
    pub(super) fn is_settled(&self) -> bool {
        self.given_up.is_empty() && !self.differs()
    }

    /// Something differs.
    fn differs(&self) -> bool {
        !(self.differences.is_empty() && self.defined.is_empty())
    }

    /// Differences by the thing that differs.
    pub(super) fn things(&self) -> BTreeMap<String, String> {
        let thing = |text: &String| {
            let thing = text
                .split_once(": ")
                .map_or(text.as_str(), |(thing, _)| thing);
            (thing.to_owned(), text.clone())
        };
        let mut things = self.differences.clone();
        things.extend(self.defined.iter().map(thing));
        things
    }

    /// True if this table is to be compared again.
    fn concerns(&self, table: &Table) -> bool {
        self.differences.contains_key(table) || self.given_up.contains(table)
    }
}

impl Side {
    pub(super) async fn connect(target: &Target) -> Result<Side, WireError> {
        const NAME: &str = "understudy mirror verify";
        let mut session = Postgres::connect(target, NAME).await?;
        let pid = session.query("SELECT pg_catalog.pg_backend_pid()").await?;
        Ok(Side {
            target: target.clone(),
            session,
            pid: pid.value().unwrap_or_default(),
            columns: BTreeMap::new(),
            guard: None,
        })
    }

    /// Tables of the database.
    async fn tables(&mut self) -> Result<BTreeSet<Table>, WireError> {
        self.session.query(APART).await?;
        let rows = self.session.query(TABLES).await?.rows();
        self.session.query(GIVE_BACK).await?;
        self.columns.clear();
        let mut tables = BTreeSet::new();
        for row in rows {
            let [Some(schema), Some(name), columns] = row.as_slice() else {
                continue;
            };
            let table = [schema, name].map(|part| escape_identifier(part)).join(".");
            if let Some(columns) = columns {
                self.columns.insert(table.clone(), columns.clone());
            }
            tables.insert(table);
        }
        Ok(tables)
    }

    /// The rows of a table, and a sum of them that does not depend on their order; nothing if the comparison is given up. Not by a cast,
    /// which a table's owner may define: this is a superuser's session.
    async fn sum(&mut self, table: &Table) -> Result<Option<(String, String)>, WireError> {
        let row = match self.columns.get(table) {
            Some(columns) => format!("ROW({columns})"),
            None => "t.*".to_owned(),
        };
        let text = format!(
            "{APART}; SELECT pg_catalog.count(*), \
             pg_catalog.sum(pg_catalog.hashtextextended(pg_catalog.format('%s', {row}), 0)::numeric) FROM ONLY {table} t; {GIVE_BACK}"
        );
        let row = match self.session.query(&text).await {
            Ok(reply) => reply.row(),
            Err(WireError::Server(said)) if said.code == CANCELLED => {
                self.session.query(GIVE_BACK).await?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut row = row.into_iter().map(Option::unwrap_or_default);
        Ok(Some((
            row.next().unwrap_or_default(),
            row.next().unwrap_or_default(),
        )))
    }
}

/// Cancels what a session does if somebody waits for a lock that it has; in any case if `must`. True if it was cancelled.
async fn free(
    target: &Target,
    guard: &mut Option<Postgres>,
    pid: &str,
    must: bool,
) -> Result<bool, WireError> {
    let session = match guard {
        Some(session) => session,
        None => guard.insert(Postgres::connect(target, "understudy mirror verify").await?),
    };
    let asked = session
        .query(&format!(
            "SELECT pg_catalog.pg_cancel_backend({pid}) WHERE {must} OR EXISTS (SELECT FROM pg_catalog.pg_locks waiting \
             JOIN pg_catalog.pg_locks held ON held.pid = {pid} AND held.granted AND held.locktype = 'relation' \
               AND held.database = waiting.database AND held.relation = waiting.relation \
             WHERE waiting.locktype = 'relation' AND NOT waiting.granted)"
        ))
        .await?;
    Ok(asked.value().as_deref() == Some("t"))
}

type Sums = (Option<(String, String)>, Option<(String, String)>);

/// The sums of both members.
async fn sums(pair: &mut Pair, table: &Table) -> Result<Sums, WireError> {
    let targets = [pair.ours.target.clone(), pair.theirs.target.clone()];
    let pids = [pair.ours.pid.clone(), pair.theirs.pid.clone()];
    let mut guards = [pair.ours.guard.take(), pair.theirs.guard.take()];
    let summed = {
        // Both are heard to their ends, or what is asked next would get the answer.
        let summing = async { tokio::join!(pair.ours.sum(table), pair.theirs.sum(table)) };
        tokio::pin!(summing);
        loop {
            tokio::select! {
                summed = &mut summing => break summed,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let mut is_freed = false;
            for at in [0, 1] {
                is_freed |= free(&targets[at], &mut guards[at], &pids[at], false).await?;
            }
            // One sum alone says nothing.
            for at in [0, 1].into_iter().filter(|_| is_freed) {
                free(&targets[at], &mut guards[at], &pids[at], true).await?;
            }
        }
    };
    [pair.ours.guard, pair.theirs.guard] = guards;
    Ok((summed.0?, summed.1?))
}

/// Compares tables and definitions: all of them, or those that `before` has found to differ.
pub(super) async fn compare(
    pair: &mut Pair,
    managers: &[String],
    before: Option<&Found>,
) -> Result<Found, WireError> {
    let mut found = Found::default();
    let concerns = |table: &&Table| before.is_none_or(|before| before.concerns(table));
    let (here, there) = (pair.ours.tables().await?, pair.theirs.tables().await?);
    for table in there.difference(&here).filter(concerns) {
        let told = format!("only the standby has table {table}");
        found.differences.insert(table.clone(), told);
    }
    for table in here.iter().filter(concerns) {
        if !there.contains(table) {
            let told = format!("only the primary has table {table}");
            found.differences.insert(table.clone(), told);
            continue;
        }
        let (Some(one), Some(other)) = sums(pair, table).await? else {
            found.given_up.insert(table.clone());
            continue;
        };
        let rows = one.0.parse().unwrap_or(0);
        found.compared.insert(table.clone(), rows);
        if one != other {
            let told = format!(
                "table {table}: the primary has {} rows, the standby {}, or other ones",
                one.0, other.0
            );
            found.differences.insert(table.clone(), told);
        }
    }
    if before.is_none_or(|before| !before.defined.is_empty()) {
        found.defined = compare_definitions(pair, managers).await?;
    }
    Ok(found)
}

/// Differences of definitions, and sequences that are behind.
async fn compare_definitions(
    pair: &mut Pair,
    managers: &[String],
) -> Result<Vec<String>, WireError> {
    let mut catalogs = Vec::new();
    for side in [&mut pair.ours, &mut pair.theirs] {
        side.session.query(APART).await?;
        catalogs.push(definitions::read(&mut side.session, managers).await?);
        side.session.query(GIVE_BACK).await?;
    }
    let mut differences: Vec<String> = catalogs[0].difference(&catalogs[1]).into_iter().collect();
    let wanted = sequences(&mut pair.ours.session).await?;
    let deadline = tokio::time::Instant::now() + PATIENCE_SEQUENCES;
    loop {
        let now = sequences(&mut pair.theirs.session).await?;
        let behind = wanted.iter().filter(|(name, (value, increment))| {
            let other = now.get(*name).and_then(|(value, _)| *value);
            match (value, other) {
                (Some(value), Some(other)) if *increment < 0 => other > *value,
                (Some(value), Some(other)) => other < *value,
                (value, other) => value.is_some() != other.is_some(),
            }
        });
        let say =
            |value: Option<i64>| value.map_or("nothing".to_owned(), |value| value.to_string());
        let behind: Vec<String> = behind
            .map(|(name, (value, _))| {
                let other = now.get(name).and_then(|(value, _)| *value);
                let (value, other) = (say(*value), say(other));
                format!("sequence {name}: the primary has given {value} last, the standby {other}")
            })
            .collect();
        if behind.is_empty() || tokio::time::Instant::now() > deadline {
            differences.extend(behind);
            return Ok(differences);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sequences: the last value, and by how much they are advanced.
async fn sequences(
    session: &mut Postgres,
) -> Result<BTreeMap<String, (Option<i64>, i64)>, WireError> {
    session.query(APART).await?;
    let rows = session.query(SEQUENCES).await?.rows();
    session.query(GIVE_BACK).await?;
    let read = rows.into_iter().filter_map(|row| {
        let mut row = row.into_iter();
        let name = row.next()??;
        let value = row.next()?.and_then(|value| value.parse().ok());
        Some((name, (value, row.next()??.parse().ok()?)))
    });
    Ok(read.collect())
}
