//! Prepared transactions whose log the active has removed.

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;

use crate::stage::{Stage, TIMEOUT};
use crate::verbs::until;

/// Prepares a transaction, and lets the active remove the segment of the log that has it. Its state is in a file there then.
async fn prepare(stage: &mut Stage, name: &str) -> Result<()> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let prepare =
        format!("BEGIN; INSERT INTO prepared VALUES ('{name}'); PREPARE TRANSACTION '{name}'");
    client.batch_execute(&prepare).await?;
    let segment = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
    let segment: String = client.query_one(segment, &[]).await?.get(0);
    let look = async || {
        // One at a time: a standby replays checkpoints as they come.
        client.batch_execute("SELECT pg_switch_wal()").await?;
        stage.commits(20).await?;
        client.batch_execute("CHECKPOINT").await?;
        let there = "SELECT EXISTS (SELECT FROM pg_ls_waldir() WHERE name = $1)";
        Ok(client.query_one(there, &[&segment]).await?.get(0))
    };
    until("the segment is removed", look, |there: &bool| !there).await?;
    Ok(())
}

/// It is there on the new active, and can be committed.
async fn commit(stage: &mut Stage, name: &str) -> Result<()> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    client
        .batch_execute(&format!("COMMIT PREPARED '{name}'"))
        .await?;
    let count = "SELECT count(*) FROM prepared WHERE name = $1";
    let count: i64 = client.query_one(count, &[&name]).await?.get(0);
    ensure!(count == 1, "{name}: {count} rows");
    Ok(())
}

/// PostgreSQL reads the state of a prepared transaction from the log when it is promoted, unless a restartpoint has written it into a
/// file. The segment was gone, the promotion failed ("requested WAL segment has already been removed"), and the node began at a seal:
/// nothing was lost, but nobody served for eight seconds, and commits in doubt stayed unknown.
// hazard: NODE-15
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_transaction_whose_log_was_removed_outlives_takeovers() -> Result<()> {
    let mut stage = Stage::with_options("prepared", &["north", "south"], |options| {
        let more = ("max_prepared_transactions".to_owned(), "8".to_owned());
        options.parameters.push(more);
    })
    .await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    client
        .batch_execute("CREATE TABLE prepared (name text)")
        .await?;
    drop(client);

    prepare(&mut stage, "before a handover").await?;
    let config = stage.cluster.node(&active)?.config.display().to_string();
    let order = async || {
        let done = stage
            .cluster
            .run(&["switchover", "--config", &config])
            .await;
        Ok(done.is_ok())
    };
    until("it is handed over", order, |done| *done).await?;
    commit(&mut stage, "before a handover").await?;

    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let other = if active == "north" { "south" } else { "north" };
    stage.cluster.wait_follows(other, TIMEOUT).await?;
    prepare(&mut stage, "before a kill").await?;
    let (_, killed) = stage.kill_active().await?;
    let outage = stage.outage_after(killed).await?;
    println!("after a kill nobody served for {outage:?}");
    commit(&mut stage, "before a kill").await?;
    let log = stage.cluster.logs().join(format!("{other}.log"));
    let log = std::fs::read_to_string(log).context("the log")?;
    ensure!(!log.contains("already been removed"), "a promotion failed");
    stage.verify().await
}
