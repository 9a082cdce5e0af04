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
use crate::core::verifying::Verified;
use compare::{Found, Pair, Side, Table};

pub use crate::core::verifying::Verdict;

/// Time for which a command's comparison may hold writers: until transactions have ended, and the standby has them.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for one that nobody has asked for: it can be done later.
const PATIENCE_BY_SCHEDULE: Duration = Duration::from_secs(2);
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
        if is_due && let Err(why) = verify_within(&hub, PATIENCE_BY_SCHEDULE).await {
            tracing::warn!(why, "the members cannot be compared now; trying again");
            *comparisons.hindrance.lock() = Some(why);
            comparisons.schedule.lock().postpone(hub.now_ms(), every_ms);
        }
    }
}

/// Compares them for a command.
pub async fn verify(hub: &Arc<Hub>) -> Result<String, String> {
    let verdict = verify_within(hub, PATIENCE).await?;
    serde_json::to_string(&verdict).map_err(|error| error.to_string())
}

/// Compares them, and remembers the result. Writers are held for `patience` at most.
async fn verify_within(hub: &Hub, patience: Duration) -> Result<Verdict, String> {
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

/// Compares them until they are equal, or a difference has been there in several snapshots.
async fn compare_members(hub: &Hub, patience: Duration) -> Result<Verdict, String> {
    let mut verdict = Verdict::default();
    let mut compared: BTreeMap<Table, u64> = BTreeMap::new();
    let mut found: Option<Found> = None;
    for _ in 0..ROUNDS {
        let mut next = match compare_once(hub, patience, found.as_ref(), &mut verdict).await {
            Ok(next) => next,
            // What cannot be looked at again is told: nobody would hear of it otherwise.
            Err(_) if found.as_ref().is_some_and(Found::differs) => break,
            Err(why) => return Err(why),
        };
        compared.append(&mut next.compared);
        let is_settled = next.is_settled();
        found = Some(next);
        if is_settled {
            break;
        }
    }
    let found = found.unwrap_or_default();
    if !found.given_up.is_empty() && !found.differs() {
        let tables: Vec<String> = found.given_up.into_iter().collect();
        return Err(format!(
            "others wait for locks of tables that are being compared, and get them: {}; try again",
            tables.join(", ")
        ));
    }
    verdict.tables = compared.len() as u64;
    verdict.rows = compared.values().sum();
    let differences = found.differences.into_values().chain(found.defined);
    verdict.differences = differences.collect();
    verdict.equal = verdict.differences.is_empty();
    Ok(verdict)
}

/// Compares snapshots of this moment.
async fn compare_once(
    hub: &Hub,
    patience: Duration,
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

/// Takes both snapshots at one position of the log; says which, and for how long writers were held.
async fn hold(hub: &Hub, pair: &mut Pair, patience: Duration) -> Result<(u64, Duration), String> {
    // Nobody is held for a standby that is not there.
    let deadline = Instant::now() + patience;
    while !hub.look(|manager| manager.follower().is_some_and(|(_, is_standby)| is_standby)) {
        must_be_primary(hub)?;
        if Instant::now() > deadline {
            return Err("there is no standby that has everything".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _gate = hub.verifications.gate.lock().await;
    must_be_primary(hub)?;
    let started = Instant::now();
    hub.close_gate();
    // A member that hangs answers nothing, and nobody waits for that.
    let until = started + patience + Duration::from_secs(1);
    let held = tokio::time::timeout_at(until, hold_rows(hub, pair, started + patience));
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
