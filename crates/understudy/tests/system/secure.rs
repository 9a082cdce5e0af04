//! What the parts of a cluster say to each other: to nobody else, and nothing secret into a log.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cluster::ports;

use crate::operator::understudy;
use crate::stage::{Stage, TIMEOUT, program};

async fn stage(test: &str) -> Result<Stage> {
    Stage::with_options(test, &["north", "south"], |options| options.tls = true).await
}

/// A copy of north's configuration with one change.
fn changed(stage: &Stage, from: &str, to: &str) -> Result<std::path::PathBuf> {
    let config = &stage.cluster.node("north")?.config;
    let text = std::fs::read_to_string(config)?;
    ensure!(text.contains(from), "the configuration has no {from}");
    let path = config.with_extension("changed.toml");
    std::fs::write(&path, text.replacen(from, to, 1))?;
    Ok(path)
}

/// What `status` says with that configuration, which must fail.
fn refused(config: &Path) -> Result<String> {
    let output = understudy(&["status"], config)?;
    ensure!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Lines of a secret's file that mean something by themselves.
fn lines_of(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file)?;
    let private = text.split("-----BEGIN PRIVATE KEY-----").last();
    let lines = private.unwrap_or_default().lines();
    let lines = lines.filter(|line| line.len() > 20 && !line.starts_with('-'));
    Ok(lines.map(str::to_owned).collect())
}

/// The arguments and environment of every process of the cluster.
fn told_to_processes(stage: &Stage) -> Vec<u8> {
    let processes = stage.cluster.processes();
    let files =
        processes.flat_map(|(_, pid)| ["cmdline", "environ"].map(|f| format!("/proc/{pid}/{f}")));
    files
        .flat_map(|file| std::fs::read(file).unwrap_or_default())
        .collect()
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn strangers_are_refused_and_secrets_stay_in_their_files() -> Result<()> {
    let mut stage = stage("secure").await?;
    let dir = stage.cluster.options().dir.clone();
    let identity = dir.join("cluster.pem");

    let foreign = dir.join("foreign.pem");
    dax::tls::new_identity(&foreign)?;
    let config = changed(&stage, "cluster.pem", "foreign.pem")?;
    let said = refused(&config)?;
    ensure!(said.contains("another cluster"), "{said}");
    let config = changed(&stage, "identity = ", "# identity = ")?;
    let said = refused(&config)?;
    // The zone's answer, if it comes before the end of the connection, or advice where it does not.
    ensure!(said.contains("certificates"), "{said}");

    use std::os::unix::fs::PermissionsExt;
    let open = dir.join("open.pem");
    std::fs::copy(&identity, &open)?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644))?;
    let config = changed(&stage, "cluster.pem", "open.pem")?;
    let said = refused(&config)?;
    ensure!(said.contains("chmod 600"), "{said}");

    // Beyond this machine nothing goes without certificates.
    let port = ports::free()?;
    let output = Command::new(program())
        .args(["store", "--data"])
        .arg(dir.join("open-zone"))
        .args(["--listen", &format!("0.0.0.0:{port}")])
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("--identity"), "{said}");

    // None of that disturbed anybody, nor does a takeover.
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let killed = stage.clock.now();
    stage.cluster.kill_node(&active).context("nothing killed")?;
    stage.outage_after(killed).await?;
    stage.commits(50).await?;

    let secrets = ["cluster.pem", "zones.secret", "volume.key", "rest.token"];
    let mut told = told_to_processes(&stage);
    for log in std::fs::read_dir(stage.cluster.logs())? {
        told.extend(std::fs::read(log?.path())?);
    }
    for name in stage.cluster.names() {
        let log = stage.cluster.node(name)?.data.join("postgresql.log");
        told.extend(std::fs::read(log)?);
    }
    ensure!(contains(&told, "--identity"), "nothing was looked at");
    for file in secrets {
        let lines = lines_of(&dir.join(file))?;
        ensure!(!lines.is_empty(), "{file} holds nothing");
        for line in lines {
            ensure!(!contains(&told, &line), "what {file} holds is told");
        }
    }
    stage.verify().await
}

/// The cluster's identity is exchanged on machine after machine, and nothing is started anew.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn an_identity_is_exchanged_under_load() -> Result<()> {
    let mut stage = stage("rotate").await?;
    let identity = stage.cluster.options().dir.join("cluster.pem");
    let new = identity.with_extension("new.pem");
    dax::tls::new_identity(&new)?;
    let (old, new) = (std::fs::read(&identity)?, std::fs::read(&new)?);
    for step in [
        [&old[..], &new[..]].concat(),
        [&new[..], &old[..]].concat(),
        new.clone(),
    ] {
        // The file is written in place: half of it may be seen, and changes nothing.
        std::fs::write(&identity, step)?;
        stage.commits(20).await?;
        for zone in 1..=3 {
            stage.cluster.kill_zone(zone);
            stage.cluster.start_zone(zone)?;
            stage.commits(20).await?;
        }
        let config = stage.cluster.node("north")?.config.clone();
        let output = understudy(&["status"], &config)?;
        ensure!(output.status.success(), "{output:?}");
    }
    let last = identity.with_extension("last.pem");
    std::fs::write(&last, &old)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&last, std::fs::Permissions::from_mode(0o600))?;
    let said = refused(&changed(&stage, "cluster.pem", "cluster.last.pem")?)?;
    ensure!(said.contains("another cluster"), "{said}");
    stage.verify().await
}

/// An operator has a session on the active wherever it is, without a password, also after a takeover.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn psql_opens_a_session_on_the_active_from_any_node() -> Result<()> {
    let mut stage = stage("psql").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    for name in ["north", "south"] {
        ensure!(recovers(&stage, name, &[])? == "f", "asked on {name}");
    }
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    for name in ["north", "south"] {
        ensure!(
            recovers(&stage, name, &["--node", &standby])? == "t",
            "asked on {name}"
        );
    }
    let killed = stage.clock.now();
    stage.cluster.kill_node(&active).context("it runs")?;
    stage.outage_after(killed).await?;
    // The machine of a node that does not run is good enough to ask from.
    ensure!(recovers(&stage, &active, &[])? == "f", "asked on {active}");
    let failed = psql(&stage, &active, &[], "\\no_such_command")?;
    ensure!(failed.status.code() == Some(1), "{failed:?}");
    stage.verify().await
}

/// True if the server that is asked with the configuration of `node` is a standby.
fn recovers(stage: &Stage, node: &str, arguments: &[&str]) -> Result<String> {
    let output = psql(stage, node, arguments, "SELECT pg_is_in_recovery()")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn psql(stage: &Stage, node: &str, arguments: &[&str], sql: &str) -> Result<std::process::Output> {
    let mut command = Command::new(program());
    command
        .arg("psql")
        .arg("--config")
        .arg(&stage.cluster.node(node)?.config);
    command
        .args(arguments)
        .args(["--", "-XAtc", sql])
        .envs(stage.cluster.server(node)?.environment())
        .stdin(Stdio::null());
    command.output().context("understudy cannot be run")
}
