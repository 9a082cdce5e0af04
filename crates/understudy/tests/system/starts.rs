//! How servers start, and start again: after a clean stop, after the death of a session, with other
//! settings.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::stage::{TIMEOUT, program};

/// A cluster without load.
async fn start(scratch: &Scratch, nodes: &[&str]) -> Result<Cluster> {
    start_with(scratch, nodes, &[]).await
}

async fn start_with(
    scratch: &Scratch,
    nodes: &[&str],
    parameters: &[(&str, &str)],
) -> Result<Cluster> {
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    options.nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
    let parameters = parameters.iter();
    let parameters = parameters.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.parameters.extend(parameters);
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    Ok(cluster)
}

async fn execute(cluster: &mut Cluster, sql: &str) -> Result<()> {
    let active = cluster.wait_active(TIMEOUT).await?;
    let client = connect(&cluster.server(&active)?.config()).await?;
    let done = client.batch_execute(sql).await;
    done.with_context(|| sql.to_owned())
}

async fn ask(cluster: &Cluster, node: &str, sql: &str) -> Result<String> {
    let client = connect(&cluster.server(node)?.config()).await?;
    let row = client.query_one(sql, &[]).await;
    Ok(row.with_context(|| sql.to_owned())?.get(0))
}

// hazard: N1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn commits_after_a_direct_start_survive_a_crash_before_any_checkpoint() -> Result<()> {
    let scratch = Scratch::new("starts")?;
    let mut cluster = start(&scratch, &["north"]).await?;
    execute(
        &mut cluster,
        "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n",
    )
    .await?;
    // A clean stop seals; a direct start follows. What is committed then is behind the last seal,
    // whose control file says that the database was shut down.
    cluster.stop_node("north", TIMEOUT)?;
    cluster.start_node("north")?;
    for number in 1001..1050 {
        execute(&mut cluster, &format!("INSERT INTO kept VALUES ({number})")).await?;
    }
    cluster.kill_node("north").context("it runs")?;
    cluster.start_node("north")?;
    let active = cluster.wait_active(TIMEOUT).await?;
    let count = "SELECT count(*) || ' ' || sum(n) FROM kept";
    let kept = ask(&cluster, &active, count).await?;
    ensure!(kept == "1049 550725", "after the crash: {kept}");
    let server = cluster.server(&active)?;
    let check = verify::amcheck(&cluster.options().bin, &server).await?;
    ensure!(check.passed, "{check:?}");
    cluster.shutdown();
    scratch.succeed()
}

