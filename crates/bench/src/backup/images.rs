//! The active and the zones while images of the past are kept, beside the same without any.
//!
//! Invariant: runs alternate, and each has the same checkpoints. After each run with images, everything that was kept for them is
//! given back before the next one begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::Cluster;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use dax::client::Client;
use dax::ids::NodeName;
use dax::storage::Storage;
use node::config::Config;
use serde::Serialize;
use volume::claim::Claim;
use volume::past::Pin;

use super::archive::{CLIENTS, Runs};
use super::tools::WITHIN;
use crate::peers::footprint::{cpu_seconds, memory_bytes};
use crate::pgbench::timed;
use crate::statistics::Sample;

/// Images that are kept at the end of a run, and checkpoints of each run.
const IMAGES: u32 = 10;

/// Name of `understudy backup archive`, unless it is told another one.
const ARCHIVER: &str = "backup-archive";

/// How often is looked whether everything was given back.
const EVERY: Duration = Duration::from_millis(500);

/// Runs of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct Kind {
    /// Transactions a second, as many as go through.
    pub tps: Sample,
    /// Processor time of all zones for a transaction, in milliseconds.
    pub zones_cpu_ms: Sample,
    /// Memory of all zones at the end of a run, in bytes.
    pub zones_memory_bytes: Sample,
}

/// Both kinds of runs.
#[derive(Debug, Clone, Serialize)]
pub struct Images {
    /// Images that are kept at the end of a run.
    pub images: u32,
    /// No image is kept but the last two.
    pub nothing: Kind,
    /// Each checkpoint's image is kept.
    pub kept: Kind,
    /// Blocks that the zones keep for the images at the end of a run.
    pub past_blocks: Sample,
    /// Time until they have given them back, in seconds.
    pub given_back_seconds: Sample,
}

/// One run.
struct Run {
    tps: f64,
    zones_cpu_ms: f64,
    zones_memory_bytes: f64,
}

/// Measures both kinds in turn.
pub(super) async fn measure(
    runs: &Runs,
    cluster: &Cluster,
    active: &str,
    say: &impl Fn(&str),
) -> Result<Images> {
    let config = Config::load(&cluster.node(active)?.config)?;
    let storage: Arc<dyn Storage> = Client::connect(config.cluster.client("bench")?).await?;
    let server = cluster.server(active)?;
    let (mut nothing, mut kept) = (Vec::new(), Vec::new());
    let (mut blocks, mut seconds) = (Vec::new(), Vec::new());
    // The archiver that was stopped may come back, so its claim keeps an image.
    Claim::release(&storage, &NodeName::new(ARCHIVER)?).await?;
    let before = settled(&storage, &server).await?;
    for round in 0..=runs.rounds {
        let (alone, _) = run(runs, cluster, &server, None).await?;
        let (with, pins) = run(runs, cluster, &server, Some(&storage)).await?;
        let past = past_blocks(&storage).await?;
        let began = Instant::now();
        for pin in pins {
            Pin::remove(&storage, &pin).await?;
        }
        given_back(&storage, &server, before).await?;
        let within = began.elapsed().as_secs_f64();
        say(&format!(
            "images, round {round}: {:.0} tps alone, {:.0} with images; {past} blocks given back in {within:.1} s",
            alone.tps, with.tps
        ));
        // The first round warms up.
        if round > 0 {
            nothing.push(alone);
            kept.push(with);
            blocks.push(past as f64);
            seconds.push(within);
        }
    }
    Ok(Images {
        images: IMAGES,
        nothing: Kind::of(&nothing),
        kept: Kind::of(&kept),
        past_blocks: Sample::of(blocks),
        given_back_seconds: Sample::of(seconds),
    })
}

impl Kind {
    fn of(runs: &[Run]) -> Kind {
        let each = |of: fn(&Run) -> f64| Sample::of(runs.iter().map(of).collect());
        Kind {
            tps: each(|run| run.tps),
            zones_cpu_ms: each(|run| run.zones_cpu_ms),
            zones_memory_bytes: each(|run| run.zones_memory_bytes),
        }
    }
}

/// One run of pgbench; returns the names of the pins that were made in it.
async fn run(
    runs: &Runs,
    cluster: &Cluster,
    server: &Server,
    pins: Option<&Arc<dyn Storage>>,
) -> Result<(Run, Vec<String>)> {
    let before = of_zones(cluster, cpu_seconds)?;
    let pgbench = timed(&runs.bin, server, CLIENTS, runs.seconds, &[]);
    let (tps, pins) = tokio::try_join!(pgbench, checkpoints(runs, server, pins))?;
    let used = of_zones(cluster, cpu_seconds)? - before;
    let run = Run {
        tps,
        zones_cpu_ms: used * 1000.0 / (tps * f64::from(runs.seconds)),
        zones_memory_bytes: of_zones(cluster, memory_bytes)? as f64,
    };
    Ok((run, pins))
}

/// Makes the checkpoints of a run, and pins the image of each.
async fn checkpoints(
    runs: &Runs,
    server: &Server,
    pins: Option<&Arc<dyn Storage>>,
) -> Result<Vec<String>> {
    let client = connect(&server.config()).await?;
    let mut made = Vec::new();
    let every = Duration::from_secs(runs.seconds.into()) / (IMAGES + 1);
    for _ in 0..IMAGES {
        tokio::time::sleep(every).await;
        client.batch_execute("CHECKPOINT").await?;
        if let Some(storage) = pins {
            let pin = Pin::make(storage, "bench", None, false).await?;
            made.push(pin.keep(storage).await?.name);
        }
    }
    Ok(made)
}

/// Sum of something over all zones.
fn of_zones<T: std::iter::Sum>(
    cluster: &Cluster,
    value: impl Fn(nix::unistd::Pid) -> Option<T>,
) -> Result<T> {
    let zones = cluster.processes();
    let zones = zones.filter(|(name, _)| name.starts_with("zone-"));
    let sum: Option<T> = zones.map(|(_, pid)| value(pid)).sum();
    sum.context("a zone has ended")
}

/// Blocks of the past in all zones, when two checkpoints in a row leave the same number.
async fn settled(storage: &Arc<dyn Storage>, server: &Server) -> Result<u64> {
    let client = connect(&server.config()).await?;
    let deadline = Instant::now() + WITHIN;
    let mut last = None;
    loop {
        client.batch_execute("CHECKPOINT").await?;
        tokio::time::sleep(EVERY * 4).await;
        let now = past_blocks(storage).await?;
        if last.replace(now) == Some(now) {
            return Ok(now);
        }
        ensure!(Instant::now() < deadline, "the zones do not come to rest");
    }
}

/// Waits until the zones keep no more blocks of the past than so many.
async fn given_back(storage: &Arc<dyn Storage>, server: &Server, before: u64) -> Result<()> {
    let client = connect(&server.config()).await?;
    let deadline = Instant::now() + WITHIN;
    loop {
        client.batch_execute("CHECKPOINT").await?;
        tokio::time::sleep(EVERY).await;
        let now = past_blocks(storage).await?;
        if now <= before {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{now} blocks of the past are left, where {before} were before"
        );
    }
}

async fn past_blocks(storage: &Arc<dyn Storage>) -> Result<u64> {
    let usage = storage.usage().await?;
    Ok(usage.iter().map(|(_, usage)| usage.past_blocks).sum())
}
