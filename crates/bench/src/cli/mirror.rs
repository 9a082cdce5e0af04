//! The arguments of `understudy bench mirror`.

use std::path::PathBuf;

use clap::Args;

use super::{Common, Programs, Runs, Scale};
use crate::mirror::{Limit, Load, Measurement, Way};

/// Compare the mirror with a direct connection, Pgpool-II and logical replication; show a state transfer and a major upgrade under load.
///
/// Transactions a second and latency, beside Pgpool-II's native replication (scripts/packages --bench) and PostgreSQL's own
/// synchronous logical replication; the commits that are
/// made while a member with an empty disk is filled; and what clients see of a switchover to a member of another version
/// (scripts/postgres-versions fetches some). Two more parts are checks: --part cuts cuts the network between managers, zones
/// and members in every way (it needs root), and --part random has sqlsmith write statements, and compares the members.
///
/// Without limits, databases, managers, zones and clients share the machine's processors. --limit each gives each database
/// server a slice of a processor, as if it had a machine of its own, and --limit together one slice to all servers of a way:
/// then the databases are what limits, and everything else has the rest of the machine (root and control groups are needed).
///
/// Three rounds with runs of 5 s; with --quick, one of 2 s, one size and one number of clients.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench mirror --quick
  understudy bench mirror --part throughput --records 10000,100000,1000000 --json >mirror.json
  understudy bench mirror --part throughput --limit each,together --clients 8
  understudy bench mirror --part cuts
  understudy bench mirror --part random --random-seconds 600 --seed 100
  understudy bench mirror --part upgrade --upgrade-bin /var/cache/understudy/postgres/17/bin")]
pub struct BenchMirror {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// How much data TPC-B has.
    #[command(flatten)]
    pub scale: Scale,
    /// Only these parts. Default: throughput and transfer, and upgrade with --upgrade-bin.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub part: Vec<Measurement>,
    /// What is sent.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Load::Ycsb, Load::TpcB])]
    pub load: Vec<Load>,
    /// Only these ways of the first part; shares are those of the first one. Default: all.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub way: Vec<Way>,
    /// What limits the database servers' processors in the first part.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Limit::None])]
    pub limit: Vec<Limit>,
    /// How much of a processor a slice is, in percent.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slice: u32,
    /// Numbers of clients of the first part. Default: 1, 8 and 32.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=60))]
    pub clients: Vec<u16>,
    /// YCSB's records, of 1 kB each. Default: 10,000 and 100,000.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1000..))]
    pub records: Vec<u32>,
    /// pgbench's scale of the second part, 15 MB each. Default: 70.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub transfer_scale: Option<u32>,
    /// How many cuts of the network, of the 93 that there are.
    #[arg(long, default_value_t = 93, value_parser = clap::value_parser!(u32).range(1..))]
    pub cuts: u32,
    /// Leave so many of them out, so that all can be made in pieces.
    #[arg(long, default_value_t = 0)]
    pub first_cut: u32,
    /// How long sqlsmith's statements are executed, in seconds.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub random_seconds: u32,
    /// sqlsmith's seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u32,
    /// The programs of the version that the third part upgrades to.
    #[arg(long, value_name = "DIR")]
    pub upgrade_bin: Option<PathBuf>,
}
