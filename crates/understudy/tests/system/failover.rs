//! Nodes that die, hang and come back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use understudy::cluster::process::family;

use crate::stage::{PATIENCE, Stage};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn two_kills_in_a_row_lose_nothing_and_the_dead_come_back() -> Result<()> {
    let mut stage = Stage::set("two-kills").await?;
    for _ in 0..2 {
        let (dead, killed) = stage.kill_active().await?;
        let outage = stage.outage_after(killed).await?;
        println!("{dead} killed: {:?} without commits", outage.length());
        stage.commits(200).await?;
        stage.cluster.start_node(&dead)?;
        stage.cluster.wait_follows(&dead, PATIENCE).await?;
        stage.commits(200).await?;
    }
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_paused_active_that_wakes_up_is_refused() -> Result<()> {
    let mut stage = Stage::set("paused").await?;
    let old = stage.cluster.wait_active(PATIENCE).await?;
    let paused = stage.clock.now();
    stage.cluster.node_process(&old).context("it runs")?.pause();
    // Its clients hang with it: only new connections find the new active.
    let other = stage.cluster.names().find(|name| *name != old);
    let other = other.context("two nodes")?.to_owned();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while stage.cluster.active().await.as_deref() != Some(&other) {
        ensure!(
            tokio::time::Instant::now() < deadline,
            "{other} does not take over"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.expect_fenced(&old);
    stage
        .cluster
        .node_process(&old)
        .context("it runs")?
        .resume();
    stage.outage_after(paused).await?;
    stage.commits(200).await?;
    let active = stage.cluster.wait_active(PATIENCE).await?;
    ensure!(active == other, "{active} is active, not {other}");
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_killed_postmaster_is_replaced() -> Result<()> {
    let mut stage = Stage::set("postmaster").await?;
    let active = stage.cluster.wait_active(PATIENCE).await?;
    let agent = stage
        .cluster
        .node_process(&active)
        .context("it runs")?
        .pid();
    let postmaster = family(agent).into_iter().find(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "postgres"
    });
    let killed = stage.clock.now();
    kill(
        postmaster.context("the agent has a postmaster")?,
        Signal::SIGKILL,
    )?;
    stage.outage_after(killed).await?;
    stage.commits(200).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn all_nodes_killed_and_started_again() -> Result<()> {
    let mut stage = Stage::set("all-nodes").await?;
    let names: Vec<String> = stage.cluster.names().map(str::to_owned).collect();
    for name in &names {
        stage.cluster.kill_node(name);
    }
    let killed = stage.clock.now();
    for name in &names {
        stage.cluster.start_node(name)?;
    }
    stage.outage_after(killed).await?;
    stage.commits(200).await?;
    stage.verify().await
}
