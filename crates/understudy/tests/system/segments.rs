//! Tables of several segments: PostgreSQL keeps a relation in files of 1 GiB. The first is made long
//! without being written: pages that a server never wrote after it made room for them look the same.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use tokio_postgres::Client;

use crate::stage::{TIMEOUT, program};

const SEGMENT_BYTES: u64 = 1 << 30;
const PAGE_BYTES: u64 = 8192;
/// By the index: the pages in between are empty.
const QUESTION: &str = "SELECT count(*) || ' ' || sum(n) || ' ' || md5(string_agg(word, '' ORDER BY n)) || ' ' || pg_relation_size('wide') FROM wide WHERE n > 0";

// hazard: H10
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_table_of_two_segments_goes_through_takeovers() -> Result<()> {
    let scratch = Scratch::new("segments")?;
    let mut cluster = two_segments(&scratch).await?;

    // The second segment grows and changes while the base moves.
    let moves = moves_of(&cluster, "south").await?;
    let change = "UPDATE wide SET word = word || 'c' WHERE n > 0 AND n % 9 = 0";
    execute(&cluster, "north", &[&more(201, 260), change, "CHECKPOINT"]).await?;
    wait_moves(&cluster, "south", moves + 1).await?;
    let change = "DELETE FROM wide WHERE n > 0 AND n % 7 = 0";
    execute(&cluster, "north", &[change, &more(301, 420)]).await?;
    same(&mut cluster, "north", "south").await?;

    let said = take_over(&mut cluster, "north", "south").await?;
    ensure!(said == ask(&cluster, "south").await?, "lost: {said}");
    execute(&cluster, "south", &[&more(501, 560), "CHECKPOINT"]).await?;
    cluster.start_node("north")?;
    same(&mut cluster, "south", "north").await?;

    // Both segments go. No checkpoint until the takeover: the last seal has them still.
    let old = file(&cluster, "south").await?;
    execute(&cluster, "south", &["TRUNCATE wide", &more(1, 100)]).await?;
    same(&mut cluster, "south", "north").await?;
    let said = take_over(&mut cluster, "south", "north").await?;
    ensure!(said == ask(&cluster, "north").await?, "lost: {said}");
    execute(&cluster, "north", &[&more(601, 700), "CHECKPOINT"]).await?;
    let old = cluster
        .node("north")?
        .data
        .join("pgdata")
        .join(old.strip_prefix(cluster.node("south")?.data.join("pgdata"))?);
    ensure!(!second(&old).try_exists()?, "the second segment is back");
    cluster.start_node("south")?;
    same(&mut cluster, "north", "south").await?;
    sound(cluster, "north", scratch).await
}

/// The cut goes over the end of a file, and the last seal before the takeover has all of both.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_vacuum_cuts_a_table_over_the_end_of_its_first_segment() -> Result<()> {
    let scratch = Scratch::new("cut")?;
    let mut cluster = two_segments(&scratch).await?;
    let first = file(&cluster, "north").await?;
    let delete = "DELETE FROM wide WHERE n > 100";
    execute(&cluster, "north", &[delete]).await?;
    let deadline = Instant::now() + TIMEOUT;
    // Not as long as a snapshot, of the standby for example, may see the rows.
    while first.metadata()?.len() > SEGMENT_BYTES / 2 {
        ensure!(Instant::now() < deadline, "nothing is cut");
        // The few dead rows of a large table would be left for later otherwise.
        let vacuum = "VACUUM (INDEX_CLEANUP on) wide";
        execute(&cluster, "north", &[vacuum]).await?;
    }
    ensure!(second(&first).metadata()?.len() == 0);
    same(&mut cluster, "north", "south").await?;
    execute(&cluster, "north", &[&more(1001, 1040)]).await?;
    same(&mut cluster, "north", "south").await?;
    let said = take_over(&mut cluster, "north", "south").await?;
    ensure!(said == ask(&cluster, "south").await?, "lost: {said}");
    execute(&cluster, "south", &[&more(1101, 1140), "CHECKPOINT"]).await?;
    cluster.start_node("north")?;
    same(&mut cluster, "south", "north").await?;
    sound(cluster, "south", scratch).await
}

