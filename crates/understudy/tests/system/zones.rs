//! Zones that die and come back under load.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use store::Network;

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn loss_of_one_zone_costs_nothing_and_of_two_only_time() -> Result<()> {
    let mut stage = Stage::set("zones").await?;
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    stage.commits(200).await?;

    stage.cluster.kill_zone(2).context("zone 2 runs")?;
    // What was on its way may still be answered; then nothing can be.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = stage.load.as_ref().context("load")?.acknowledged();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = stage.load.as_ref().context("load")?.acknowledged();
    ensure!(
        before == after,
        "{} commits with one zone of three",
        after - before
    );

    stage.cluster.start_zone(1)?;
    stage.commits(200).await?;
    stage.cluster.start_zone(2)?;
    stage.commits(200).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_takeover_with_one_zone_lost() -> Result<()> {
    let mut stage = Stage::set("zone-and-node").await?;
    stage.cluster.kill_zone(3).context("zone 3 runs")?;
    stage.commits(100).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    stage.cluster.start_zone(3)?;
    stage.commits(100).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn all_zones_killed_and_started_again() -> Result<()> {
    let mut stage = Stage::set("all-zones").await?;
    for zone in 1..=3 {
        stage.cluster.kill_zone(zone).context("it runs")?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let killed = stage.clock.now();
    for zone in 1..=3 {
        stage.cluster.start_zone(zone)?;
    }
    stage.outage_after(killed).await?;
    stage.commits(200).await?;
    stage.verify().await
}

/// A standby once waited for ever for zones that were gone, to take its claim back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn nodes_end_when_told_to_although_all_zones_are_gone() -> Result<()> {
    let mut stage = Stage::set("end-without-zones").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    for zone in 1..=3 {
        stage.cluster.kill_zone(zone).context("it runs")?;
    }
    let nodes = ["south", "north"];
    // Until the active sees that no heartbeat can be written.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for node in nodes {
        stage.cluster.stop_node(node, Duration::from_secs(30))?;
    }
    // What PostgreSQL still wanted to write then failed, and so did its shutdown.
    stage.expect_fenced(&active);
    for zone in 1..=3 {
        stage.cluster.start_zone(zone)?;
    }
    for node in nodes {
        stage.cluster.start_node(node)?;
    }
    stage.commits(100).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_zone_that_lost_its_disk_is_rebuilt_under_load() -> Result<()> {
    let mut stage = Stage::set("lost-disk").await?;
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    std::fs::remove_dir_all(stage.cluster.options().dir.join("zone-1"))?;
    stage.commits(100).await?;
    stage.cluster.start_zone(1)?;
    let rebuilt = |status: &Value| {
        let replicas = status["replicas"].as_array();
        let whole = |replica: &Value| {
            replica["up"] == true && replica["rebuilding"] == false && replica["missed_blocks"] == 0
        };
        // While another store takes the lost one's place, there are four.
        replicas.is_some_and(|all| all.len() == 3 && all.iter().all(whole))
            && status["scrub"]["completed_unix_ms"].is_u64()
    };
    let config = stage.cluster.node("north")?.config.clone();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let status = json(&understudy(&["status", "--json"], &config)?)?;
        if rebuilt(&status) {
            ensure!(status["scrub"]["mended"].as_u64() > Some(100), "{status:#}");
            break;
        }
        ensure!(tokio::time::Instant::now() < deadline, "{status:#}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // From now on every quorum needs it, also that of a takeover.
    stage.cluster.kill_zone(2).context("zone 2 runs")?;
    stage.commits(100).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_distant_zone_that_is_cut_off_and_healed_is_not_missed() -> Result<()> {
    let mut network = Network::default();
    network.link_mut("0", "1").latency = Duration::from_millis(5);
    for zone in ["0", "1"] {
        network.link_mut(zone, "2").latency = Duration::from_millis(15);
    }
    let mut stage = Stage::over("distances", &["north", "south"], Some(network)).await?;
    for cut in [true, false] {
        stage.cluster.set_cut(0, 2, cut)?;
        stage.cluster.set_cut(1, 2, cut)?;
        stage.commits(200).await?;
    }
    stage.commits(100).await?;
    stage.verify().await
}
