//! Compares both members, table by table, at one position of the log, while clients go on.
//!
//! All writers are held for a moment: until the standby has what was committed, and both members have taken a snapshot. What is
//! compared then, at leisure, are the snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postgres_protocol::escape::escape_identifier;
use serde::{Deserialize, Serialize};

use super::definitions;
use super::hub::Hub;
use super::rows;
use super::wire::{Postgres, WireError};
use crate::core::manager::Role;

/// How long writers are waited for, and the standby.
const PATIENCE: Duration = Duration::from_secs(30);

/// What comparing the members found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The members are equal.
    pub equal: bool,
    /// The last transaction that both have.
    pub transaction: u64,
    /// Tables that were compared.
    pub tables: u64,
    /// Rows that the primary's member has in them.
    pub rows: u64,
    /// What differs.
    pub differences: Vec<String>,
    /// How long writers were held, in milliseconds.
    pub held_ms: u64,
}

const TABLES: &str = "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE c.relkind IN ('r', 'm') AND c.relispopulated AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%' \
    AND n.nspname NOT IN ('information_schema', 'understudy_mirror') ORDER BY 1, 2";

const SEQUENCES: &str = "SELECT seqrelid::pg_catalog.regclass, pg_catalog.pg_sequence_last_value(seqrelid), seqincrement \
    FROM pg_catalog.pg_sequence JOIN pg_catalog.pg_class c ON c.oid = seqrelid WHERE c.relpersistence <> 't'";

/// Time in which sequences must be as far at the standby: they are logged after the transactions that have used them.
const PATIENCE_SEQUENCES: Duration = Duration::from_secs(5);

/// Begins it. A view, which executes something, may take the place of a table that was listed: releases that know how are told to
/// read none.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = ''; SET LOCAL TimeZone = 'UTC'; \
    SET LOCAL DateStyle = 'ISO'; SET LOCAL IntervalStyle = 'postgres'; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'; \
    SET LOCAL lc_monetary = 'C'; SELECT pg_catalog.set_config(name, 'view, foreign-table', true) FROM pg_catalog.pg_settings \
    WHERE name = 'restrict_nonsystem_relation_kind'";

/// Compares them.
pub async fn verify(hub: &Arc<Hub>) -> Result<String, String> {
    if hub.role() != Role::Primary {
        return Err("this manager is not primary; ask the other one".to_owned());
    }
    let said = |error: WireError| error.to_string();
    let other = hub
        .config
        .other_target()
        .map_err(|error| error.to_string())?;
    let mut ours = Postgres::connect(&hub.member.target, "understudy mirror verify")
        .await
        .map_err(said)?;
    let mut theirs = Postgres::connect(&other, "understudy mirror verify")
        .await
        .map_err(said)?;
    let started = tokio::time::Instant::now();
    let transaction = hold(hub, &mut ours, &mut theirs).await?;
    let mut verdict = compare(&mut ours, &mut theirs).await.map_err(said)?;
    let more = compare_definitions(hub, &mut ours, &mut theirs).await;
    verdict.differences.extend(more.map_err(said)?);
    verdict.equal = verdict.differences.is_empty();
    verdict.transaction = transaction.0;
    verdict.held_ms = u64::try_from((transaction.1 - started).as_millis()).unwrap_or(u64::MAX);
    serde_json::to_string(&verdict).map_err(|error| error.to_string())
}

/// Takes both snapshots at one position of the log; says which, and when writers went on.
async fn hold(
    hub: &Hub,
    ours: &mut Postgres,
    theirs: &mut Postgres,
) -> Result<(u64, tokio::time::Instant), String> {
    hub.close_gate();
    let held = hold_rows(hub, ours, theirs).await;
    hub.open_gate();
    Ok((held?, tokio::time::Instant::now()))
}

