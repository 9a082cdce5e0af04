//! A standby that lives long: its base follows the checkpoints while clients read from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use dax::client::Client;
use dax::storage::Storage;
use node::config::Config;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use volume::claim::Claim;
use volume::standby::ReadStats;

use crate::stage::{Stage, TIMEOUT};

/// Moves that the first standby must make, and the time that it follows at least.
const MOVES: u64 = 8;
const FOLLOWS: Duration = Duration::from_secs(30);
/// The same for the second one, after a takeover.
const MOVES_AFTER: u64 = 3;
/// Answers that each reader gets of the first standby at least. None are asked of the second: while it
/// catches up after its start, redo lets no query live that is in its way.
const ANSWERS: u64 = 2;
/// Images that the standby claims at most, however often its base moved: with more in use it would
/// attach afresh.
const IMAGES_MAX: usize = 16;
/// Pause between two rounds, so that others have the processors.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(100);

// hazard: N3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn the_base_follows_and_readers_see_nothing_of_it() -> Result<()> {
    let mut stage = Stage::with_options("bases", &["north", "south"], |options| {
        // Pages leave the buffers all the time, and come back from the overlay or the base.
        let small = [("shared_buffers", "2MB"), ("max_connections", "40")];
        let small = small.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(small);
        // A reader of a busy machine needs longer than redo waits otherwise, and would never have an answer.
        options
            .standby
            .push("max_streaming_delay = \"4s\"".to_owned());
        let moves = "info,volume::standby::moves=debug,node::agent::moving=debug";
        options.log_filter = Some(moves.to_owned());
    })
    .await?;
    let storage = registry(&stage).await?;
    let (dead, samples) = follow_for_a_while(&mut stage, &storage, MOVES, FOLLOWS).await?;
    let counted = samples.is_sorted_by_key(|sample| sample.moves);
    ensure!(counted, "the standby reattached: {samples:#?}");

    stage.cluster.start_node(&dead)?;
    stage.cluster.wait_follows(&dead, TIMEOUT).await?;
    follow_for_a_while(&mut stage, &storage, MOVES_AFTER, Duration::ZERO).await?;
    stage.verify().await
}

/// Checkpoints, reads on the standby, and watches its base move; then kills the active and returns
/// its name, and what was seen of the standby.
async fn follow_for_a_while(
    stage: &mut Stage,
    storage: &Arc<dyn Storage>,
    moves: u64,
    at_least: Duration,
) -> Result<(String, Vec<Sample>)> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| **name != active);
    let standby = standby.context("two nodes")?.to_owned();
    let checkpoints = Repeated::start(stage.cluster.server(&active)?, checkpoint);
    let balances = Repeated::start(stage.cluster.server(&standby)?, read_balances);
    let indexes = Repeated::start(stage.cluster.server(&standby)?, read_indexes);

    let samples = watch_moves(stage, &standby, moves, at_least).await?;
    check_overlay(&samples)?;
    check_reads(&samples)?;
    check_claim(storage, &standby).await?;

    // The checkpoints go on to the end; readers lose their server at the takeover, or soon after.
    let answers = if at_least.is_zero() { 0 } else { ANSWERS };
    let read = (balances.stop(answers).await?, indexes.stop(answers).await?);
    println!("{standby} answered {} and {} times", read.0, read.1);
    let (dead, killed) = stage.kill_active().await?;
    ensure!(dead == active, "{dead} is active, not {active}");
    checkpoints.abort();
    let outage = stage.outage_after(killed).await?;
    println!("{dead} killed: {:?} without commits", outage.length());
    stage.commits(200).await?;
    Ok((dead, samples))
}

/// A standby at one moment.
#[derive(Debug)]
struct Sample {
    moves: u64,
    pause_ms: Option<f64>,
    overlay_bytes: u64,
    lag_bytes: Option<u64>,
    reads: ReadStats,
}

