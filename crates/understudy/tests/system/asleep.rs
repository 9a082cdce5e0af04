//! A standby that is frozen until what it stands on has been given back, and thawed with a query waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use dax::client::Client;
use dax::storage::Storage;
use node::config::Config;
use volume::claim::{Claim, GRACE};

use crate::stage::{TIMEOUT, program};

const ROWS: i64 = 20_000;
/// Read through the table, whose pages do not fit into what the standby may keep of them.
const QUESTION: &str = "SELECT count(*), coalesce(sum(n), 0)::bigint FROM sheep";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_that_slept_answers_what_it_stood_on_or_nothing() -> Result<()> {
    let scratch = Scratch::new("asleep")?;
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    options.memory = vec!["cache = \"8MiB\"".into(), "overlay = \"8MiB\"".into()];
    let quiet = [("autovacuum", "off"), ("checkpoint_timeout", "1h")];
    let small = [("shared_buffers", "1MB"), ("enable_indexscan", "off")];
    let parameters = quiet.iter().chain(&small);
    let parameters = parameters.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.parameters.extend(parameters);
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    ensure!(cluster.wait_active(TIMEOUT).await? == "north");
    cluster.kill_node("south").context("it runs")?;
    let north = connect(&cluster.server("north")?.config()).await?;
    let table = "CREATE TABLE sheep AS SELECT n, repeat('wool', 200) AS coat FROM generate_series(1, 20000) n";
    for statement in [table, "VACUUM sheep", "CHECKPOINT"] {
        north.batch_execute(statement).await?;
    }
    cluster.start_node("south")?;
    cluster.wait_follows("south", TIMEOUT).await?;
    let session = connect(&cluster.server("south")?.config()).await?;
    let question = session.prepare(QUESTION).await?;

    let south = cluster.node_process("south").context("it runs")?;
    south.pause();
    let config = cluster.node("north")?.config.display().to_string();
    cluster
        .run(&["remove", "south", "--config", &config])
        .await?;
    // It waits in the sleeper's socket.
    let query = tokio::spawn(async move { session.query_one(&question, &[]).await });
    let config = Config::load(&cluster.node("north")?.config)?;
    let storage: Arc<dyn Storage> = Client::connect(config.cluster.client("test")?).await?;
    wait_given_back(&storage).await?;
    for _ in 0..3 {
        north.batch_execute("UPDATE sheep SET n = n").await?;
        north.batch_execute("CHECKPOINT").await?;
    }
    cluster.node_process("south").context("it runs")?.resume();
    match query.await? {
        Ok(row) => {
            let seen: (i64, i64) = (row.get(0), row.get(1));
            ensure!(seen == (ROWS, ROWS * (ROWS + 1) / 2), "it answers {seen:?}");
        }
        Err(error) => println!("it answers nothing: {error}"),
    }
    cluster.wait_follows("south", TIMEOUT).await?;
    let session = connect(&cluster.server("south")?.config()).await?;
    let row = session.query_one(QUESTION, &[]).await?;
    let seen: (i64, i64) = (row.get(0), row.get(1));
    ensure!(seen == (ROWS, ROWS * (ROWS + 1) / 2), "it answers {seen:?}");
    cluster.shutdown();
    scratch.succeed()
}

/// Waits until the active has given back what the sleeper claimed, which takes its time.
async fn wait_given_back(storage: &Arc<dyn Storage>) -> Result<()> {
    let deadline = Instant::now() + GRACE + TIMEOUT;
    while Claim::all(storage)
        .await?
        .iter()
        .any(|claim| claim.node.as_str() == "south")
    {
        ensure!(Instant::now() < deadline, "the claim stays");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
