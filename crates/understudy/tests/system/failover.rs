//! Nodes that die, hang and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::Client;
use understudy::demo::takeover::Takeover;

use crate::stage::{Stage, TIMEOUT};

// hazard: H4
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
        stage.cluster.wait_follows(&dead, TIMEOUT).await?;
        stage.commits(200).await?;
    }
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn returning_node_replays_no_wal_of_earlier_takeovers() -> Result<()> {
    // PostgreSQL by itself would complete no checkpoint in this test.
    let mut stage = Stage::with_options("hurried", &["north", "south"], |options| {
        let never = ("checkpoint_timeout".to_owned(), "1h".to_owned());
        options.parameters.push(never);
    })
    .await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let session = connect(&stage.cluster.server(&active)?.config()).await?;
    let much = "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1 << 20)) \
                FROM generate_series(1, 32)";
    session.batch_execute(much).await?;
    let end = session.query_one("SELECT pg_current_wal_lsn()::text", &[]);
    let end: String = end.await?.get(0);

    // The first takeover leaves its checkpoint to PostgreSQL; the next one would add to the log to redo.
    let (dead, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.cluster.start_node(&dead)?;
    stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    let (dead, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let session = connect(&stage.cluster.server(&active)?.config()).await?;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let sql = format!("SELECT redo_lsn >= '{end}'::pg_lsn FROM pg_control_checkpoint()");
    while !session.query_one(&sql, &[]).await?.get::<_, bool>(0) {
        ensure!(
            tokio::time::Instant::now() < deadline,
            "redo would still begin before the takeovers"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.cluster.start_node(&dead)?;
    stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_paused_active_that_wakes_up_is_refused() -> Result<()> {
    let mut stage = Stage::set("paused").await?;
    let old = stage.cluster.wait_active(TIMEOUT).await?;
    let zombies = open_transactions(&stage.cluster.server(&old)?).await?;
    let other = stage.cluster.names().find(|name| *name != old);
    let other = other.context("two nodes")?.to_owned();
    let paused = stage.freeze_active(&old, &other).await?;
    for (number, zombie) in zombies.iter().enumerate() {
        // The ledger would tell as well: nobody else writes these rows.
        let answer = zombie.batch_execute("COMMIT").await;
        ensure!(answer.is_err(), "commit {number} was acknowledged");
    }
    stage.outage_after(paused).await?;
    stage.commits(200).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    ensure!(active == other, "{active} is active, not {other}");
    stage.verify().await
}

/// Sessions in the middle of transactions that have written.
pub async fn open_transactions(server: &Server) -> Result<Vec<Client>> {
    let mut sessions = Vec::new();
    for n in 1..=5 {
        let client = connect(&server.config()).await?;
        let insert = format!("BEGIN; INSERT INTO understudy_ledger VALUES (1000, {n})");
        client.batch_execute(&insert).await?;
        sessions.push(client);
    }
    Ok(sessions)
}

// hazard: H9
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_killed_postmaster_is_replaced() -> Result<()> {
    let mut stage = Stage::set("postmaster").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let killed = stage.clock.at(stage.cluster.kill_postgres(&active)?);
    stage.outage_after(killed).await?;
    stage.commits(200).await?;
    stage.verify().await
}

// hazard: H4
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

/// Every signal makes the postmaster look for the trigger of its promotion. That it had found none was kept by the
/// kernel for ten seconds, and the agent's one signal was lost in them: the takeover failed after a minute.
// hazard: PAGE-14
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_flooded_with_signals_is_promoted_as_soon_as_any() -> Result<()> {
    let mut stage = Stage::set("flooded").await?;
    let old = stage.cluster.wait_active(TIMEOUT).await?;
    let new = stage.cluster.names().find(|name| *name != old);
    let new = new.context("two nodes")?.to_owned();
    let flood = Flood::start(stage.cluster.postmaster(&new)?);
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    drop(flood);
    let takeover = Takeover::last(&stage.cluster.ask("history").await?)?;
    ensure!(takeover.node == new, "{takeover:?}");
    let promote = takeover.phases.iter().find(|p| p.phase == "promote");
    let promote = promote.context("no promotion")?;
    // What the kernel keeps, it keeps for 10 s; a promotion takes a fraction of one.
    ensure!(promote.ms < 5000, "{takeover:?}");
    stage.commits(200).await?;
    stage.verify().await
}

/// Sends a process SIGUSR1 all the time, until it is dropped or the process is gone.
struct Flood(Arc<AtomicBool>);

impl Flood {
    fn start(pid: Pid) -> Flood {
        let ended = Arc::new(AtomicBool::new(false));
        let flood = Flood(Arc::clone(&ended));
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) && kill(pid, Signal::SIGUSR1).is_ok() {
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes a row as soon as the server takes writes at all.
async fn first_row(server: &Server, n: i32) -> Result<()> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        ensure!(tokio::time::Instant::now() < deadline, "nobody took over");
        if let Ok(client) = connect(&server.config()).await {
            let insert = format!("INSERT INTO first_rows VALUES ({n})");
            if client.batch_execute(&insert).await.is_ok() {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Others come back later: nothing else writes in the first moments of an epoch.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn first_acknowledged_writes_of_a_new_active_outlive_it() -> Result<()> {
    let mut stage = Stage::set("first-rows").await?;
    let mut active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    client
        .batch_execute("CREATE TABLE first_rows (n int)")
        .await?;
    let mut acknowledged = Vec::new();
    for n in 0..6 {
        let other = stage.cluster.names().find(|name| *name != active);
        let other = other.context("two nodes")?.to_owned();
        stage.cluster.wait_follows(&other, TIMEOUT).await?;
        stage.cluster.kill_postgres(&active)?;
        first_row(&stage.cluster.server(&other)?, n).await?;
        acknowledged.push(n);
        active = other;
    }
    stage.commits(100).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let rows = client
        .query("SELECT n FROM first_rows ORDER BY n", &[])
        .await?;
    let rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    ensure!(
        rows == acknowledged,
        "{acknowledged:?} were acknowledged, and there are {rows:?}"
    );
    stage.verify().await
}
