//! Compares both members, table by table, at one position of the log, while clients go on; when a command asks for it, and by schedule.
//!
//! All writers are held for a moment: until the standby has what was committed, and both members have taken a snapshot. What is
//! compared then, at leisure, are the snapshots. A difference counts if later snapshots have it too ([`compare`]).

mod compare;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::counters::unix_ms;
use super::hub::Hub;
use super::rows;
use super::wire::WireError;
use crate::core::manager::Role;
use crate::core::verifying::{Findings, Verified};
use compare::{Found, Pair, Side, Table};

pub use crate::core::verifying::Verdict;

/// Patience of a comparison.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// A transaction that is open for longer is waited for before anybody is held.
    age: Duration,
    /// Time in which no such transaction must be open.
    free: Duration,
    /// Time for which writers are held at most: until transactions have ended, and the standby has them.
    held: Duration,
}

/// The patience of a command.
const BY_COMMAND: Patience = Patience {
    age: Duration::from_secs(5),
    free: Duration::from_secs(30),
    held: Duration::from_secs(30),
};
/// The patience of a comparison that nobody has asked for: it can be done later.
const BY_SCHEDULE: Patience = Patience {
    age: Duration::from_secs(1),
    free: Duration::from_secs(10),
    held: Duration::from_secs(2),
};
/// Snapshots that are compared at most until a difference counts.
const ROUNDS: usize = 3;
/// How often it is looked whether a comparison is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Begins it. A view, which executes something, may take the place of a table that was listed: releases that know how are told to
/// read none.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = ''; SET LOCAL TimeZone = 'UTC'; \
    SET LOCAL DateStyle = 'ISO'; SET LOCAL IntervalStyle = 'postgres'; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = 'hex'; \
    SET LOCAL lc_monetary = 'C'; SELECT pg_catalog.set_config(name, 'view, foreign-table', true) FROM pg_catalog.pg_settings \
    WHERE name = 'restrict_nonsystem_relation_kind'";

/// Compares the members by schedule, for as long as the process lives.
pub async fn watch(hub: Arc<Hub>) {
    let every_ms = u64::try_from(hub.config.verify_every.as_millis()).unwrap_or(u64::MAX);
    let comparisons = &hub.verifications;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (is_primary, has_standby) = hub.look(|manager| {
            let has_standby = manager.follower().is_some_and(|(_, is_standby)| is_standby);
            (manager.role() == Role::Primary, has_standby)
        });
        if !is_primary {
            comparisons.hindrance.lock().take();
        }
        let now_ms = hub.now_ms();
        let is_due = {
            let mut schedule = comparisons.schedule.lock();
            schedule.is_due(now_ms, every_ms, is_primary, has_standby)
        };
        if is_due && let Err(why) = verify_within(&hub, BY_SCHEDULE).await {
            tracing::warn!(why, "the members cannot be compared now; trying again");
            *comparisons.hindrance.lock() = Some(why);
            comparisons.schedule.lock().postpone(hub.now_ms(), every_ms);
        }
    }
}

/// Compares them for a command.
pub async fn verify(hub: &Arc<Hub>) -> Result<String, String> {
    let verdict = verify_within(hub, BY_COMMAND).await?;
    serde_json::to_string(&verdict).map_err(|error| error.to_string())
}

/// Compares them, and remembers the result.
async fn verify_within(hub: &Hub, patience: Patience) -> Result<Verdict, String> {
    let comparisons = &hub.verifications;
    let _turn = comparisons.turn.lock().await;
    let verdict = compare_members(hub, patience).await?;
    match verdict.equal {
        true => tracing::info!(
            tables = verdict.tables,
            rows = verdict.rows,
            "the members were compared, and are equal"
        ),
        false => tracing::error!(
            differences = ?verdict.differences,
            "the members were compared, and differ; an operator has to find out which of them is right"
        ),
    }
    *comparisons.last.lock() = Some(Verified::new(&verdict, unix_ms()));
    comparisons.hindrance.lock().take();
    let every_ms = u64::try_from(hub.config.verify_every.as_millis()).unwrap_or(u64::MAX);
    comparisons.schedule.lock().compared(hub.now_ms(), every_ms);
    Ok(verdict)
}

