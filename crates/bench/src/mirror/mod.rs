//! `understudy bench mirror`: the mirror beside a direct connection, Pgpool-II's native replication and PostgreSQL's own.
//!
//! How much it lets through and how long that takes ([`throughput`], after Figures 4 to 7 of CloudDBAppliance), what a state
//! transfer does to commits ([`transfer`]), what a major upgrade does to clients ([`upgrade`]); and two checks that take
//! long: a network that is cut in every way ([`cuts`]), and statements that nobody has thought of ([`random`]).
//!
//! Invariant: every way has the same servers with the same parameters and data, and runs alternate. Without limits
//! everything shares the machine's processors, managers, zones and clients included; with slices ([`Limit`]) the
//! databases' own processors are the limit, as if each had a machine of its own.

mod cuts;
mod random;
mod report;
mod throughput;
mod transfer;
mod upgrade;
mod ways;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use cluster::clients::clock::Clock;
use cluster::clients::load::{self, Load as Clients};
use cluster::mirror::Mirror;
use serde::{Deserialize, Serialize};

pub use self::cuts::Cuts;
pub use self::random::Random;
pub use self::report::table;
pub use self::throughput::Workload;
pub use self::transfer::Transfer;
pub use self::upgrade::Upgrade;
pub use self::ways::Way;

/// What can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// Transactions a second and latency, beside a direct connection, Pgpool-II and PostgreSQL's own replication.
    Throughput,
    /// A member with an empty disk is filled under load.
    Transfer,
    /// Clients during a switchover to a member of another version.
    Upgrade,
    /// The network is cut in every way: two primaries never acknowledge.
    Cuts,
    /// Statements of sqlsmith: the members stay equal.
    Random,
}

/// What pgbench sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// YCSB's workload A: reads and updates of single rows, half and half.
    Ycsb,
    /// pgbench's TPC-B.
    TpcB,
    /// The same with foreign keys, and a trigger that writes a row for each change of an account.
    Keys,
    /// go-tpc's TPC-C, a warehouse for seven of the scale; latencies are those of new orders.
    TpcC,
}

/// What limits the database servers' processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Nothing: they share the machine's processors with managers, zones and clients.
    None,
    /// A slice of a processor for each, as if each had a machine of its own.
    Each,
    /// One slice for all of a way's servers together: two databases do all the work.
    Together,
}

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// PostgreSQL's programs.
    pub bin: PathBuf,
    /// The programs of the version that is upgraded to.
    pub upgrade_bin: Option<PathBuf>,
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// Which parts.
    pub parts: Vec<Measurement>,
    /// What is sent.
    pub loads: Vec<Load>,
    /// Which ways; shares are those of the first one's transactions a second.
    pub ways: Vec<Way>,
    /// What limits the servers' processors.
    pub limits: Vec<Limit>,
    /// A slice, in percent of a processor.
    pub slice_percent: u32,
    /// Numbers of clients.
    pub clients: Vec<u16>,
    /// YCSB's records.
    pub records: Vec<u32>,
    /// pgbench's scale.
    pub scale: u32,
    /// pgbench's scale in the second part: 15 MB each.
    pub transfer_scale: u32,
    /// How many cuts of the network, after the first ones that are left out.
    pub cuts: u32,
    /// Cuts that are left out.
    pub first_cut: u32,
    /// How long sqlsmith runs.
    pub random_seconds: u32,
    /// Its seed.
    pub seed: u32,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Each load with each number of records and clients.
    pub workloads: Vec<Workload>,
    /// A state transfer.
    pub transfer: Option<Transfer>,
    /// A major upgrade.
    pub upgrade: Option<Upgrade>,
    /// The network that was cut.
    pub cuts: Option<Cuts>,
    /// sqlsmith's statements.
    pub random: Option<Random>,
    /// pgbench's scale.
    pub scale: u32,
    /// A slice, in percent of a processor.
    pub slice_percent: u32,
    /// Length of one run in seconds.
    pub seconds: u32,
    /// Runs of each kind.
    pub rounds: u32,
    /// Processors of the machine.
    pub processors: usize,
}

/// How long a change may take, a state transfer included.
const WITHIN: Duration = Duration::from_secs(600);
/// The clients of the second and third part.
const CLIENTS: u16 = 4;

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Something does not start, a program is missing, or pgbench fails.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    let mut report = Report {
        scale: options.scale,
        slice_percent: options.slice_percent,
        seconds: options.seconds,
        rounds: options.rounds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
        ..Report::default()
    };
    let has = |part| options.parts.contains(&part);
    if has(Measurement::Throughput) {
        report.workloads = throughput::measure(options, &say).await?;
    }
    if has(Measurement::Transfer) {
        report.transfer = Some(transfer::measure(options, &say).await?);
    }
    if has(Measurement::Upgrade) {
        report.upgrade = Some(upgrade::measure(options, &say).await?);
    }
    if has(Measurement::Cuts) {
        report.cuts = Some(cuts::measure(options, &say).await?);
    }
    if has(Measurement::Random) {
        report.random = Some(random::measure(options, &say).await?);
    }
    Ok(report)
}

/// Clients that run pgbench's transactions against whoever is primary.
fn start_clients(mirror: &Mirror, scale: u32, clock: Clock) -> Clients {
    let options = load::Options {
        clients: CLIENTS,
        scale,
        ..load::Options::default()
    };
    Clients::start(mirror.any_writable(), options, clock)
}
