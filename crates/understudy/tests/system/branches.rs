//! What a dead epoch left in the log behind the point where the next one took over: nobody may replay it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use dax::client::Client;
use dax::ids::{BlockKey, Generation};
use dax::storage::Storage;
use node::config::Config;
use tokio_postgres::Client as Session;
use volume::seal::{Base, load_seals};

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT};
use crate::verbs::until;

/// What one transaction logs of which only one zone hears.
const DEAD_BYTES: u64 = 1 << 20;

/// The dead branch is on one zone: a megabyte and a commit that was never acknowledged. A takeover without that
/// zone ends the log before it. From then on the zone is part of every quorum: of a standby that attaches before
/// the fork, of a takeover on the next timeline, and of one that begins with the same seal as the first.
// hazard: WAL-3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn log_that_a_dead_epoch_left_behind_the_takeover_is_never_replayed() -> Result<()> {
    let mut stage = Stage::with_options("branches", &["north", "south"], |options| {
        // Only commits flush the log; and all begin before the fork, at the same seal.
        let patient = [("wal_writer_delay", "10s"), ("checkpoint_timeout", "1h")];
        let patient = patient.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(patient);
    })
    .await?;
    let first = stage.cluster.wait_active(TIMEOUT).await?;
    let second = stage.cluster.names().find(|name| **name != first);
    let second = second.context("two nodes")?.to_owned();
    let dead = leave_dead_branch(&mut stage, &first).await?;

    stage.cluster.kill_node(&first).context("it runs")?;
    stage.cluster.kill_zone(1).context("it runs")?;
    let killed = stage.clock.now();
    for zone in [2, 3] {
        stage.cluster.start_zone(zone)?;
    }
    stage.outage_after(killed).await?;
    expect_no_dead_rows(&stage, &second).await?;
    let end = log_end(&stage, &second)?;
    ensure!(end < dead.end, "the log ends at {end:#x}: {dead:x?}");
    stage.commits(100).await?;

    // From now on every quorum needs the zone that has the dead branch.
    stage.cluster.start_zone(1)?;
    stage.cluster.kill_zone(2).context("it runs")?;
    stage.commits(100).await?;
    ensure!(is_stored(&stage, &second, &dead).await?, "{dead:x?}");
    stage.cluster.start_node(&first)?;
    stage.cluster.wait_follows(&first, TIMEOUT).await?;
    expect_no_dead_rows(&stage, &first).await?;

    let (killed_node, killed) = stage.kill_active().await?;
    ensure!(killed_node == second, "{killed_node} was active");
    stage.outage_after(killed).await?;
    expect_no_dead_rows(&stage, &first).await?;
    stage.commits(100).await?;

    stage.cluster.kill_node(&first).context("it runs")?;
    let killed = stage.clock.now();
    stage.cluster.start_node(&second)?;
    stage.outage_after(killed).await?;
    expect_no_dead_rows(&stage, &second).await?;
    ensure!(is_stored(&stage, &second, &dead).await?, "{dead:x?}");
    stage.cluster.start_zone(2)?;
    stage.cluster.start_node(&first)?;
    stage.cluster.wait_follows(&first, TIMEOUT).await?;
    expect_no_dead_rows(&stage, &first).await?;
    stage.commits(100).await?;
    stage.verify().await
}

/// Where the dead branch is.
#[derive(Debug)]
struct DeadBranch {
    /// A segment of the log, and a byte in it that is in the middle of the branch.
    segment: String,
    offset: u64,
    /// The end of the log as the active had it.
    end: u64,
}

