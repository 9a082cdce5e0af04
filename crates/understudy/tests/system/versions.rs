//! The other versions of PostgreSQL: a kill under load and a cold start, on each; and a newer minor
//! version that comes to a cluster which serves; and a mirror whose second member has a newer version.
//!
//! `UNDERSTUDY_TEST_BINS` says where their programs are, as `scripts/postgres-versions` prints it. A
//! version that is not there fails its test: what is not tested must not look tested.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::mirror::{self, Mirror};
use cluster::programs;
use cluster::scratch::Scratch;

use crate::mirrored::{refuses, upgrade};
use crate::slots;
use crate::stage::{Stage, TIMEOUT, program};
use crate::undone;

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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_16_keeps_slots() -> Result<()> {
    slots::miss_nothing("slots-16", &programs_of(16)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_17_keeps_slots() -> Result<()> {
    slots::miss_nothing("slots-17", &programs_of(17)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_18_keeps_slots() -> Result<()> {
    slots::miss_nothing("slots-18", &programs_of(18)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_16_goes_on_with_slots_of_a_standby() -> Result<()> {
    slots::of_a_standby("standby-16", &programs_of(16)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_18_goes_on_with_slots_of_a_standby() -> Result<()> {
    slots::of_a_standby("standby-18", &programs_of(18)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_16_restores_what_was_dropped() -> Result<()> {
    undone::is_undone("dropped-16", &programs_of(16)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_17_restores_what_was_dropped() -> Result<()> {
    undone::is_undone("dropped-17", &programs_of(17)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn postgresql_18_restores_what_was_dropped() -> Result<()> {
    undone::is_undone("dropped-18", &programs_of(18)?).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn mirror_upgrades_to_postgresql_16_and_back() -> Result<()> {
    mirror_upgrades_and_back(16).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn mirror_upgrades_to_postgresql_17_and_back() -> Result<()> {
    mirror_upgrades_and_back(17).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn mirror_upgrades_to_postgresql_18_and_back() -> Result<()> {
    mirror_upgrades_and_back(18).await
}

/// The programs are exchanged under running servers, as a package manager does, and the cluster is
/// restarted node by node.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-versions"]
async fn a_newer_minor_version_rolls_in_under_load() -> Result<()> {
    let new = programs::find(None)?;
    let wanted = version_of(&new)?;
    let (major, _) = wanted.split_once('.').context("no minor version")?;
    let old = programs_of(major.parse()?)?;
    let had = version_of(&old)?;
    ensure!(had != wanted, "both are {had}: nothing to upgrade");
    let mut installed = PathBuf::new();
    let mut stage = Stage::with_options("minor", &["north", "south"], |options| {
        installed = options.dir.join("installed");
        options.bin = installed.clone();
        symlink(&old, &installed).expect("the directory is new");
    })
    .await?;
    runs_everywhere(&mut stage, &had).await?;

    let next = installed.with_extension("next");
    symlink(&new, &next)?;
    std::fs::rename(&next, &installed)?;
    stage.commits(100).await?;
    let config = stage.cluster.node("north")?.config.display().to_string();
    let roll = ["restart", "--all", "--rolling", "--config", &config];
    stage.cluster.run(&roll).await?;
    runs_everywhere(&mut stage, &wanted).await?;
    stage.commits(200).await?;
    stage.verify().await
}

/// Waits until `list` shows this version for both nodes, one active and one that follows.
async fn runs_everywhere(stage: &mut Stage, version: &str) -> Result<()> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| *name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let config = stage.cluster.node(&active)?.config.display().to_string();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let list = ["list", "--json", "--config", &config];
        let rows: serde_json::Value = serde_json::from_str(&stage.cluster.run(&list).await?)?;
        let rows = rows.as_array().context("no rows")?;
        if rows.len() == 2 && rows.iter().all(|row| row["Version"] == version) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "not all run {version}: {rows:#?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// As the server says it: "15.6" of "postgres (PostgreSQL) 15.6 (Debian 15.6-1)".
fn version_of(bin: &Path) -> Result<String> {
    let said = Command::new(bin.join("postgres"))
        .arg("--version")
        .output()?;
    let said = String::from_utf8(said.stdout)?;
    let version = said.split(' ').nth(2).context("it says no version")?;
    Ok(version.trim().to_owned())
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
    stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    stage.commits(100).await?;

    // Standby first, as the handbook says: nothing follows the last seal then.
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    for name in [&dead, &active] {
        stage.cluster.stop_node(name, TIMEOUT)?;
    }
    let stopped = stage.clock.now();
    for name in [&active, &dead] {
        stage.cluster.start_node(name)?;
    }
    stage.outage_after(stopped).await?;
    stage.commits(100).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| *name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let failed = stage.cluster.agent_log_lines("redo failed");
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    stage.verify().await
}

/// A session writes from before the upgrade until after the second one, and never connects again.
async fn mirror_upgrades_and_back(major: u32) -> Result<()> {
    let scratch = Scratch::new(&format!("mirror-{major}"))?;
    let mut options = mirror::Options::new(scratch.path(), &programs::find(None)?, program());
    options.bins[1] = programs_of(major)?;
    let mut mirror = Mirror::prepare(options).await?;
    mirror.start(TIMEOUT).await?;
    let client = connect(&mirror.any_writable()).await?;
    client
        .batch_execute("CREATE TABLE seen (number int PRIMARY KEY)")
        .await?;
    let insert = async |number: i32| {
        let text = format!("INSERT INTO seen VALUES ({number})");
        client.batch_execute(&text).await
    };
    let state = async |mirror: &Mirror| -> Result<String> {
        let [north, _] = mirror.statuses().await?;
        let north = north.context("it answers")?;
        Ok(north["upgrade"]["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    insert(1).await?;
    ensure!(state(&mirror).await? == "not_switched_over");
    refuses(scratch.path(), &["--finish"], 4, "is not primary: south")?;
    refuses(scratch.path(), &["--back"], 4, "is primary already: north")?;
    for (words, switches, wanted) in [
        (&["--dry-run"][..], false, "not_switched_over"),
        (&[], true, "way_back_open"),
        (&["--back"], true, "not_switched_over"),
        (&[], true, "way_back_open"),
    ] {
        let output = upgrade(scratch.path(), &[words, &["--json"]].concat())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{words:?}: {}: {said}",
            output.status
        );
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        ensure!(told["verdict"]["equal"] == true, "{told}");
        ensure!(told["switched_over"] == switches, "{told}");
        ensure!(told["upgrade"]["state"] == wanted, "{told}");
        let rows = told["verdict"]["rows"].as_u64().context("no rows")?;
        insert(i32::try_from(rows)? + 1).await?;
    }
    ensure!(state(&mirror).await? == "way_back_open");
    refuses(scratch.path(), &[], 4, "is primary already: south")?;
    let finished = upgrade(scratch.path(), &["--finish"])?;
    let lines = String::from_utf8_lossy(&finished.stdout);
    ensure!(finished.status.success(), "{}", finished.status);
    ensure!(lines.contains(&format!("\nNEW={major}\n")), "{lines}");
    ensure!(lines.contains("the way back is open"), "{lines}");

    // The older version does not know this.
    client
        .batch_execute("CREATE TABLE newer (id int PRIMARY KEY, a text STORAGE EXTERNAL)")
        .await?;
    let deadline = Instant::now() + TIMEOUT;
    while state(&mirror).await? != "way_back_closed" {
        ensure!(Instant::now() < deadline, "the way back stays open");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    refuses(scratch.path(), &["--back"], 4, "is set aside")?;
    insert(100).await?;
    tokio::task::block_in_place(|| mirror.shutdown());
    scratch.succeed()
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
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let row = client
        .query_one("SELECT current_setting($1)", &[&setting])
        .await?;
    let value: String = row.get(0);
    ensure!(right(&value), "{setting} is {value}");
    Ok(())
}