/// Two nodes that follow each other, north is the active; the table `wide` reaches into a second segment.
async fn two_segments(scratch: &Scratch) -> Result<Cluster> {
    let bin = programs::find(None)?;
    let mut options = Options::new(scratch.path(), &bin, program());
    options.heartbeat = "wide".into();
    let parameters = [("autovacuum", "off"), ("shared_buffers", "16MB")];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
    options.parameters.extend(parameters);
    let mut cluster = Cluster::create(options)?;
    cluster.start().await?;
    ensure!(cluster.wait_active(TIMEOUT).await? == "north");
    let make = [
        "CREATE TABLE wide (n int PRIMARY KEY, word text)",
        "INSERT INTO wide SELECT g, repeat('a', 1000) FROM generate_series(1, 100) g",
        "CHECKPOINT",
    ];
    execute(&cluster, "north", &make).await?;

    // Nobody replays while the room is made, which no log tells of.
    cluster.kill_node("south").context("it runs")?;
    let first = file(&cluster, "north").await?;
    let end = SEGMENT_BYTES - 4 * PAGE_BYTES;
    std::fs::OpenOptions::new()
        .write(true)
        .open(&first)?
        .set_len(end)?;
    execute(&cluster, "north", &[&more(101, 200), "CHECKPOINT"]).await?;
    ensure!(first.metadata()?.len() == SEGMENT_BYTES);
    ensure!(second(&first).metadata()?.len() > PAGE_BYTES);
    cluster.start_node("south")?;
    cluster.wait_follows("south", TIMEOUT).await?;
    Ok(cluster)
}

/// Stops; nothing is broken, and nobody complained.
async fn sound(mut cluster: Cluster, active: &str, scratch: Scratch) -> Result<()> {
    let check = verify::amcheck(&cluster.options().bin, &cluster.server(active)?).await?;
    ensure!(check.passed, "{check:?}");
    let found = cluster.unexpected_log_lines(|_, _| false);
    ensure!(found.is_empty(), "{}", found.join("\n"));
    cluster.shutdown();
    scratch.succeed()
}

fn more(first: u32, last: u32) -> String {
    format!("INSERT INTO wide SELECT g, repeat('b', 1000) FROM generate_series({first}, {last}) g")
}

async fn execute(cluster: &Cluster, node: &str, statements: &[&str]) -> Result<()> {
    let client = by_index(cluster, node).await?;
    for statement in statements {
        let done = client.batch_execute(statement).await;
        done.with_context(|| (*statement).to_owned())?;
    }
    Ok(())
}

/// A session that does not read tables whole.
async fn by_index(cluster: &Cluster, node: &str) -> Result<Client> {
    let client = connect(&cluster.server(node)?.config()).await?;
    client.batch_execute("SET enable_seqscan = off").await?;
    Ok(client)
}

async fn ask(cluster: &Cluster, node: &str) -> Result<String> {
    let client = by_index(cluster, node).await?;
    Ok(client.query_one(QUESTION, &[]).await?.get(0))
}

/// The standby, once it has replayed all, says what the active says.
async fn same(cluster: &mut Cluster, active: &str, standby: &str) -> Result<()> {
    cluster.wait_follows(standby, TIMEOUT).await?;
    let (said, heard) = (ask(cluster, active).await?, ask(cluster, standby).await?);
    ensure!(said == heard, "{standby} says {heard}, not {said}");
    Ok(())
}

/// Kills the active once it has said what there is; waits for the other.
async fn take_over(cluster: &mut Cluster, from: &str, to: &str) -> Result<String> {
    let said = ask(cluster, from).await?;
    cluster.kill_node(from).context("it does not run")?;
    let active = cluster.wait_active(TIMEOUT).await?;
    ensure!(active == to, "{active} is active");
    Ok(said)
}

/// The table's first segment, in a node's mount.
async fn file(cluster: &Cluster, node: &str) -> Result<PathBuf> {
    let client = connect(&cluster.server(node)?.config()).await?;
    let row = client.query_one("SELECT pg_relation_filepath('wide')", &[]);
    let path: String = row.await?.get(0);
    Ok(cluster.node(node)?.data.join("pgdata").join(path))
}

fn second(first: &std::path::Path) -> PathBuf {
    let mut name = first.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// How often a standby's base has moved.
async fn moves_of(cluster: &Cluster, node: &str) -> Result<u64> {
    let config = cluster.node(node)?.config.display().to_string();
    let status = cluster
        .run(&["status", "--json", "--config", &config])
        .await?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let nodes = status["nodes"].as_array().context("no nodes")?;
    let found = nodes.iter().find(|found| found["name"] == node);
    let moves = found.and_then(|node| node["answer"]["base"]["moves"].as_u64());
    Ok(moves.unwrap_or(0))
}

async fn wait_moves(cluster: &Cluster, node: &str, moves: u64) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while moves_of(cluster, node).await? < moves {
        ensure!(
            Instant::now() < deadline,
            "the base of {node} does not move"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