/// Has the active log a transaction when one zone is left, and gives it the time to arrive there.
async fn leave_dead_branch(stage: &mut Stage, active: &str) -> Result<DeadBranch> {
    // Nobody else shall want the log flushed: one who waits for that keeps all others waiting.
    stage.churn.take().context("churn")?.stop().await;
    let server = stage.cluster.server(active)?.config();
    let (holder, writer, observer) = (
        connect(&server).await?,
        connect(&server).await?,
        connect(&server).await?,
    );
    writer.batch_execute("CREATE TABLE dead (n int)").await?;
    // With one zone nothing can be read that the server does not have in memory.
    writer
        .batch_execute(&transaction("INSERT INTO dead VALUES (0)", "ROLLBACK"))
        .await?;
    writer
        .batch_execute("SELECT pg_switch_wal(); CHECKPOINT")
        .await?;
    let all = "BEGIN; LOCK TABLE understudy_ledger, pgbench_accounts, pgbench_branches, pgbench_tellers, \
               pgbench_history IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(all).await?;
    let before = log_position(&observer).await?;

    for zone in [2, 3] {
        stage.cluster.kill_zone(zone).context("it runs")?;
    }
    let transaction = transaction("INSERT INTO dead VALUES (1)", "COMMIT");
    let commit = tokio::spawn(async move { writer.batch_execute(&transaction).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(!commit.is_finished(), "the commit was answered");
    let after = log_position(&observer).await?;
    ensure!(
        after.end - before.end > DEAD_BYTES,
        "{before:x?} {after:x?}"
    );
    ensure!(after.segment == before.segment, "{before:x?} {after:x?}");
    // With the node the sessions end.
    drop(holder);
    Ok(DeadBranch {
        offset: (before.offset + after.offset) / 2,
        ..after
    })
}

/// Much log, and an end.
fn transaction(statement: &str, end: &str) -> String {
    let message =
        format!("SELECT pg_logical_emit_message(true, 'dead', repeat('x', {DEAD_BYTES}))");
    format!("BEGIN; {statement}; {message}; {end}")
}

async fn log_position(session: &Session) -> Result<DeadBranch> {
    let sql = "SELECT file_name, file_offset::int8, (pg_current_wal_insert_lsn() - '0/0')::int8 \
               FROM pg_walfile_name_offset(pg_current_wal_insert_lsn())";
    let row = session.query_one(sql, &[]).await?;
    Ok(DeadBranch {
        segment: row.get(0),
        offset: row.get::<_, i64>(1) as u64,
        end: row.get::<_, i64>(2) as u64,
    })
}

/// Checks that a node's server has nothing of the transaction that nobody was told the end of. A standby cancels a read whose rows redo
/// removes, so it is asked until it answers.
async fn expect_no_dead_rows(stage: &Stage, node: &str) -> Result<()> {
    let server = stage.cluster.server(node)?.config();
    let look = async || {
        let session = connect(&server).await?;
        let rows = session.query_one("SELECT count(*) FROM dead", &[]).await?;
        Ok(rows.get(0))
    };
    let rows: i64 = until("rows are counted", look, |_| true).await?;
    ensure!(rows == 0, "{node} has replayed the dead branch");
    Ok(())
}

/// Where the log ended at the last takeover.
fn log_end(stage: &Stage, node: &str) -> Result<u64> {
    let config = &stage.cluster.node(node)?.config;
    let history = json(&understudy(&["history", "--json"], config)?)?;
    let last = history.as_array().and_then(|entries| entries.last());
    let end = last.and_then(|entry| entry["log_end"].as_u64());
    end.context("no end of the log")
}

/// True if a quorum of the zones still has the log of the dead branch, where nobody may look at it.
async fn is_stored(stage: &Stage, node: &str, dead: &DeadBranch) -> Result<bool> {
    let config = Config::load(&stage.cluster.node(node)?.config)?;
    let storage: Arc<dyn Storage> = Client::connect(config.cluster.client("test")?).await?;
    let seals = load_seals(&storage).await?;
    let base = Base::load(&storage, seals.last().context("no seal")?).await?;
    let file = base
        .namespace
        .resolve(&format!("pg_wal/{}", dead.segment))?;
    let block = dead.offset / u64::from(storage.settings().block_size_bytes);
    let found = storage
        .read(BlockKey::new(file, block), Generation::SINGLE)
        .await?;
    Ok(found.is_some_and(|found| found.data.iter().filter(|byte| **byte == b'x').count() > 1000))
}
