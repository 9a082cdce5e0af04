//! Re-protection: a spare takes the place of a dead standby, and the dead one comes back without a copy.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::Instant;

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_spare_replaces_a_dead_standby_and_stays() -> Result<()> {
    let mut stage = Stage::with_options("spare", &["north", "south", "east"], |options| {
        options.spares = vec!["east".into()];
        options.heartbeat = "fast".into();
    })
    .await?;
    expect(&stage, "north", |status| {
        let spare = node(status, "east")["role"] == "spare";
        spare && status["protection"]["level"] == "protected"
    })
    .await?;

    // The standby vanishes: the spare is warm without anybody asking, and says how long that took.
    stage.cluster.kill_node("south").context("it runs")?;
    expect(&stage, "north", |status| {
        let came = node(status, "east");
        let restored = status["protection"]["restored_after_ms"].is_u64();
        came["role"] == "standby" && came["state"] == "warm" && restored
    })
    .await?;
    stage.commits(50).await?;

    // It comes back as a standby, and the spare stays one.
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    expect(&stage, "north", |status| {
        let standby = |name| node(status, name)["role"] == "standby";
        standby("south") && standby("east") && status["protection"]["warm"] == 2
    })
    .await?;

    // What is written down of a takeover.
    let (dead, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    stage.commits(50).await?;
    let config = stage.cluster.node(&active)?.config.clone();
    let history = json(&understudy(&["history", "--json"], &config)?)?;
    let last = history.as_array().and_then(|all| all.last());
    let last = last.context("no history")?;
    ensure!(last["cause"] == "failover", "{last:#}");
    ensure!(last["decided_by"] == "automatic", "{last:#}");
    ensure!(last["previous"] == dead.as_str(), "{last:#}");
    ensure!(last["old_active"]["state"] == "serving", "{last:#}");
    let phases: Vec<&str> = last["phases"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|phase| phase["phase"].as_str())
        .collect();
    let expected = ["detect", "fence", "log_tail", "replay", "promote"];
    ensure!(phases == expected, "{last:#}");
    let lsn = |of: &Value| serde_json::from_value::<volume::lsn::Lsn>(of.clone()).ok();
    let (synced, end) = (lsn(&last["lsns"]["synced"]), lsn(&last["log_end"]));
    let promoted = lsn(&last["lsns"]["promoted"]);
    ensure!(synced.is_some() && synced <= end, "{last:#}");
    ensure!(end <= promoted, "{last:#}");
    stage.verify().await
}

fn node<'s>(status: &'s Value, name: &str) -> &'s Value {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let mut found = nodes.filter(|node| node["name"] == name);
    found.next().unwrap_or(&Value::Null)
}

/// Waits until what a node says of the cluster is as wanted.
async fn expect(stage: &Stage, asked: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let config = stage.cluster.node(asked)?.config.clone();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = json(&understudy(&["status", "--json"], &config)?)?;
        if wanted(&status) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not in time: {status:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
