//! Catching up, by the number of blocks that are read at the same time (CAC-DB 4.4.1).
//!
//! A standby is away while the active changes rows all over a database much larger than anybody's
//! buffers. Then it is started again and again with different settings, each time on the same seal and
//! the same log, with everything as cold as it can be.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use volume::lsn::Lsn;

use super::Options;
use super::site::{self, ACTIVE, STANDBY, TIMEOUT};
use crate::pgbench::run_pgbench;
use cluster::Cluster;

/// Distances to the storage, there and back, in milliseconds.
const LATENCIES_MS: [u32; 2] = [5, 50];
/// Blocks read at the same time; 0: redo reads alone.
const DEGREES: [u32; 6] = [0, 1, 2, 4, 10, 20];
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One standby that caught up.
#[derive(Debug, Clone, Serialize)]
pub struct CatchUp {
    /// To every copy, there and back.
    pub latency_ms: u32,
    /// Blocks read at the same time ahead of redo.
    pub degree: u32,
    /// From the start of redo to its end.
    pub seconds: f64,
    /// From the start of the node to the end of redo.
    pub seconds_with_start: f64,
    /// Log replayed in that time, per second.
    pub bytes_per_second: f64,
    /// Blocks that were fetched ahead of redo.
    pub fetched: u64,
    /// Blocks that were fetched ahead and that redo read.
    pub used: u64,
    /// Seconds since the start of redo, and the log left to replay.
    pub lag: Vec<(f64, u64)>,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<CatchUp>> {
    say("curve: starting and filling a cluster");
    let mut settings = site::settings(options, dir, &["prefetch = 0", "slow = \"follow\""]);
    let seldom = [("checkpoint_timeout", "1h"), ("autovacuum", "off")];
    let seldom = seldom.map(|(name, value)| (name.to_owned(), value.to_owned()));
    settings.parameters.extend(seldom);
    let mut cluster = site::start(options, settings, options.scale).await?;
    change_rows(options, &cluster).await?;
    let end = site::log_end(&cluster).await?;

    let mut runs = Vec::new();
    for latency_ms in LATENCIES_MS {
        cluster.change_network(|n| *n = site::far_standby(latency_ms.into()))?;
        // The zones look at the file now and then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for degree in DEGREES {
            let line = format!("prefetch = {degree}");
            site::configure(&cluster, STANDBY, "prefetch =", &line)?;
            let run = catch_up(&mut cluster, end, latency_ms, degree).await?;
            say(&format!(
                "curve: {latency_ms} ms, {degree} at once: {:.1} s",
                run.seconds
            ));
            runs.push(run);
        }
    }
    cluster.check_running()?;
    cluster.shutdown();
    Ok(runs)
}

/// A checkpoint, and then changes all over the table.
async fn change_rows(options: &Options, cluster: &Cluster) -> anyhow::Result<()> {
    let server = cluster.server(ACTIVE)?;
    let client = cluster::clients::session::connect(&server.config()).await?;
    client.batch_execute("CHECKPOINT").await?;
    let script = options.dir.join("changes.sql");
    std::fs::write(
        &script,
        "\\set aid random(1, 100000 * :scale)\n\
         UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n",
    )?;
    let transactions = (options.transactions / 4).to_string();
    let (scale, script) = (options.scale.to_string(), script.display().to_string());
    let arguments = [
        "--no-vacuum",
        "--client",
        "4",
        "--random-seed",
        "1",
        "--transactions",
        &transactions,
        "--scale",
        &scale,
        "--file",
        &script,
    ];
    run_pgbench(&options.bin, &server, &arguments).await?;
    Ok(())
}

/// Starts the standby, waits until it has replayed up to `end`, and stops it.
async fn catch_up(
    cluster: &mut Cluster,
    end: Lsn,
    latency_ms: u32,
    degree: u32,
) -> anyhow::Result<CatchUp> {
    let started = Instant::now();
    cluster.start_node(STANDBY)?;
    let mut redo_began: Option<(Instant, Lsn)> = None;
    let mut lag = Vec::new();
    let last = loop {
        ensure!(
            started.elapsed() < TIMEOUT,
            "the standby does not catch up; the logs are in {}",
            cluster.logs().display()
        );
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(answer) = site::ask(cluster, STANDBY).await? else {
            cluster.check_running()?;
            continue;
        };
        let at = site::position(&answer, "redo").max(site::position(&answer, "applied"));
        if at == Lsn::ZERO {
            continue;
        }
        let (began, _) = *redo_began.get_or_insert((Instant::now(), at));
        lag.push((began.elapsed().as_secs_f64(), end.bytes_since(at)));
        if site::position(&answer, "applied") >= end {
            break answer;
        }
    };
    let (began, from) = redo_began.context("redo never began")?;
    let seconds = began.elapsed().as_secs_f64();
    let count = |name: &str| last["prefetch"][name].as_u64().unwrap_or_default();
    let run = CatchUp {
        latency_ms,
        degree,
        seconds,
        seconds_with_start: started.elapsed().as_secs_f64(),
        bytes_per_second: end.bytes_since(from) as f64 / seconds,
        fetched: count("fetched"),
        used: count("used"),
        lag,
    };
    // As a machine that is switched off: what it read is lost, and nobody waits for it.
    cluster.kill_node(STANDBY);
    Ok(run)
}
