//! `understudy bench pgbench`: the active of a cluster against a stock PostgreSQL on the plain disk.
//!
//! Invariant: both get the same `shared_buffers`, the same data and the same clients, on the same
//! file system; runs alternate, so that a slow minute of the machine hits both.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::process::Command;

use super::statistics::Sample;
use cluster::Cluster;
use cluster::clients::schema::{self, Server};
use cluster::stock::Stock;

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// pgbench's clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each workload on each system.
    pub rounds: u32,
    /// True if the cluster has a standby (it takes its processor time from the same machine).
    pub standby: bool,
    /// True if zones and nodes talk over TLS.
    pub tls: bool,
}

/// One workload on both systems, in transactions a second.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    /// The stock server.
    pub stock: Sample,
    /// The cluster's active.
    pub understudy: Sample,
    /// The second by the first, medians.
    pub ratio: f64,
}

/// All workloads.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Each workload.
    pub workloads: Vec<Workload>,
    /// pgbench's clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Length of one run.
    pub seconds: u32,
    /// True if the cluster had a standby.
    pub standby: bool,
    /// Processors of the machine.
    pub processors: usize,
}

/// How much memory the servers get.
#[derive(Debug, Clone, Copy)]
struct Memory {
    name: &'static str,
    /// `shared_buffers` as a multiple of the data.
    data_share: f64,
}

const MEMORIES: [Memory; 2] = [
    Memory {
        name: "data in memory",
        data_share: 2.0,
    },
    Memory {
        name: "data 4 x shared_buffers",
        data_share: 0.25,
    },
];
const KINDS: [(&str, &[&str]); 2] = [("read-write", &[]), ("read-only", &["--select-only"])];
/// What one unit of pgbench's scale takes, in MB.
const MB_PER_SCALE: f64 = 15.0;

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, or pgbench fails.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut workloads = Vec::new();
    for memory in MEMORIES {
        workloads.extend(measure(options, memory, &say).await?);
    }
    Ok(Report {
        workloads,
        clients: options.clients,
        scale: options.scale,
        seconds: options.seconds,
        standby: options.standby,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    })
}

/// Both kinds of workload with so much memory.
async fn measure(
    options: &Options,
    memory: Memory,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Workload>> {
    let data_mb = f64::from(options.scale) * MB_PER_SCALE;
    let buffers = format!("{:.0}MB", (data_mb * memory.data_share).max(16.0));
    let dir = options.dir.join(memory.name.replace(' ', "-"));
    std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    say(&format!(
        "{}: shared_buffers {buffers}, filling both",
        memory.name
    ));

    let parameters = vec![("shared_buffers".to_owned(), buffers)];
    let stock = Stock::start(&dir.join("stock"), &options.bin, parameters.clone()).await?;
    let mut cluster = start_cluster(options, &dir.join("cluster"), parameters).await?;
    let active = cluster.wait_active(Duration::from_secs(10)).await?;
    let servers = [stock.server(), cluster.server(&active)?];
    for server in &servers {
        schema::create(&options.bin, server, options.scale).await?;
    }

    let mut workloads = Vec::new();
    for (kind, arguments) in KINDS {
        let name = format!("{kind}, {}", memory.name);
        let [stock, understudy] = alternate(options, &servers, arguments, &name, say).await?;
        let ratio = understudy.median / stock.median.max(f64::MIN_POSITIVE);
        workloads.push(Workload {
            name,
            ratio: (ratio * 1000.0).round() / 1000.0,
            stock,
            understudy,
        });
    }
    cluster.check_running()?;
    cluster.shutdown();
    Ok(workloads)
}

async fn start_cluster(
    options: &Options,
    dir: &Path,
    parameters: Vec<(String, String)>,
) -> anyhow::Result<Cluster> {
    std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    settings.tls = options.tls;
    settings.parameters = parameters;
    if !options.standby {
        settings.nodes.truncate(1);
    }
    let mut cluster = Cluster::create(settings)?;
    cluster.start().await?;
    Ok(cluster)
}

/// Runs one workload in turn on both servers, after one run each that does not count.
async fn alternate(
    options: &Options,
    servers: &[Server; 2],
    arguments: &[&str],
    name: &str,
    say: &impl Fn(&str),
) -> anyhow::Result<[Sample; 2]> {
    let mut runs = [Vec::new(), Vec::new()];
    for round in 0..=options.rounds {
        for (server, runs) in servers.iter().zip(&mut runs) {
            let tps = pgbench(options, server, arguments).await?;
            if round > 0 {
                runs.push(tps);
            }
        }
        if let [Some(stock), Some(ours)] = [runs[0].last(), runs[1].last()] {
            say(&format!(
                "{name}, round {round}: stock {stock:.0}, understudy {ours:.0} tps"
            ));
        }
    }
    Ok(runs.map(Sample::of))
}

/// One run of pgbench; transactions a second.
async fn pgbench(options: &Options, server: &Server, arguments: &[&str]) -> anyhow::Result<f64> {
    timed(
        &options.bin,
        server,
        options.clients,
        options.seconds,
        arguments,
    )
    .await
}

/// Runs prepared transactions for some seconds; how many a second there were.
pub(super) async fn timed(
    bin: &Path,
    server: &Server,
    clients: u16,
    seconds: u32,
    arguments: &[&str],
) -> anyhow::Result<f64> {
    let (clients, seconds) = (clients.to_string(), seconds.to_string());
    let how = ["--client", &clients, "--jobs", "2", "--time", &seconds];
    let all = [&how[..], &["--protocol", "prepared"], arguments].concat();
    let said = run_pgbench(bin, server, &all).await?;
    tps(&said).with_context(|| format!("pgbench says nothing of tps: {said}"))
}

/// Runs pgbench against a server; what it says at the end.
pub(super) async fn run_pgbench(
    bin: &Path,
    server: &Server,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let output = Command::new(bin.join("pgbench"))
        .args(arguments)
        .args(server.arguments())
        .envs(server.environment())
        .arg(&server.database)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run pgbench")?;
    ensure!(
        output.status.success(),
        "pgbench failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Finds `tps = 1234.5 (without initial connection time)`.
pub(super) fn tps(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("tps = "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A table for a person.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  pgbench scale {}, {} clients, {} s a run, {} processors, {} standby; medians\n\n  {:<38} {:>10} {:>12} {:>8}\n",
        report.scale,
        report.clients,
        report.seconds,
        report.processors,
        if report.standby { "with" } else { "without" },
        "transactions a second",
        "stock",
        "understudy",
        "ratio"
    );
    for workload in &report.workloads {
        out.push_str(&format!(
            "  {:<38} {:>10.0} {:>12.0} {:>8.2}\n",
            workload.name, workload.stock.median, workload.understudy.median, workload.ratio
        ));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_pgbench_prints() {
        let said = "latency average = 4.211 ms\ninitial connection time = 9.1 ms\n\
                    tps = 1899.731 (without initial connection time)\n";
        assert_eq!(tps(said), Some(1899.731));
        assert_eq!(tps("nothing"), None);
    }
}