impl Sample {
    async fn take(stage: &Stage, standby: &str) -> Result<Option<Sample>> {
        let Some(node) = stage.status_of(standby).await? else {
            return Ok(None);
        };
        let (base, overlay) = (&node["answer"]["base"], &node["answer"]["overlay"]);
        let Some(moves) = base["moves"].as_u64() else {
            return Ok(None);
        };
        let bytes = ["memory_bytes", "spill_bytes"].map(|name| overlay[name].as_u64());
        Ok(Some(Sample {
            moves,
            pause_ms: base["last_pause_ms"].as_f64(),
            overlay_bytes: bytes.into_iter().flatten().sum(),
            lag_bytes: node["lag_bytes"].as_u64(),
            reads: serde_json::from_value(node["answer"]["reads"].clone())?,
        }))
    }
}

/// Looks at the standby until its base moved so often, at least so long.
async fn watch_moves(
    stage: &mut Stage,
    standby: &str,
    moves: u64,
    at_least: Duration,
) -> Result<Vec<Sample>> {
    let began = Instant::now();
    let deadline = began + at_least + 3 * TIMEOUT;
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        samples.extend(Sample::take(stage, standby).await?);
        let last = samples.last();
        if last.is_some_and(|last| last.moves >= moves) && began.elapsed() >= at_least {
            return Ok(samples);
        }
        ensure!(
            Instant::now() < deadline,
            "the base of {standby} does not move {moves} times: {:#?}",
            samples.last()
        );
        stage.cluster.check_running()?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Blocks were read from one zone because the active's lists said what they must be, also across moves.
fn check_reads(samples: &[Sample]) -> Result<()> {
    let last = samples.last().context("no samples")?.reads;
    println!("{last:?}");
    ensure!(last.expected > 0 && last.moves_listed > 0, "{last:?}");
    Ok(())
}

/// The overlay shrinks when the base moves, so it does not grow with the time that the standby lives.
fn check_overlay(samples: &[Sample]) -> Result<()> {
    let bytes = |samples: &[Sample]| samples.iter().map(|s| s.overlay_bytes).max().unwrap_or(0);
    let (early, late) = samples.split_at(samples.len() / 2);
    let mut pauses: Vec<f64> = samples.iter().filter_map(|s| s.pause_ms).collect();
    pauses.dedup();
    println!(
        "{} moves; overlay at most {} kB in the first half, {} kB in the second, {} kB now; at most {} \
         bytes behind; pauses of {:?} ms",
        samples.last().map_or(0, |s| s.moves),
        bytes(early) >> 10,
        bytes(late) >> 10,
        samples.last().map_or(0, |s| s.overlay_bytes >> 10),
        samples
            .iter()
            .filter_map(|s| s.lag_bytes)
            .max()
            .unwrap_or(0),
        pauses
    );
    let moved = samples.windows(2).filter(|two| two[0].moves < two[1].moves);
    let shrank = moved.filter(|two| two[1].overlay_bytes < two[0].overlay_bytes);
    ensure!(
        shrank.count() >= 1,
        "the overlay never shrinks: {samples:#?}"
    );
    ensure!(
        bytes(late) <= 3 * bytes(early) + (8 << 20),
        "the overlay grows on and on: {samples:#?}"
    );
    Ok(())
}

/// The claim follows: it does not name a base for every move. A few may stay for files that redo
/// leaves alone; how many is bounded, by attaching afresh.
async fn check_claim(storage: &Arc<dyn Storage>, standby: &str) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let claims = Claim::all(storage).await?;
        let claim = claims.iter().find(|c| c.node.as_str() == standby);
        let claim = claim.context("the standby claims nothing")?;
        if !claim.everything && claim.images.len() <= IMAGES_MAX {
            println!(
                "claimed: {} images, log from {}",
                claim.images.len(),
                claim.log_from
            );
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the claim stays: {claim:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn registry(stage: &Stage) -> Result<Arc<dyn Storage>> {
    let config = Config::load(&stage.cluster.node("north")?.config)?;
    Ok(Client::connect(config.cluster.client("test")?).await?)
}

/// Something that a session does again and again.
pub struct Repeated {
    stop: watch::Sender<bool>,
    rounds: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
}

impl Repeated {
    pub fn start<F>(server: Server, round: fn(Arc<tokio_postgres::Client>) -> F) -> Repeated
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let rounds = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&rounds);
        let task = tokio::spawn(async move {
            let mut client: Option<Arc<tokio_postgres::Client>> = None;
            while !*stopped.borrow() {
                let connected = match client.take().filter(|client| !client.is_closed()) {
                    Some(client) => Ok(client),
                    None => connect(&server.config()).await.map(Arc::new),
                };
                let done = match connected {
                    Ok(connected) => {
                        client = Some(Arc::clone(&connected));
                        round(connected).await
                    }
                    // Nothing was answered wrong; whether it attached afresh is looked at elsewhere.
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                match done {
                    Ok(()) => {
                        counter.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(BETWEEN_ROUNDS).await;
                    }
                    Err(error) if gave_way_to_redo(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        Repeated { stop, rounds, task }
    }

    /// Waits for so many rounds and lets the one at hand finish; how many there were.
    pub async fn stop(self, at_least: u64) -> Result<u64> {
        let deadline = Instant::now() + TIMEOUT;
        while self.rounds.load(Ordering::Relaxed) < at_least && !self.task.is_finished() {
            ensure!(Instant::now() < deadline, "hardly any round");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.stop.send_replace(true);
        self.task.await??;
        Ok(self.rounds.load(Ordering::Relaxed))
    }

    /// Whatever it says: its server was killed.
    pub fn abort(self) {
        self.task.abort();
    }
}

/// A query on a standby may have to, and its session as well (N12).
pub fn gave_way_to_redo(error: &anyhow::Error) -> bool {
    let Some(error) = error.downcast_ref::<tokio_postgres::Error>() else {
        return false;
    };
    let code = error.code();
    error.is_closed() || code == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

pub async fn checkpoint(client: Arc<tokio_postgres::Client>) -> Result<()> {
    client.batch_execute("CHECKPOINT").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// The same money everywhere, in every snapshot, by reading the tables.
async fn read_balances(client: Arc<tokio_postgres::Client>) -> Result<()> {
    let row = client
        .query_one(
            "SELECT (SELECT coalesce(sum(abalance), 0)::bigint FROM pgbench_accounts),
                    (SELECT coalesce(sum(tbalance), 0)::bigint FROM pgbench_tellers),
                    (SELECT coalesce(sum(bbalance), 0)::bigint FROM pgbench_branches),
                    (SELECT coalesce(sum(delta), 0)::bigint FROM pgbench_history),
                    (SELECT count(*) FROM pgbench_accounts),
                    (SELECT count(*) FROM pgbench_history),
                    (SELECT count(*) FROM understudy_ledger)",
            &[],
        )
        .await?;
    let sums: [i64; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    let counts: [i64; 3] = [row.get(4), row.get(5), row.get(6)];
    ensure!(
        sums.iter().all(|sum| *sum == sums[0]) && counts[0] == 100_000 && counts[1] == counts[2],
        "the standby answers {sums:?}, {counts:?}"
    );
    Ok(())
}

/// The same rows through the indexes, for which the visibility map must be right.
async fn read_indexes(client: Arc<tokio_postgres::Client>) -> Result<()> {
    client.batch_execute("SET enable_seqscan = off").await?;
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM pgbench_accounts WHERE aid > 0),
                    (SELECT sum(aid)::bigint FROM pgbench_accounts WHERE aid > 0),
                    (SELECT count(*) FROM pgbench_history),
                    (SELECT count(*) FROM understudy_ledger WHERE client > 0)",
            &[],
        )
        .await?;
    let counts: [i64; 4] = [row.get(0), row.get(1), row.get(2), row.get(3)];
    ensure!(
        counts[0] == 100_000 && counts[1] == 5_000_050_000 && counts[2] == counts[3],
        "the standby answers through indexes {counts:?}"
    );
    Ok(())
}
