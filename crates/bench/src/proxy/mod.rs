//! `understudy bench proxy`: the proxy beside PgBouncer and a direct connection, and reads that scale with standbys.
//!
//! Four parts: how much it lets through and what it adds to a transaction ([`throughput`]), what an idle client costs
//! ([`idle`]), how reads scale with standbys ([`scaling`], after Figure 3 of dynamic multiversioning), and what a lost
//! standby does to readers until it is back ([`reintegration`], after the same paper's Section 6.2).
//!
//! Invariant: all ways lead to the same server, with the same clients and the same limits of pools, and runs alternate.
//! The machine's first processor is the cluster's, the second one belongs to pgbench and whatever is between it and the
//! server, unless told otherwise; in the last two parts each database server has the same slice of a processor
//! ([`crate::slice`]) instead.

mod bookshop;
mod idle;
mod reintegration;
mod report;
mod scaling;
mod throughput;
mod ways;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use cluster::Cluster;
use cluster::process;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

pub use self::idle::Idle;
pub use self::reintegration::Reintegration;
pub use self::report::table;
pub use self::scaling::Scaling;
pub use self::throughput::Workload;
pub use self::ways::{Pooling, Way};

/// What can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// Transactions a second and latency, beside PgBouncer and a direct connection.
    Throughput,
    /// The memory of idle clients, beside PgBouncer.
    Idle,
    /// Reads with more and more standbys.
    Scaling,
    /// A standby is lost and returns.
    Reintegration,
}

/// What pgbench sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// `pgbench --select-only`.
    SelectOnly,
    /// pgbench's TPC-B.
    ReadWrite,
}

/// How pgbench sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// One message for a statement.
    Simple,
    /// Parse, bind, execute.
    Extended,
}

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Parts that are measured.
    pub parts: Vec<Measurement>,
    /// Numbers of clients.
    pub clients: Vec<u16>,
    /// What they send.
    pub loads: Vec<Load>,
    /// How they send it.
    pub protocols: Vec<Protocol>,
    /// How servers are shared.
    pub poolings: Vec<Pooling>,
    /// pgbench's scale.
    pub scale: u32,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
    /// Idle clients.
    pub idle: u32,
    /// Numbers of standbys.
    pub standbys: Vec<u16>,
    /// Updates in a hundred interactions with the bookshop.
    pub updates: Vec<u32>,
    /// Clients of the bookshop.
    pub shoppers: u16,
    /// Books.
    pub books: u32,
    /// What each database server may use of a processor, in percent, in the third part; in the last, three times that.
    pub slice_percent: u32,
    /// True if the processors are shared out.
    pub pinned: bool,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Each load, protocol, pooling and number of clients.
    pub workloads: Vec<Workload>,
    /// Idle clients' memory.
    pub idle: Vec<Idle>,
    /// Each mix with each number of standbys.
    pub scaling: Vec<Scaling>,
    /// Lost standbys.
    pub reintegrations: Vec<Reintegration>,
    /// pgbench's scale.
    pub scale: u32,
    /// Books.
    pub books: u32,
    /// Clients of the bookshop.
    pub shoppers: u16,
    /// What each database server may use of a processor, in percent, in the last two parts.
    pub slice_percent: u32,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
    /// Processors of the machine.
    pub processors: usize,
}

/// The processor of the cluster.
const SERVERS_CORE: usize = 0;
/// The processor of pgbench and of what is between it and the server.
const CLIENTS_CORE: usize = 1;

/// The first node's name.
const ACTIVE: &str = "active";

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, a program is missing, or pgbench fails.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut report = Report {
        scale: options.scale,
        books: options.books,
        shoppers: options.shoppers,
        slice_percent: options.slice_percent,
        seconds: options.seconds,
        rounds: options.rounds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        ..Report::default()
    };
    let has = |part| options.parts.contains(&part);
    if has(Measurement::Throughput) || has(Measurement::Idle) {
        let mut cluster = start_pinned(options).await?;
        if has(Measurement::Throughput) {
            report.workloads = throughput::measure(options, &cluster, &say).await?;
        }
        if has(Measurement::Idle) {
            report.idle = idle::measure(options, &cluster, &say).await?;
        }
        cluster.check_running()?;
        cluster.shutdown();
    }
    if options.pinned {
        process::unpin(Pid::this())?;
    }
    if has(Measurement::Scaling) {
        report.scaling = scaling::measure(options, &say).await?;
    }
    if has(Measurement::Reintegration) {
        report.reintegrations = reintegration::measure(options, &say).await?;
    }
    Ok(report)
}

/// A cluster without standbys, on a processor of its own if that was asked for, with pgbench's tables.
async fn start_pinned(options: &Options) -> anyhow::Result<Cluster> {
    if options.pinned {
        // Whatever is started from here on is there, too, until it is put elsewhere.
        process::pin(Pid::this(), CLIENTS_CORE)?;
    }
    let cluster = start(options, &options.dir.join("pools"), &[ACTIVE.to_owned()]).await?;
    if options.pinned {
        for (_, pid) in cluster.processes() {
            process::pin(pid, SERVERS_CORE)?;
        }
    }
    let server = cluster.server(ACTIVE)?;
    cluster::clients::schema::create(&options.bin, &server, options.scale).await?;
    Ok(cluster)
}

/// A cluster of these nodes; the first is the active.
async fn start(options: &Options, dir: &Path, nodes: &[String]) -> anyhow::Result<Cluster> {
    std::fs::create_dir(dir)?;
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    // As the servers and poolers that are compared with.
    settings.password = None;
    settings.nodes = nodes.to_vec();
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    settings.parameters = vec![
        set("max_connections", "300"),
        set("shared_buffers", "128MB"),
        set("checkpoint_timeout", "60s"),
    ];
    let mut cluster = Cluster::create(settings)?;
    cluster.start().await?;
    Ok(cluster)
}
