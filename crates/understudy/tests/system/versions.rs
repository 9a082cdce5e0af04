//! The other versions of PostgreSQL: a kill under load and a cold start, on each.
//!
//! `UNDERSTUDY_TEST_BINS` says where their programs are, as `scripts/postgres-versions` prints it. A
//! version that is not there fails its test: what is not tested must not look tested.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use understudy::demo::session::connect;

use crate::stage::{PATIENCE, Stage};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_16_loses_nothing() -> Result<()> {
    loses_nothing(16).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_17_loses_nothing() -> Result<()> {
    loses_nothing(17).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_18_loses_nothing() -> Result<()> {
    loses_nothing(18).await
}

/// Kill -9 of the active under load and table changes, its return as a standby, a stop of everything
/// and a cold start; then the verdict.
async fn loses_nothing(major: u32) -> Result<()> {
    let bin = programs_of(major)?;
    let test = format!("postgresql-{major}");
    let nodes = ["north", "south"];
    let mut stage = Stage::with_options(&test, &nodes, |options| options.bin = bin).await?;
    says(&mut stage, "server_version_num", |value| {
        value
            .parse::<u32>()
            .is_ok_and(|number| number / 10_000 == major)
    })
    .await?;
    // The default since 18: hint bits are logged, and pages carry PostgreSQL's own checksum.
    let checksums = if major >= 18 { "on" } else { "off" };
    says(&mut stage, "data_checksums", |value| value == checksums).await?;

    let (dead, killed) = stage.kill_active().await?;
    let outage = stage.outage_after(killed).await?;
    println!("{dead} killed: {:?} without commits", outage.length());
    stage.commits(200).await?;
    stage.cluster.start_node(&dead)?;
    stage.cluster.wait_follows(&dead, PATIENCE).await?;
    stage.commits(100).await?;

    // Standby first, as the handbook says: nothing follows the last seal then.
    let active = stage.cluster.wait_active(PATIENCE).await?;
    for name in [&dead, &active] {
        stage.cluster.stop_node(name, PATIENCE)?;
    }
    let stopped = stage.clock.now();
    for name in [&active, &dead] {
        stage.cluster.start_node(name)?;
    }
    stage.outage_after(stopped).await?;
    stage.commits(100).await?;
    let active = stage.cluster.wait_active(PATIENCE).await?;
    let standby = stage.cluster.names().find(|name| *name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.wait_follows(&standby, PATIENCE).await?;
    let failed = stage.cluster.agent_log_lines("redo failed");
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    stage.verify().await
}

fn programs_of(major: u32) -> Result<PathBuf> {
    let bins = std::env::var("UNDERSTUDY_TEST_BINS").unwrap_or_default();
    let mut found = bins.split(':').filter_map(|entry| entry.split_once('='));
    let bin = found.find(|(number, _)| *number == major.to_string());
    let (_, bin) = bin.with_context(|| {
        format!(
            "UNDERSTUDY_TEST_BINS names no PostgreSQL {major}: \
             export UNDERSTUDY_TEST_BINS=$(scripts/postgres-versions)"
        )
    })?;
    Ok(PathBuf::from(bin))
}

/// Checks a setting of the active.
async fn says(stage: &mut Stage, setting: &str, right: impl Fn(&str) -> bool) -> Result<()> {
    let active = stage.cluster.wait_active(PATIENCE).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let row = client
        .query_one("SELECT current_setting($1)", &[&setting])
        .await?;
    let value: String = row.get(0);
    ensure!(right(&value), "{setting} is {value}");
    Ok(())
}
