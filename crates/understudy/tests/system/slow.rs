//! A standby that falls far behind begins anew at the newest seal, and loses nothing by that; or the
//! active waits for it. One whose replay is paused takes over all the same.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use serde_json::Value;

use crate::stage::{Stage, TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_far_behind_skips_and_can_take_over() -> Result<()> {
    let mut stage = Stage::with_options("slow", &["north", "south"], |options| {
        options.standby.push("max_lag = \"4MiB\"".into());
        let buffers = ("shared_buffers".to_owned(), "4MB".to_owned());
        options.parameters.push(buffers);
    })
    .await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();

    // Redo stands still while the log grows and is sealed.
    let paused = connect(&stage.cluster.server(&standby)?.config()).await?;
    paused.batch_execute("SELECT pg_wal_replay_pause()").await?;
    let skips = wait_skipped(&stage, &active, &standby).await?;
    let why = skips["last"].as_str().unwrap_or_default();
    ensure!(why.contains("more than 4MiB"), "{skips}");
    drop(paused);

    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let answer = answer(&stage, &standby).await?;
    println!("{standby} skipped: {why}; then: {}", answer["prefetch"]);
    ensure!(answer["prefetch"]["hot_left"].is_u64(), "{answer}");
    stage.commits(100).await?;
    let (dead, killed) = stage.kill_active().await?;
    ensure!(dead == active, "{dead} is active, not {active}");
    let outage = stage.outage_after(killed).await?;
    println!("{dead} killed: {:?} without commits", outage.length());
    stage.commits(100).await?;
    stage.verify().await
}

/// The takeover waited two minutes for a replay that nobody resumed, and then threw the standby away.
// hazard: NODE-9
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_whose_replay_is_paused_takes_over() -> Result<()> {
    let mut stage = Stage::set("replay-paused").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    let operator = connect(&stage.cluster.server(&standby)?.config()).await?;
    operator
        .batch_execute("SELECT pg_wal_replay_pause()")
        .await?;
    stage.commits(200).await?;

    let (dead, killed) = stage.kill_active().await?;
    ensure!(dead == active, "{dead} is active, not {active}");
    let outage = stage.outage_after(killed).await?.length();
    println!("{dead} killed while {standby} was paused: {outage:?} without commits");
    let most = Duration::from_secs(30);
    ensure!(outage < most, "{outage:?}, and {standby} was only paused");
    stage.commits(100).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn an_active_told_to_wait_holds_commits_and_lets_them_go() -> Result<()> {
    let mut stage = Stage::with_options("wait", &["north", "south"], |options| {
        let lines = ["slow = \"wait\"", "slow_after = \"4MiB\""];
        options.standby.extend(lines.map(str::to_owned));
    })
    .await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    let paused = connect(&stage.cluster.server(&standby)?.config()).await?;
    paused.batch_execute("SELECT pg_wal_replay_pause()").await?;

    // One message is more than a standby may lack. It moved a moment ago, so it is waited for; as it
    // stands still for long, it is not any more, or this would never end.
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let log = "SELECT pg_logical_emit_message(true, 'much', repeat('x', 6000000))";
    client.batch_execute(log).await?;
    stage.commits(100).await?;
    let waits = answer(&stage, &active).await?["waits"].clone();
    println!("{active} waited: {waits}");
    ensure!(waits["count"].as_u64() > Some(0), "{waits}");
    ensure!(waits["total_ms"].as_u64() >= Some(1000), "{waits}");

    paused
        .batch_execute("SELECT pg_wal_replay_resume()")
        .await?;
    drop(paused);
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    stage.verify().await
}

/// Makes log and seals until the standby says that it skipped.
async fn wait_skipped(stage: &Stage, active: &str, standby: &str) -> Result<Value> {
    let client = connect(&stage.cluster.server(active)?.config()).await?;
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        let log = "SELECT pg_logical_emit_message(false, 'much', repeat('x', 1000000)) \
                   FROM generate_series(1, 2)";
        client.batch_execute(log).await?;
        client.batch_execute("CHECKPOINT").await?;
        let answer = answer(stage, standby).await?;
        if answer["skips"]["count"].as_u64() > Some(0) {
            return Ok(answer["skips"].clone());
        }
        ensure!(Instant::now() < deadline, "no skip: {answer}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a node says of itself.
async fn answer(stage: &Stage, node: &str) -> Result<Value> {
    let found = stage.status_of(node).await?;
    Ok(found.map(|node| node["answer"].clone()).unwrap_or_default())
}
