//! An active that cannot prove that its epoch stands answers nobody, also those who are connected to its PostgreSQL itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use parking_lot::Mutex;
use store::Network;
use tokio_postgres::Client;

use crate::stage::{Stage, TIMEOUT};

/// As long as a read may take that comes from memory.
const MOMENT: Duration = Duration::from_millis(500);

/// An answer to one session, and when it was asked for.
#[derive(Debug, Clone, Copy)]
struct Answer {
    asked: Instant,
    value: i32,
}

/// Reads one row over and over, until its server ends the session.
async fn read(client: Client, answers: Arc<Mutex<Vec<Answer>>>) {
    loop {
        let asked = Instant::now();
        let Ok(row) = client.query_one("SELECT v FROM one_row", &[]).await else {
            return;
        };
        let value = row.get(0);
        answers.lock().push(Answer { asked, value });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// It went on reading from its memory for as long as it was cut off: 290 old answers within 15 s.
// hazard: NODE-21
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn client_of_a_cut_off_active_reads_nothing_old() -> Result<()> {
    let network = Some(Network::default());
    let mut stage = Stage::over("unproved", &["north", "south"], network).await?;
    let old = stage.cluster.wait_active(TIMEOUT).await?;
    ensure!(old == "north", "{old} is active");
    let client = connect(&stage.cluster.server(&old)?.config()).await?;
    let made = "CREATE TABLE one_row (v int); INSERT INTO one_row VALUES (0)";
    client.batch_execute(made).await?;
    let answers = Arc::<Mutex<Vec<Answer>>>::default();
    let reader = tokio::spawn(read(client, Arc::clone(&answers)));

    stage.expect_fenced(&old);
    for zone in [1, 2] {
        stage.cluster.set_cut(0, zone, true)?;
    }
    stage.cluster.wait_takes_over("south", TIMEOUT).await?;
    let new = connect(&stage.cluster.server("south")?.config()).await?;
    new.batch_execute("UPDATE one_row SET v = 1").await?;
    let updated = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(!reader.is_finished(), "it waits, and is not told anything");
    for zone in [1, 2] {
        stage.cluster.set_cut(0, zone, false)?;
    }
    let ended = tokio::time::timeout(TIMEOUT, reader).await;
    ended.context("the old server goes")??;
    let answers = answers.lock().clone();
    let stale: Vec<_> = answers.iter().filter(|a| a.asked > updated).collect();
    ensure!(stale.is_empty(), "{} old answers: {stale:?}", stale.len());
    let many = answers.len() > 20 && answers.iter().all(|answer| answer.value == 0);
    ensure!(many, "it read before: {answers:?}");
    stage.commits(100).await?;
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn an_outage_of_the_zones_ends_no_session() -> Result<()> {
    let mut stage = Stage::set("outage").await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    client.batch_execute("BEGIN; SELECT 1").await?;
    for zone in [1, 2] {
        stage.cluster.kill_zone(zone).context("it runs")?;
    }
    // Heartbeats stay away for Tmax first.
    let deadline = Instant::now() + TIMEOUT;
    let waiting = loop {
        let mut asked = Box::pin(client.batch_execute("SELECT 2"));
        match tokio::time::timeout(MOMENT, &mut asked).await {
            Ok(answered) => answered?,
            Err(_) => break asked,
        }
        ensure!(Instant::now() < deadline, "answered without proof");
        tokio::time::sleep(MOMENT).await;
    };
    for zone in [1, 2] {
        stage.cluster.start_zone(zone)?;
    }
    tokio::time::timeout(TIMEOUT, waiting).await??;
    client.batch_execute("COMMIT").await?;
    stage.commits(100).await?;
    ensure!(stage.cluster.wait_active(TIMEOUT).await? == active);
    stage.verify().await
}
