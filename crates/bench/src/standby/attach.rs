//! A new standby of a database of some size: from nothing to caught up, against a copy of the same
//! database by `pg_basebackup`, both from this machine's disk.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::process::Command;

use super::Options;
use super::site::{self, ACTIVE, STANDBY, TIMEOUT};
use crate::filled::database_bytes;
use cluster::Cluster;
use cluster::clients::schema::{self, Server};
use cluster::stock::Stock;

/// What one unit of pgbench's scale takes, in MiB.
const MIB_PER_SCALE: f64 = 15.0;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A new standby, and a copy.
#[derive(Debug, Clone, Serialize)]
pub struct Attached {
    /// Size of the database.
    pub database_bytes: u64,
    /// From the start of the node's process until it had replayed what there was at its start.
    pub seconds: f64,
    /// Blocks that it read from the zones by then, one copy of each counted, in bytes.
    pub bytes_read: u64,
    /// `pg_basebackup` of a stock server with the same database, without starting it.
    pub copy_seconds: f64,
    /// What it wrote.
    pub copy_bytes: u64,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Attached> {
    let scale = (f64::from(options.size_mib) / MIB_PER_SCALE).ceil() as u32;
    say(&format!("attach: filling two databases, scale {scale}"));
    let stock = Stock::start(&dir.join("stock"), &options.bin, Vec::new()).await?;
    schema::create(&options.bin, &stock.server(), scale).await?;
    let settings = cluster::Options::new(&dir.join("cluster"), &options.bin, &options.understudy);
    let mut cluster = site::start(options, settings, scale).await?;
    let client = cluster::clients::session::connect(&cluster.server(ACTIVE)?.config()).await?;
    let database_bytes = database_bytes(&client).await?;
    client.batch_execute("CHECKPOINT").await?;

    say("attach: a new standby");
    let (seconds, bytes_read) = new_standby(&mut cluster).await?;
    cluster.check_running()?;
    cluster.shutdown();
    say("attach: pg_basebackup");
    let (copy_seconds, copy_bytes) = copy(options, &stock.server(), &dir.join("copy")).await?;
    Ok(Attached {
        database_bytes,
        seconds,
        bytes_read,
        copy_seconds,
        copy_bytes,
    })
}

async fn new_standby(cluster: &mut Cluster) -> anyhow::Result<(f64, u64)> {
    let end = site::log_end(cluster).await?;
    let started = Instant::now();
    cluster.start_node(STANDBY)?;
    loop {
        ensure!(
            started.elapsed() < TIMEOUT,
            "the new standby does not follow"
        );
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(answer) = site::ask(cluster, STANDBY).await? else {
            cluster.check_running()?;
            continue;
        };
        if site::position(&answer, "applied") < end {
            continue;
        }
        let reads = ["reads_one", "reads_quorum", "reads_promoted"];
        let counted = reads.map(|name| answer["storage"][name].as_u64().unwrap_or_default());
        let blocks: u64 = counted.iter().sum();
        return Ok((started.elapsed().as_secs_f64(), blocks * 8192));
    }
}

/// Time and bytes of a copy.
async fn copy(options: &Options, server: &Server, to: &Path) -> anyhow::Result<(f64, u64)> {
    let started = Instant::now();
    let output = Command::new(options.bin.join("pg_basebackup"))
        .args(["--checkpoint", "fast", "--pgdata"])
        .arg(to)
        .args(server.arguments())
        .envs(server.environment())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run pg_basebackup")?;
    ensure!(
        output.status.success(),
        "pg_basebackup failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok((started.elapsed().as_secs_f64(), bytes_below(to)?))
}

fn bytes_below(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
