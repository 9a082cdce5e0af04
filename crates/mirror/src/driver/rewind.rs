//! The return of a member that has commits of its own which the log has not: they are undone, in place of a copy of the other member.
//!
//! ```text
//!   commits of the member alone ──▶ core::rewind ──▶ keys ──▶ a snapshot of the other member, all of which the log has ──▶ one
//!   transaction in replica role that undoes them and says so ──▶ the manager looks at its member anew, and follows the log
//! ```
//!
//! Invariant: that transaction says up to where the member's commits are undone, so it happens once whatever breaks, and they are never
//! logged. What cannot be shown to be right is refused, and the member is replaced by a copy.

use std::sync::atomic::Ordering;
use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use tokio::time::Instant;

use super::apply::Failed;
use super::definitions;
use super::hub::Hub;
use super::level::Surplus;
use super::rows::{self, Keys};
use super::state::{Contents, contents};
use super::verify::BEGIN;
use super::wire::{Postgres, WireError};
use crate::core::manager::Manager;
use crate::core::rewind::{Found, Refused, Rewind};
use crate::core::rows::{Lsn, Relation, Rows, Value};

/// More rows of the other member are not asked for one by one.
const MOST_ASKED: usize = 5_000;
/// So long it may take until nobody attends to the member.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The first number of what PostgreSQL itself has not made.
const FIRST_OWN: u32 = 16_384;

/// Why a member was not rewound.
#[derive(Debug, thiserror::Error)]
pub(super) enum RewindError {
    /// It may be tried again.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It cannot be.
    #[error("{0}")]
    Refused(String),
}

impl From<Refused> for RewindError {
    fn from(refused: Refused) -> RewindError {
        RewindError::Refused(refused.to_string())
    }
}

