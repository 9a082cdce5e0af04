//! Clusters on real Apache Cassandra: three data centres with one node each. Run with
//! `make test-cassandra`.

use std::time::Duration;

use ::cassandra::server;
use anyhow::{Context, Result, ensure};
use cluster::clients::history::Outcome;
use cluster::scratch::Scratch;
use rand::random_range;
use tokio::task::{JoinSet, block_in_place};
use tokio_postgres::Client;

use crate::failover::open_transactions;
use crate::stage::{Stage, TIMEOUT};
use crate::{branched, filled, rewound};

/// How often an active is frozen in each of the tests of that, if the environment does not say.
const ZOMBIES: usize = 2;
/// A machine that is busy with three Java processes takes its time.
const LONG_PATIENCE: Duration = Duration::from_secs(120);

/// A loaded cluster, and what it stands on. Fields are dropped in this order.
struct CassandraStage {
    stage: Stage,
    cassandra: server::Cluster,
    scratch: Scratch,
}

impl CassandraStage {
    /// `north` is in the first data centre, `south` in the second; `north` is active.
    async fn open(test: &str, hints: bool, heartbeat: &str) -> Result<CassandraStage> {
        let scratch = Scratch::new(&format!("{test}-nodes"))?;
        let mut options = server::Options::new(scratch.path());
        if !hints {
            options = options.without_hints();
        }
        let cassandra = block_in_place(|| server::Cluster::start(options))?;
        let stage = Stage::with_options(test, &["north", "south"], |options| {
            options.put_on(&cassandra);
            options.heartbeat = heartbeat.to_owned();
        });
        Ok(CassandraStage {
            stage: Box::pin(stage).await?,
            cassandra,
            scratch,
        })
    }

    /// As [`Stage::verify`], and ends Cassandra.
    async fn verify(self) -> Result<()> {
        Box::pin(self.stage.verify()).await?;
        block_in_place(|| drop(self.cassandra));
        self.scratch.succeed()
    }

    /// As [`Stage::end`], and ends Cassandra.
    async fn end(self) -> Result<()> {
        Box::pin(self.stage.end()).await?;
        block_in_place(|| drop(self.cassandra));
        self.scratch.succeed()
    }

    fn start_nodes(&mut self, nodes: &[usize]) -> Result<()> {
        Ok(block_in_place(|| self.cassandra.start_nodes(nodes))?)
    }

    fn kill(&mut self, node: usize) -> Result<()> {
        Ok(block_in_place(|| self.cassandra.kill(node))?)
    }
}

#[test]
#[ignore = "on Cassandra: make test-cassandra"]
fn the_demo_loses_nothing() -> Result<()> {
    crate::demo::watch("demo-cassandra", &["--store", "cassandra"])
}