/// Takes both snapshots with nothing of any client's under way; says at which transaction.
async fn hold_rows(hub: &Hub, ours: &mut Postgres, theirs: &mut Postgres) -> Result<u64, String> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !hub.is_quiet() {
        if tokio::time::Instant::now() > deadline {
            return Err("transactions are open for too long; try again".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    rows::is_logged(&hub.member, &hub.capture, PATIENCE).await?;
    take_snapshots(hub, ours, theirs).await
}

/// Takes both snapshots as soon as the standby has what the log has.
async fn take_snapshots(
    hub: &Hub,
    ours: &mut Postgres,
    theirs: &mut Postgres,
) -> Result<u64, String> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (last, floor) =
            hub.look(|manager| (manager.last(), manager.follower().map(|(floor, _)| floor)));
        if floor == Some(last) {
            let snapshots = async {
                for session in [ours, theirs] {
                    session.query(BEGIN).await?;
                    session.query("SELECT 1").await?;
                }
                Ok::<(), WireError>(())
            };
            snapshots.await.map_err(|error| error.to_string())?;
            return Ok(last.0);
        }
        if tokio::time::Instant::now() > deadline {
            return Err("the standby does not have what was committed; is there one?".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn tables(session: &mut Postgres) -> Result<Vec<(String, String)>, WireError> {
    let rows = session.query(TABLES).await?.rows();
    Ok(rows
        .into_iter()
        .map(|row| {
            let mut row = row.into_iter().flatten();
            (
                row.next().unwrap_or_default(),
                row.next().unwrap_or_default(),
            )
        })
        .collect())
}

/// The rows of a table, and a sum of them that does not depend on their order. Not by a cast, which a table's owner may define: this
/// is a superuser's session.
async fn sum(session: &mut Postgres, table: &str) -> Result<(String, String), WireError> {
    let text = format!(
        "SELECT pg_catalog.count(*), pg_catalog.sum(pg_catalog.hashtextextended(pg_catalog.format('%s', t.*), 0)::numeric) \
         FROM ONLY {table} t"
    );
    let mut row = session.query(&text).await?.row().into_iter();
    Ok((
        row.next().flatten().unwrap_or_default(),
        row.next().flatten().unwrap_or_default(),
    ))
}

/// Differences of what is defined, and sequences that are behind.
async fn compare_definitions(
    hub: &Hub,
    ours: &mut Postgres,
    theirs: &mut Postgres,
) -> Result<Vec<String>, WireError> {
    let managers = &hub.member.managers;
    let here = definitions::read(ours, managers).await?;
    let there = definitions::read(theirs, managers).await?;
    let mut differences: Vec<String> = here.difference(&there).into_iter().collect();
    let wanted = sequences(ours).await?;
    let deadline = tokio::time::Instant::now() + PATIENCE_SEQUENCES;
    loop {
        let now = sequences(theirs).await?;
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
    let rows = session.query(SEQUENCES).await?.rows();
    let read = rows.into_iter().filter_map(|row| {
        let mut row = row.into_iter();
        let name = row.next()??;
        let value = row.next()?.and_then(|value| value.parse().ok());
        Some((name, (value, row.next()??.parse().ok()?)))
    });
    Ok(read.collect())
}

async fn compare(ours: &mut Postgres, theirs: &mut Postgres) -> Result<Verdict, WireError> {
    let (here, there) = (tables(ours).await?, tables(theirs).await?);
    let mut verdict = Verdict::default();
    let named = |one: &(String, String)| {
        format!(
            "{}.{}",
            escape_identifier(&one.0),
            escape_identifier(&one.1)
        )
    };
    for table in &there {
        if !here.contains(table) {
            verdict
                .differences
                .push(format!("only the standby has table {}", named(table)));
        }
    }
    for table in &here {
        if !there.contains(table) {
            verdict
                .differences
                .push(format!("only the primary has table {}", named(table)));
            continue;
        }
        let name = named(table);
        let (one, other) = tokio::try_join!(sum(ours, &name), sum(theirs, &name))?;
        verdict.tables += 1;
        verdict.rows += one.0.parse::<u64>().unwrap_or(0);
        if one != other {
            let told = format!(
                "table {name}: the primary has {} rows, the standby {}, or other ones",
                one.0, other.0
            );
            verdict.differences.push(told);
        }
    }
    verdict.equal = verdict.differences.is_empty();
    Ok(verdict)
}
