//! A standby's memory: it has what the active has, also what no log mentions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use serde_json::Value;

use crate::stage::{Stage, TIMEOUT};

/// Blocks that only queries read, at least.
const READ_BLOCKS: u64 = 300;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_new_standby_is_as_warm_as_the_active() -> Result<()> {
    let mut stage = Stage::with_options("warmth", &["north", "south"], |options| {
        options.memory.push("warm_every = \"2s\"".into());
        let buffers = ("shared_buffers".to_owned(), "32MB".to_owned());
        options.parameters.push(buffers);
    })
    .await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    read_much(&stage, &active).await?;

    // What it had is gone; nothing in the log that it replays names what is only read.
    stage
        .cluster
        .kill_node(&standby)
        .context("it does not run")?;
    stage.commits(50).await?;
    stage.cluster.start_node(&standby)?;
    let warmth = wait_warm(&stage, &standby).await?;
    println!("{standby} is warm: {warmth}");

    let (_, killed) = stage.kill_active().await?;
    let outage = stage.outage_after(killed).await?;
    println!("{:?} without commits", outage.length());
    stage.commits(100).await?;
    stage.verify().await
}

/// Fills a table and reads it, so that it is in the active's buffers.
async fn read_much(stage: &Stage, active: &str) -> Result<()> {
    let client = connect(&stage.cluster.server(active)?.config()).await?;
    client
        .batch_execute(
            "CREATE TABLE read_mostly AS SELECT n, repeat('x', 700) AS text FROM generate_series(1, 3500) n;
             CHECKPOINT;
             SELECT count(*), max(text) FROM read_mostly;",
        )
        .await?;
    Ok(())
}

/// Waits until the standby says that it has nearly all of what the active has.
async fn wait_warm(stage: &Stage, standby: &str) -> Result<Value> {
    let deadline = Instant::now() + 2 * TIMEOUT;
    let mut last = Value::Null;
    loop {
        if let Some(node) = stage.status_of(standby).await? {
            last = node["answer"]["warmth"].clone();
        }
        let count = |name: &str| last[name].as_u64().unwrap_or(0);
        let is_much = count("hot_blocks") >= READ_BLOCKS && count("in_buffers") >= READ_BLOCKS;
        if is_much && last["percent"].as_f64().is_some_and(|p| p >= 90.0) {
            return Ok(last);
        }
        ensure!(
            Instant::now() < deadline,
            "{standby} does not get warm: {last}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