/// Compares them until they are equal, or a difference has been there in several snapshots. One that no later snapshot was looked at for
/// is no result, but the reason for which there is none.
async fn compare_members(hub: &Hub, patience: Patience) -> Result<Verdict, String> {
    let mut verdict = Verdict::default();
    let mut compared: BTreeMap<Table, u64> = BTreeMap::new();
    let mut found: Option<Found> = None;
    let (mut findings, mut hindrance) = (Findings::default(), None);
    for _ in 0..ROUNDS {
        let mut next = match compare_once(hub, patience, found.as_ref(), &mut verdict).await {
            Ok(next) => next,
            Err(why) => {
                hindrance = Some(why);
                break;
            }
        };
        compared.append(&mut next.compared);
        findings.look(next.things(), &next.given_up);
        let is_settled = next.is_settled();
        found = Some(next);
        if is_settled {
            break;
        }
    }
    let given_up = found.map(|found| found.given_up).unwrap_or_default();
    let differences = findings.verdict().map_err(|once| {
        format!(
            "a snapshot differs, and no later one could be compared: {}{}; try again",
            once.join("; "),
            hindrance
                .as_ref()
                .map_or_else(String::new, |why| format!(" ({why})"))
        )
    })?;
    if differences.is_empty() && !given_up.is_empty() {
        let tables: Vec<String> = given_up.into_iter().collect();
        return Err(format!(
            "others wait for locks of tables that are being compared, and get them: {}; try again",
            tables.join(", ")
        ));
    }
    if let Some(why) = hindrance.filter(|_| differences.is_empty()) {
        return Err(why);
    }
    verdict.tables = compared.len() as u64;
    verdict.rows = compared.values().sum();
    verdict.differences = differences;
    verdict.equal = verdict.differences.is_empty();
    Ok(verdict)
}

/// Compares snapshots of this moment.
async fn compare_once(
    hub: &Hub,
    patience: Patience,
    before: Option<&Found>,
    verdict: &mut Verdict,
) -> Result<Found, String> {
    let said = |error: WireError| error.to_string();
    must_be_primary(hub)?;
    let other = hub.config.other_target();
    let other = other.map_err(|error| error.to_string())?;
    let mut pair = Pair {
        ours: Side::connect(&hub.member.target).await.map_err(said)?,
        theirs: Side::connect(&other).await.map_err(said)?,
    };
    let (transaction, held) = hold(hub, &mut pair, patience).await?;
    verdict.transaction = transaction;
    verdict.held_ms += u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
    let compared = compare::compare(&mut pair, &hub.member.managers, before).await;
    compared.map_err(said)
}

fn must_be_primary(hub: &Hub) -> Result<(), String> {
    match hub.role() {
        Role::Primary => Ok(()),
        _ => Err("this manager is not primary; ask the other one".to_owned()),
    }
}

/// Waits until there is a standby, and nobody who writes would have to wait for a transaction that is open for long.
async fn must_be_free(hub: &Hub, patience: Patience) -> Result<(), String> {
    let deadline = Instant::now() + patience.free;
    loop {
        must_be_primary(hub)?;
        let has_standby = hub.look(|manager| manager.follower().is_some_and(|(_, is)| is));
        let age = hub.oldest_under_way();
        if has_standby && age <= patience.age {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(match has_standby {
                true => format!(
                    "transactions are open for too long, the oldest for {} s; end it, or try again",
                    age.as_secs()
                ),
                false => "there is no standby that has everything".to_owned(),
            });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Takes both snapshots at one position of the log; says which, and for how long writers were held.
async fn hold(hub: &Hub, pair: &mut Pair, patience: Patience) -> Result<(u64, Duration), String> {
    must_be_free(hub, patience).await?;
    let _gate = hub.verifications.gate.lock().await;
    must_be_primary(hub)?;
    let started = Instant::now();
    hub.close_gate();
    // A member that hangs answers nothing, and nobody waits for that.
    let until = started + patience.held + Duration::from_secs(1);
    let held = tokio::time::timeout_at(until, hold_rows(hub, pair, started + patience.held));
    let held = held
        .await
        .unwrap_or_else(|_| Err("a member does not answer in time".to_owned()));
    hub.open_gate();
    Ok((held?, started.elapsed()))
}

/// Takes both snapshots with nothing of any client's under way; says at which transaction.
async fn hold_rows(hub: &Hub, pair: &mut Pair, deadline: Instant) -> Result<u64, String> {
    while !hub.is_quiet() {
        if Instant::now() > deadline {
            return Err("transactions are open for too long; try again".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let patience = deadline.saturating_duration_since(Instant::now());
    rows::is_logged(&hub.member, &hub.capture, patience).await?;
    take_snapshots(hub, pair, deadline).await
}

/// Takes both snapshots as soon as the standby has what the log has.
async fn take_snapshots(hub: &Hub, pair: &mut Pair, deadline: Instant) -> Result<u64, String> {
    loop {
        let (last, floor) =
            hub.look(|manager| (manager.last(), manager.follower().map(|(floor, _)| floor)));
        if floor == Some(last) {
            let snapshots = async {
                for side in [&mut pair.ours, &mut pair.theirs] {
                    side.session.query(BEGIN).await?;
                    side.session.query("SELECT 1").await?;
                }
                Ok::<(), WireError>(())
            };
            snapshots.await.map_err(|error| error.to_string())?;
            return Ok(last.0);
        }
        if Instant::now() > deadline {
            return Err("the standby does not have what was committed; is there one?".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