#[test]
#[ignore = "on Cassandra: make test-cassandra"]
fn mariadb_loses_nothing() -> Result<()> {
    let more = ["--store", "cassandra", "--duration", "24s"];
    crate::engines::watch("mariadb-cassandra", 3, &more).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn zombies_commit_nothing_with_hints() -> Result<()> {
    Box::pin(zombies("zombies-hints", true)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn zombies_commit_nothing_without_hints() -> Result<()> {
    Box::pin(zombies("zombies-no-hints", false)).await
}

/// Freezes the active in the middle of commits, lets the other one take over, and thaws it; again and again.
async fn zombies(test: &str, hints: bool) -> Result<()> {
    let mut cluster = CassandraStage::open(test, hints, "normal").await?;
    let rounds = std::env::var("ZOMBIES").ok();
    let rounds = rounds.map_or(Ok(ZOMBIES), |rounds| rounds.parse())?;
    for round in 1..=rounds {
        let old = Box::pin(one_zombie(&mut cluster, round)).await?;
        println!("{round} of {rounds}: {old} was frozen, its successor serves, it follows");
    }
    cluster.verify().await
}

/// One round; returns who was frozen.
async fn one_zombie(cluster: &mut CassandraStage, round: usize) -> Result<String> {
    let CassandraStage {
        stage, cassandra, ..
    } = cluster;
    let old = stage.cluster.wait_active(TIMEOUT).await?;
    let other = stage.cluster.names().find(|name| *name != old);
    let other = other.context("two nodes")?.to_owned();
    stage.expect_fenced(&old);
    let zombies = open_transactions(&stage.cluster.server(&old)?).await?;
    // In every third round a copy hangs, too: what it misses comes late, as hints if there are any.
    let hangs = round.is_multiple_of(3);
    if hangs {
        cassandra.pause(2)?;
    }
    tokio::time::sleep(Duration::from_millis(random_range(0..500))).await;
    let frozen = stage.clock.now();
    stage.cluster.node_process(&old).context("it runs")?.pause();
    stage.cluster.wait_takes_over(&other, LONG_PATIENCE).await?;
    // These wait in its sockets when it thaws.
    let mut answers = JoinSet::new();
    for zombie in zombies {
        answers.spawn(commits(zombie));
    }
    tokio::time::sleep(Duration::from_millis(random_range(0..500))).await;
    stage
        .cluster
        .node_process(&old)
        .context("it runs")?
        .resume();
    let acknowledged = answers.join_all().await;
    let acknowledged = acknowledged.into_iter().filter(|yes| *yes).count();
    ensure!(
        acknowledged == 0,
        "{acknowledged} commits were acknowledged"
    );
    if hangs {
        cassandra.resume(2)?;
    }
    stage.outage_after(frozen).await?;
    stage.cluster.wait_follows(&old, LONG_PATIENCE).await?;
    stage.commits(20).await?;
    Ok(old)
}

async fn commits(session: Client) -> bool {
    session.batch_execute("COMMIT").await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn killed_node_is_noticed_by_no_client() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("nodes", true, "wide")).await?;
    // The active's own copy, which coordinates for it; the standby's; the third one.
    for node in 0..3 {
        cluster.kill(node)?;
        cluster.stage.commits(200).await?;
        cluster.start_nodes(&[node])?;
        cluster.stage.commits(50).await?;
    }
    let history = cluster.stage.load.as_ref().context("load")?.history();
    let attempts = history.attempts().iter();
    let failed: Vec<_> = attempts
        .filter(|attempt| attempt.outcome != Outcome::Acknowledged)
        .collect();
    ensure!(failed.is_empty(), "{failed:?}");
    cluster
        .stage
        .cluster
        .wait_follows("south", LONG_PATIENCE)
        .await?;
    cluster.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn a_data_centre_lost_with_the_active_loses_nothing() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("data-centre", true, "wide")).await?;
    cluster.kill(0)?;
    let (dead, killed) = cluster.stage.kill_active().await?;
    ensure!(dead == "north", "{dead} was active");
    let outage = cluster.stage.outage_after(killed).await?;
    println!("{:?} without commits", outage.length());
    cluster.stage.commits(200).await?;
    cluster.start_nodes(&[0])?;
    cluster.stage.cluster.start_node(&dead)?;
    cluster
        .stage
        .cluster
        .wait_follows(&dead, LONG_PATIENCE)
        .await?;
    cluster.stage.commits(50).await?;
    cluster.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn two_data_centres_lost_cost_only_time() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("two-data-centres", true, "wide")).await?;
    cluster.kill(1)?;
    cluster.kill(2)?;
    // What was on its way may still be answered; then nothing can be.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let count =
        |cluster: &CassandraStage| cluster.stage.load.as_ref().map(|load| load.acknowledged());
    let before = count(&cluster);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = count(&cluster);
    ensure!(before == after, "{before:?}, then {after:?} commits");
    cluster.start_nodes(&[1, 2])?;
    cluster.stage.commits(200).await?;
    cluster.verify().await
}

// hazard: LAYER-2, LAYER-6, LAYER-7
#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn branches_go_their_own_ways() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("branched", true, "wide")).await?;
    Box::pin(branched::go_their_own_ways(&mut cluster.stage)).await?;
    cluster.verify().await
}

// hazard: LAYER-10, LAYER-13
#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn a_branch_is_filled_and_what_it_was_made_of_is_dropped() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("filled", true, "wide")).await?;
    Box::pin(filled::fill_and_drop(&mut cluster.stage, false)).await?;
    cluster.end().await
}

// hazard: MOVE-1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "on Cassandra: make test-cassandra"]
async fn a_rewind_is_undone() -> Result<()> {
    let mut cluster = Box::pin(CassandraStage::open("rewound", true, "wide")).await?;
    Box::pin(rewound::back_and_forth(&mut cluster.stage, false)).await?;
    cluster.end().await
}
