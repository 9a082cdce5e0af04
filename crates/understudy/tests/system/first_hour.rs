//! The first hour of operating a cluster: own parameters, edits and restarts, a base backup, an upgrade of the system.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::elsewhere::{Elsewhere, base_backup, open_directory};
use serde_json::Value;

use crate::operator::understudy;
use crate::stage::{Stage, TIMEOUT};
use crate::verbs::{done, roles, run, setting, until};

/// A parameter of both nodes that differs from what `initdb` writes into the shared file.
const OWN: (&str, &str) = ("max_connections", "130");

async fn pending(stage: &Stage, node: &str) -> Result<Value> {
    let status = stage.status_of(node).await?.context("no such node")?;
    ensure!(status["started"].is_object(), "it does not say how it is");
    Ok(status["pending_restart"].clone())
}

/// PostgreSQL's log of a node.
fn log_of(stage: &Stage, node: &str) -> Result<String> {
    let place = stage.cluster.node(node)?.data.join("postgresql.log");
    Ok(String::from_utf8_lossy(&std::fs::read(place)?).into_owned())
}

/// What a node has on its server's command line stood otherwise in its files: the parameter waited for a restart for good,
/// each reload was complained of, and a base backup did not start elsewhere ("insufficient parameter settings").
// hazard: ST3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn own_parameters_are_in_the_files_that_a_reload_and_a_backup_read() -> Result<()> {
    let own = vec![(OWN.0.to_owned(), OWN.1.to_owned())];
    let change = |options: &mut cluster::Options| options.parameters.extend(own);
    let mut stage = Stage::with_options("own-parameters", &["north", "south"], change).await?;
    let (active, standby) = roles(&mut stage).await?;
    ensure!(done(&stage, &["reload"])?["reloaded"] == true);
    for node in [&active, &standby] {
        ensure!(setting(&stage, node, OWN.0).await? == OWN.1);
        let look = async || pending(&stage, node).await;
        until("nothing waits for a restart", look, |names| {
            names.as_array().is_some_and(Vec::is_empty)
        })
        .await?;
    }
    // Both servers have read their files by now.
    done(&stage, &["edit-config", "-p", "work_mem=5MB"])?;
    let read = async || setting(&stage, &standby, "work_mem").await;
    until("the standby reads the file", read, |value| value == "5MB").await?;
    for node in [&active, &standby] {
        let log = log_of(&stage, node)?;
        ensure!(
            !log.contains("configuration file") || !log.contains("contains errors"),
            "{node}: {log}"
        );
    }
    backup_starts_elsewhere(&stage, &active).await?;
    stage.verify().await
}

async fn backup_starts_elsewhere(stage: &Stage, active: &str) -> Result<()> {
    let data = open_directory(stage.path(), "elsewhere")?.join("data");
    base_backup(&stage.cluster, active, &data)?;
    let elsewhere = Elsewhere::start(&stage.cluster, &data, TIMEOUT).await?;
    let (rows, connections) = ask_backup(&elsewhere.server).await?;
    ensure!(rows > 0 && connections == OWN.1, "{rows}, {connections}");
    Ok(())
}

async fn ask_backup(backup: &Server) -> Result<(i64, String)> {
    let client = connect(&backup.config()).await?;
    let rows = client
        .query_one("SELECT count(*) FROM understudy_ledger", &[])
        .await?;
    let connections = client.query_one("SHOW max_connections", &[]).await?;
    Ok((rows.get(0), connections.get(0)))
}

/// A restart right behind an edit began with the old file, and the change stayed pending. A standby on which it is pending
/// would take over without it.
// hazard: ST2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_restart_right_behind_an_edit_has_the_new_value() -> Result<()> {
    let mut stage = Stage::set("edit-restart").await?;
    let (active, standby) = roles(&mut stage).await?;
    ensure!(setting(&stage, &active, "archive_mode").await? == "on");
    let config = &stage.cluster.node(&active)?.config;
    let edited = understudy(&["edit-config", "-p", "track_commit_timestamp=on"], config)?;
    let said = String::from_utf8_lossy(&edited.stdout);
    ensure!(
        edited.status.success() && said.contains(&active) && said.contains(&standby),
        "{said}"
    );
    let look = async || pending(&stage, &standby).await;
    until("it waits for a restart", look, |names| {
        names[0] == "track_commit_timestamp"
    })
    .await?;
    let status = run(&stage, &["status"])?;
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    let warning =
        format!("{standby} would take over without the new value of track_commit_timestamp");
    ensure!(said.contains(&warning), "{said}");

    // In one breath: nobody waits in between.
    let status = Command::new("sh")
        .arg("-c")
        .arg("\"$0\" edit-config --config \"$1\" -p wal_log_hints=on && \"$0\" restart --config \"$1\" \"$2\"")
        .arg(crate::stage::program())
        .arg(config)
        .arg(&active)
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success());
    ensure!(setting(&stage, &active, "wal_log_hints").await? == "on");
    ensure!(setting(&stage, &active, "track_commit_timestamp").await? == "on");
    done(&stage, &["restart", &standby])?;
    ensure!(setting(&stage, &standby, "wal_log_hints").await? == "on");
    let look = async || pending(&stage, &standby).await;
    until("nothing waits", look, |names| {
        names.as_array().is_some_and(Vec::is_empty)
    })
    .await?;
    stage.commits(50).await?;
    stage.verify().await
}

/// A host on which the C library says that it is of another version.
fn other_host(place: &Path) -> Result<String> {
    std::fs::create_dir_all(place)?;
    let program = place.join("getconf");
    std::fs::write(&program, "#!/bin/sh\necho glibc 9.99\n")?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("PATH={}:{path}", place.display()))
}

/// Standbys read the same index blocks, so a takeover by another C library would change the order of the only copy.
// hazard: ST1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_node_that_sorts_otherwise_takes_over_only_if_that_is_accepted() -> Result<()> {
    let other = |options: &mut cluster::Options| {
        let path = other_host(&options.dir.join("other-host")).expect("a directory of the test");
        let wrapper = vec!["env".to_owned(), path];
        options.wrappers.push(("south".to_owned(), wrapper));
    };
    let mut stage = Stage::with_options("other-libc", &["north", "south"], other).await?;
    let misfit = async || {
        let south = stage.status_of("south").await?.context("no south")?;
        Ok(south["misfit"].clone())
    };
    let said = until("it says so", misfit, Value::is_string).await?;
    let said = said.as_str().unwrap_or_default();
    ensure!(said.contains("glibc 9.99 in place of "), "{said}");
    let status = done(&stage, &["status"])?;
    ensure!(status["protected"] == false, "{status:#}");

    let (killed, moment) = stage.kill_active().await?;
    ensure!(killed == "north");
    // Long enough for a takeover, which takes a second or two.
    let until_then = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until_then {
        ensure!(stage.cluster.active().await.is_none(), "south took over");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let config = stage.cluster.node("south")?.config.clone();
    let accepted = understudy(&["accept-collations", "south"], &config)?;
    let said = String::from_utf8_lossy(&accepted.stdout);
    ensure!(
        accepted.status.success() && said.contains("reindexdb"),
        "{said}"
    );
    stage.outage_after(moment).await?;
    ensure!(stage.cluster.wait_active(TIMEOUT).await? == "south");
    stage.commits(50).await?;
    stage.verify().await
}
