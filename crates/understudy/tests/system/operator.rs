//! What an operator types: status, handover, stop of everything, and what is refused.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::stage::{Stage, TIMEOUT, program};

/// `understudy` with these arguments and a node's configuration.
pub fn understudy(arguments: &[&str], config: &std::path::Path) -> Result<Output> {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null());
    command.output().context("understudy cannot be run")
}

pub fn json(output: &Output) -> Result<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{}: {said}{printed}",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What a copy of a node's configuration with one change is answered, and with which exit code.
fn refused(stage: &Stage, command: &str, from: &str, to: &str) -> Result<(i32, String)> {
    let config = &stage.cluster.node("north")?.config;
    let text = std::fs::read_to_string(config)?;
    ensure!(text.contains(from), "the configuration has no {from}");
    let changed = config.with_extension("changed.toml");
    std::fs::write(&changed, text.replacen(from, to, 1))?;
    let output = understudy(&[command], &changed)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code().context("ended by a signal")?, said))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_handover_and_a_stop_of_everything_lose_nothing() -> Result<()> {
    let mut stage = Stage::set("operator").await?;
    let first = stage.cluster.wait_active(TIMEOUT).await?;
    let config = stage.cluster.node(&first)?.config.clone();
    let status = json(&understudy(&["status", "--json"], &config)?)?;
    ensure!(status["active"] == first.as_str(), "{status:#}");
    ensure!(status["protected"] == true, "{status:#}");
    ensure!(
        status["replicas"]
            .as_array()
            .is_some_and(|replicas| replicas.len() == 3)
    );

    let moved = stage.clock.now();
    json(&understudy(&["failover", "--json"], &config)?)?;
    stage.outage_after(moved).await?;
    stage.commits(100).await?;
    let second = stage.cluster.wait_active(TIMEOUT).await?;
    ensure!(second != first, "the active did not move");
    stage.cluster.wait_follows(&first, TIMEOUT).await?;

    // The standby first, then the active: nothing follows the last seal, so the next start is direct.
    for name in [&first, &second] {
        stage.cluster.stop_node(name, TIMEOUT)?;
    }
    let status = understudy(&["status", "--json"], &config)?;
    ensure!(
        status.status.code() == Some(3),
        "nobody serves: {}",
        status.status
    );
    let stopped = stage.clock.now();
    for name in [&second, &first] {
        stage.cluster.start_node(name)?;
    }
    stage.outage_after(stopped).await?;
    stage.commits(100).await?;
    let history = json(&understudy(&["history", "--json"], &config)?)?;
    let last = history
        .as_array()
        .and_then(|entries| entries.last())
        .context("no history")?;
    ensure!(last["cause"] == "started", "{history:#}");
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn impossible_settings_are_refused_with_a_remedy() -> Result<()> {
    let mut stage = Stage::with_nodes("refusals", &["north"]).await?;
    let table = [
        (
            "node",
            "name = ",
            "nmae = \"x\"\nname = ",
            2,
            "Perhaps you mean \"name\"",
        ),
        ("node", "/bin\"", "/no-bin\"", 1, "Set postgres.bin"),
        (
            "status",
            "volume = \"",
            "volume = \"not-",
            2,
            "understudy key",
        ),
        ("status", "key = ", "# key = ", 2, "none is configured"),
        ("node", "", "", 2, "another agent runs"),
    ];
    for (command, from, to, code, remedy) in table {
        let (found, said) = refused(&stage, command, from, to)?;
        ensure!(said.contains(remedy), "{to:?}: {said}");
        ensure!(found == code, "{to:?} ends with {found}: {said}");
    }
    let zone = Command::new(program())
        .args(["store", "--listen", "127.0.0.1:1", "--data"])
        .arg(stage.cluster.options().dir.join("zone-1"))
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&zone.stderr);
    ensure!(said.contains("in use by another zone server"), "{said}");
    let again = understudy(&["init"], &stage.cluster.node("north")?.config.clone())?;
    ensure!(!again.status.success());
    // All of that disturbed nobody.
    stage.commits(50).await?;
    stage.verify().await
}