impl From<Failed> for RewindError {
    fn from(failed: Failed) -> RewindError {
        match failed {
            Failed::Wire(WireError::Server(said)) => {
                RewindError::Refused(format!("{}: {}", said.code, said.message))
            }
            Failed::Wire(error) => RewindError::Wire(error),
            Failed::Differs(why) => RewindError::Refused(why),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, RewindError> {
    Err(RewindError::Refused(why.into()))
}

/// Undoes the member's own commits; the manager looks at it anew then.
pub(super) async fn rewind(hub: &Hub, surplus: Surplus) -> Result<(), RewindError> {
    let Some(up_to) = surplus.commits.last().map(|(origin, _)| origin.end) else {
        return refused("its commits are not known");
    };
    let xids: Vec<u32> = surplus
        .commits
        .iter()
        .map(|(origin, _)| origin.xid)
        .collect();
    let mut ours = Postgres::connect(&hub.member.target, "understudy mirror rewind").await?;
    let mut commits: Vec<Rows> = surplus.commits.into_iter().map(|(_, rows)| rows).collect();
    let mut keys = Keys::default();
    for rows in &mut commits {
        keys.note(&mut ours, rows).await?;
    }
    let rewind = Rewind::of(commits)?;
    if rewind.asks().count() > MOST_ASKED {
        return refused("too many rows were changed");
    }
    ours.query(BEGIN).await?;
    for relation in rewind.asked_tables() {
        must_have_plain_key(&mut ours, relation).await?;
    }
    let other = hub
        .config
        .other_target()
        .map_err(std::io::Error::other)
        .map_err(WireError::from)?;
    let mut theirs = Postgres::connect(&other, "understudy mirror rewind").await?;
    theirs.query(BEGIN).await?;
    must_be_the_other(hub, &mut theirs).await?;
    must_be_defined_alike(hub, &mut ours, &mut theirs).await?;
    let found = find(&mut theirs, &rewind).await?;
    let unused = unused_sequences(&mut ours, &mut theirs).await?;
    let end = theirs
        .query("SELECT pg_catalog.pg_current_wal_insert_lsn()")
        .await?;
    let end = end.value().as_deref().and_then(Lsn::parse);
    ours.query("ROLLBACK").await?;
    let rows = rewind.rows(found)?;
    match end {
        Some(end) => rows::has_logged(&other, end).await?,
        None => return refused("the other member does not say where its WAL ends"),
    }
    let undone = rows::note_undone(up_to, &xids);
    execute(hub, &rows, &unused, &undone).await?;
    tracing::info!(commits = xids.len(), rows = rows.changes.len(), %up_to, "the member's own commits were undone");
    look_anew(hub).await;
    Ok(())
}

/// Rows are found at the other member by values of types that PostgreSQL itself has made: no client's code runs there for it.
async fn must_have_plain_key(
    session: &mut Postgres,
    relation: &Relation,
) -> Result<(), RewindError> {
    let keys = relation.columns.iter().filter(|(_, is_key)| *is_key);
    let keys: Vec<String> = keys.map(|(name, _)| escape_literal(name)).collect();
    let table = relation.quoted();
    let asked = format!(
        "SELECT pg_catalog.bool_and(atttypid OPERATOR(pg_catalog.<) {FIRST_OWN}::pg_catalog.oid) FROM pg_catalog.pg_attribute \
         WHERE attrelid = pg_catalog.to_regclass({}) AND attname IN ({})",
        escape_literal(&table),
        keys.join(", ")
    );
    match session.query(&asked).await?.value().as_deref() {
        Some("t") => Ok(()),
        _ => refused(format!("the key of {table} is of a type of your own")),
    }
}

/// The other member has what the log has.
async fn must_be_the_other(hub: &Hub, theirs: &mut Postgres) -> Result<(), RewindError> {
    let known = hub.look(Manager::log_of_zones);
    match contents(theirs, None).await? {
        Contents::Known {
            is_diverged: false,
            log,
            ..
        } if log.is_none() || known.is_none() || log == known => Ok(()),
        _ => refused("the other member is not the log's"),
    }
}

/// Nothing was defined since.
async fn must_be_defined_alike(
    hub: &Hub,
    ours: &mut Postgres,
    theirs: &mut Postgres,
) -> Result<(), RewindError> {
    let managers = &hub.member.managers;
    let here = definitions::read(ours, managers).await?;
    let there = definitions::read(theirs, managers).await?;
    if here.version != there.version {
        return refused("the members are of different major versions");
    }
    match there.difference(&here) {
        Some(why) => refused(why),
        None => Ok(()),
    }
}

/// The other member's rows that are asked for.
async fn find(theirs: &mut Postgres, rewind: &Rewind) -> Result<Vec<Option<Found>>, RewindError> {
    // What is as old as what it has executed of the log was there before it became primary.
    let youngest = theirs
        .query("SELECT pg_catalog.min(pg_catalog.age(xmin)) FROM understudy_mirror.applied")
        .await?;
    let youngest: Option<i64> = youngest.value().and_then(|age| age.parse().ok());
    let mut shorts = Vec::new();
    for relation in rewind.asked_tables() {
        let asked = format!(
            "SELECT reltoastrelid = 0 OR pg_catalog.pg_relation_size(reltoastrelid) = 0 FROM pg_catalog.pg_class \
             WHERE oid = pg_catalog.to_regclass({})",
            escape_literal(&relation.quoted())
        );
        let is_short = theirs.query(&asked).await?.value().as_deref() == Some("t");
        shorts.push((relation.quoted(), is_short));
    }
    let mut found = Vec::new();
    for (relation, key) in rewind.asks() {
        let row = theirs.query(&selected(relation, key)).await?.rows();
        let Some(mut columns) = row.into_iter().next() else {
            found.push(None);
            continue;
        };
        let age: Option<i64> = columns.pop().flatten().and_then(|age| age.parse().ok());
        let row = columns.into_iter().map(|column| match column {
            Some(text) => Value::Text(text.into_bytes()),
            None => Value::Null,
        });
        let name = relation.quoted();
        found.push(Some(Found {
            row: row.collect(),
            is_untouched: youngest
                .zip(age)
                .is_some_and(|(youngest, age)| age >= youngest),
            is_short: shorts.contains(&(name, true)),
        }));
    }
    Ok(found)
}

/// The query of the row with this key, and of its age.
fn selected(relation: &Relation, key: &[Vec<u8>]) -> String {
    let columns = relation.columns.iter();
    let names: Vec<String> = columns
        .clone()
        .map(|(name, _)| escape_identifier(name))
        .collect();
    let keys = columns.filter(|(_, is_key)| *is_key).zip(key);
    let which: Vec<String> = keys
        .map(|((name, _), value)| {
            let (name, value) = (escape_identifier(name), String::from_utf8_lossy(value));
            format!("{name} OPERATOR(pg_catalog.=) {}", escape_literal(&value))
        })
        .collect();
    format!(
        "SELECT {}, pg_catalog.age(xmin) FROM ONLY {} WHERE {}",
        names.join(", "),
        relation.quoted(),
        which.join(" AND ")
    )
}

/// Sequences of which only the member has used values: the statements that make them new again.
async fn unused_sequences(
    ours: &mut Postgres,
    theirs: &mut Postgres,
) -> Result<Vec<String>, RewindError> {
    const UNUSED: &str = "SELECT seqrelid::pg_catalog.regclass, seqstart, pg_catalog.pg_sequence_last_value(seqrelid) IS NULL \
        FROM pg_catalog.pg_sequence";
    let is_unused = |row: &[Option<String>]| row.get(2).cloned().flatten().as_deref() == Some("t");
    let here = ours.query(UNUSED).await?.rows();
    let used: Vec<_> = here
        .into_iter()
        .filter(|row| !is_unused(row))
        .filter_map(|row| row.into_iter().next().flatten())
        .collect();
    let there = theirs.query(UNUSED).await?.rows();
    let unused = there.into_iter().filter(|row| is_unused(row));
    let texts = unused.filter_map(|row| {
        let mut row = row.into_iter().flatten();
        let (name, start) = (row.next()?, row.next()?);
        used.contains(&name).then(|| {
            format!(
                "SELECT pg_catalog.setval({}::pg_catalog.regclass, {start}, false)",
                escape_literal(&name)
            )
        })
    });
    Ok(texts.collect())
}

/// Undoes it in one transaction, as the role that writes rows.
async fn execute(hub: &Hub, rows: &Rows, more: &[String], undone: &str) -> Result<(), RewindError> {
    let (member, life) = (&hub.member, hub.look(Manager::life));
    if member.runs_code(std::slice::from_ref(rows)).await? {
        return refused("a check, an index or a generated column calls a client's function");
    }
    let (writer, _) = member.writers(life).await?;
    let mut applier = member.applier(life, &writer).await?;
    let definitions = member.definitions.load(Ordering::Acquire);
    let executed = async {
        applier.begin(definitions)?;
        member.write_rows(&mut applier, definitions, rows).await?;
        for text in more {
            applier.write(text.clone()).await?;
        }
        // Nobody reads the stream, which a commit would wait for.
        let commit = format!("SET LOCAL synchronous_commit = 'local'; {undone}; COMMIT");
        applier.session.query(&commit).await?;
        Ok::<(), Failed>(())
    };
    let executed = executed.await;
    if executed.is_err() {
        // It ends with its session.
        applier.give_up().await?;
        return executed.map_err(Into::into);
    }
    member.give_back(applier);
    Ok(())
}

/// Has the manager look at its member as at one that has just come.
async fn look_anew(hub: &Hub) {
    hub.replaces.store(false, Ordering::Release);
    hub.is_filling.store(true, Ordering::Release);
    let deadline = Instant::now() + LEAVES_WITHIN;
    while hub.look(|manager| manager.ledger().is_some()) && Instant::now() < deadline {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    hub.is_filling.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_asked_for_by_its_key() {
        let relation = Relation {
            schema: "public".to_owned(),
            name: "a\"b".to_owned(),
            is_full: false,
            is_by_key: true,
            columns: [("v", false), ("k", true), ("l", true)]
                .map(|(name, is_key)| (name.to_owned(), is_key))
                .to_vec(),
        };
        let key = ["1", "it's"].map(|text| text.as_bytes().to_vec());
        assert_eq!(
            selected(&relation, &key),
            "SELECT \"v\", \"k\", \"l\", pg_catalog.age(xmin) FROM ONLY \"public\".\"a\"\"b\" \
             WHERE \"k\" OPERATOR(pg_catalog.=) '1' AND \"l\" OPERATOR(pg_catalog.=) 'it''s'"
        );
    }
}
