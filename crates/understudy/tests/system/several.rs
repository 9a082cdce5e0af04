//! Several standbys, in different zones, that come and go at any time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use dax::client::Client;
use dax::storage::Storage;
use node::config::Config;
use store::Network;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use volume::claim::Claim;

use crate::bases::{Repeated, checkpoint};
use crate::stage::{Stage, TIMEOUT};

const NODES: [&str; 4] = ["north", "south", "east", "west"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn standbys_come_and_go_and_the_active_too() -> Result<()> {
    let mut stage = Stage::with_options("several", &NODES, |options| {
        // Without distances, but each node has a zone.
        options.network = Some(Network::default());
        options.memory = vec!["cache = \"8MiB\"".into(), "overlay = \"8MiB\"".into()];
        let small = [("shared_buffers", "2MB"), ("max_connections", "30")];
        let small = small.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(small);
    })
    .await?;
    let config = Config::load(&stage.cluster.node("north")?.config)?;
    let storage: Arc<dyn Storage> = Client::connect(config.cluster.client("test")?).await?;
    let first = stage.cluster.wait_active(TIMEOUT).await?;
    let [a, b, c] = others(&first);
    let checkpoints = Repeated::start(stage.cluster.server(&first)?, checkpoint);
    expect_claims(&storage, &[a, b, c]).await?;

    // One dies, one is asked to leave: neither disturbs anybody, and who left claims nothing.
    stage.cluster.kill_node(a).context("it runs")?;
    stage.cluster.stop_node(b, TIMEOUT)?;
    stage.commits(200).await?;
    expect_claims(&storage, &[a, c]).await?;
    stage.cluster.start_node(a)?;
    stage.cluster.start_node(b)?;
    stage.commits(100).await?;
    for name in [a, b, c] {
        stage.cluster.wait_follows(name, TIMEOUT).await?;
    }

    // The active dies: one of them takes over, the others follow it, without a new start.
    checkpoints.abort();
    let mut started = Vec::new();
    for name in [a, b, c] {
        started.push((name, server_start(&stage, name).await?));
    }
    let tries = [a, b, c].map(|name| (name, takeovers_tried(&stage, name)));
    let (dead, killed) = stage.kill_active().await?;
    ensure!(dead == first, "{dead} was active, not {first}");
    let outage = stage.outage_after(killed).await?;
    let second = stage.cluster.wait_active(TIMEOUT).await?;
    println!(
        "{first} killed: {second} serves after {:?}",
        outage.length()
    );
    let checkpoints = Repeated::start(stage.cluster.server(&second)?, checkpoint);
    stage.commits(200).await?;
    let rest: Vec<&str> = others(&second)
        .into_iter()
        .filter(|n| *n != first)
        .collect();
    for &name in &rest {
        stage.cluster.wait_follows(name, TIMEOUT).await?;
        let now = server_start(&stage, name).await?;
        // Who went for the epoch as well, and came second, may not go on: it cannot know what its own
        // takeover changed.
        let raced = !tries.contains(&(name, takeovers_tried(&stage, name)));
        ensure!(
            raced || started.contains(&(name, now)),
            "{name} reattached, although it could continue: {started:?}"
        );
    }
    // Who serves, or served, claims nothing.
    expect_claims(&storage, &rest).await?;
    stage.cluster.start_node(&first)?;
    stage.cluster.wait_follows(&first, TIMEOUT).await?;

    // The active dies together with a standby, while another one starts.
    stage.cluster.stop_node(rest[1], TIMEOUT)?;
    checkpoints.abort();
    stage.cluster.start_node(rest[1])?;
    stage.cluster.kill_node(rest[0]).context("it runs")?;
    let (dead, killed) = stage.kill_active().await?;
    ensure!(dead == second, "{dead} was active, not {second}");
    let outage = stage.outage_after(killed).await?;
    let third = stage.cluster.wait_active(TIMEOUT).await?;
    println!(
        "{second} and {} killed: {third} serves after {:?}",
        rest[0],
        outage.length()
    );
    stage.cluster.start_node(&second)?;
    stage.cluster.start_node(rest[0])?;
    for name in others(&third) {
        stage.cluster.wait_follows(name, TIMEOUT).await?;
    }
    expect_claims(&storage, &others(&third)).await?;
    stage.commits(100).await?;
    stage.verify().await
}

/// When a node's PostgreSQL started. A standby may cancel even this query for its replay, which is repeated.
async fn server_start(stage: &Stage, node: &str) -> Result<String> {
    let client = connect(&stage.cluster.server(node)?.config()).await?;
    let query = "SELECT pg_postmaster_start_time()::text";
    loop {
        match client.query_one(query, &[]).await {
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {}
            done => return Ok(done?.get(0)),
        }
    }
}

/// How often a node began to take over.
fn takeovers_tried(stage: &Stage, node: &str) -> usize {
    let said = stage.cluster.agent_log_lines(": taking over ");
    let own = format!("/{node}.log: ");
    said.iter().filter(|line| line.contains(&own)).count()
}

/// The nodes besides this one.
fn others(active: &str) -> [&'static str; 3] {
    let mut others = NODES.into_iter().filter(|name| *name != active);
    std::array::from_fn(|_| others.next().unwrap_or("a fourth"))
}

/// Waits until exactly these nodes have claims, none of them to everything.
async fn expect_claims(storage: &Arc<dyn Storage>, nodes: &[&str]) -> Result<()> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let claims = Claim::all(storage).await?;
        let mut found: Vec<_> = claims.iter().map(|claim| claim.node.as_str()).collect();
        found.sort_unstable();
        if found == nodes && claims.iter().all(|claim| !claim.everything) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{found:?} claim, not {nodes:?}: {claims:#?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