// hazard: N4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_whose_session_is_killed_attaches_afresh() -> Result<()> {
    let scratch = Scratch::new("session")?;
    let mut cluster = start(&scratch, &["north", "south"]).await?;
    execute(
        &mut cluster,
        "CREATE TABLE kept AS SELECT generate_series(1, 50000) AS n",
    )
    .await?;
    cluster.wait_follows("south", TIMEOUT).await?;
    let session = connect(&cluster.server("south")?.config()).await?;
    let pid: i32 = session
        .query_one("SELECT pg_backend_pid()", &[])
        .await?
        .get(0);
    execute(&mut cluster, "DELETE FROM kept WHERE n % 2 = 0; CHECKPOINT").await?;
    execute(&mut cluster, "VACUUM kept").await?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    // Its server must not restart by itself, on files that belong to another moment.
    let deadline = Instant::now() + TIMEOUT;
    while cluster
        .agent_log_lines("the standby's PostgreSQL exited; reattaching")
        .is_empty()
    {
        ensure!(Instant::now() < deadline, "nobody noticed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    execute(&mut cluster, "INSERT INTO kept VALUES (0)").await?;
    cluster.wait_follows("south", TIMEOUT).await?;
    let count = "SELECT count(*) || ' ' || sum(n) FROM kept";
    let kept = ask(&cluster, "south", count).await?;
    ensure!(kept == "25001 625000000", "the standby says {kept}");
    cluster.shutdown();
    scratch.succeed()
}

// N12: redo of a standby waits for ever when the active allows more sessions than it does.
// hazard: N12
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn settings_raised_on_the_active_reach_a_standby_that_was_not_restarted() -> Result<()> {
    let scratch = Scratch::new("settings")?;
    let mut cluster = start(&scratch, &["north", "south", "east"]).await?;
    execute(&mut cluster, "CREATE TABLE kept (n int)").await?;
    // It takes effect on a server that starts after this: north, when it comes back.
    let raise = "ALTER SYSTEM SET max_connections = 160";
    execute(&mut cluster, raise).await?;
    execute(&mut cluster, "CHECKPOINT").await?;
    for name in ["south", "east"] {
        cluster.wait_follows(name, TIMEOUT).await?;
    }
    cluster.kill_node("north").context("it runs")?;
    let second = cluster.wait_active(TIMEOUT).await?;
    let third = cluster
        .names()
        .find(|name| *name != "north" && *name != second);
    let third = third.context("three nodes")?.to_owned();
    cluster.wait_follows(&third, TIMEOUT).await?;
    cluster.start_node("north")?;
    cluster.wait_follows("north", TIMEOUT).await?;
    let config = cluster.node("north")?.config.display().to_string();
    let arguments = ["failover", "--config", &config, "--to", "north", "--force"];
    cluster.run(&arguments).await?;
    let allowed = ask(&cluster, "north", "SHOW max_connections").await?;
    ensure!(allowed == "160", "north allows {allowed} sessions");
    execute(
        &mut cluster,
        "INSERT INTO kept SELECT generate_series(1, 100)",
    )
    .await?;
    for name in [&second, &third] {
        cluster.wait_follows(name, TIMEOUT).await?;
        let kept = ask(&cluster, name, "SELECT count(*) || '' FROM kept").await?;
        ensure!(kept == "100", "{name} says {kept}");
    }
    cluster.shutdown();
    scratch.succeed()
}

// N7: a seal that redo cannot start from. A table's file is unlinked before a checkpoint, as it is in the
// middle of a DROP; the log goes on with it, as if the end of the drop had been lost with the active.
// hazard: N7
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_seal_that_redo_cannot_start_from_is_passed_over() -> Result<()> {
    let scratch = Scratch::new("passed-over")?;
    let quiet = [("autovacuum", "off"), ("checkpoint_timeout", "1h")];
    let mut cluster = start_with(&scratch, &["north", "south"], &quiet).await?;
    let session = connect(&cluster.server("north")?.config()).await?;
    let make = [
        "CREATE TABLE torn AS SELECT n, 'before' AS word FROM generate_series(1, 50) n",
        "SELECT * FROM torn",
        "CHECKPOINT",
        // From here on the session has the file open.
        "SELECT * FROM torn",
    ];
    for statement in make {
        session.batch_execute(statement).await?;
    }
    let path = ask(&cluster, "north", "SELECT pg_relation_filepath('torn')").await?;
    cluster.kill_node("south").context("it runs")?;
    std::fs::remove_file(cluster.node("north")?.data.join("pgdata").join(path))?;
    session.batch_execute("CHECKPOINT").await?;
    let change = "UPDATE torn SET word = 'after' WHERE n = 7";
    session.batch_execute(change).await?;

    cluster.start_node("south")?;
    let alarm = "redo failed, so the next attach is at the seal before the last one";
    let deadline = Instant::now() + TIMEOUT;
    while cluster.agent_log_lines(alarm).is_empty() {
        ensure!(Instant::now() < deadline, "redo did not fail");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The seal before has the file; moving on to the last one does not take it away (N8).
    cluster.wait_follows("south", TIMEOUT).await?;
    let question = "SELECT count(*) || ' ' || string_agg(DISTINCT word, ' ') FROM torn";
    let heard = ask(&cluster, "south", question).await?;
    ensure!(heard == "50 after before", "the standby says {heard}");
    cluster.kill_node("north").context("it runs")?;
    ensure!(cluster.wait_active(TIMEOUT).await? == "south");
    let heard = ask(&cluster, "south", question).await?;
    ensure!(heard == "50 after before", "after the takeover: {heard}");
    execute(&mut cluster, "UPDATE torn SET word = 'later' WHERE n > 7").await?;
    execute(&mut cluster, "CHECKPOINT").await?;
    let check = verify::amcheck(&cluster.options().bin, &cluster.server("south")?).await?;
    ensure!(check.passed, "{check:?}");
    cluster.start_node("north")?;
    cluster.wait_follows("north", TIMEOUT).await?;
    let heard = ask(&cluster, "north", question).await?;
    ensure!(
        heard == "50 after before later",
        "the next standby says {heard}"
    );
    ensure!(cluster.agent_log_lines(alarm).len() == 1, "it failed again");
    cluster.shutdown();
    scratch.succeed()
}
