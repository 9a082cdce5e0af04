//! The arguments of `understudy bench mirror`.

use std::path::PathBuf;

use clap::Args;

use super::{Common, Programs, Runs, Scale};
use crate::mirror::{Load, Part, Way};

/// Compare the mirror with a direct connection and Pgpool-II; show a state transfer and a major upgrade under load.
///
/// Three parts: transactions a second and latency, beside Pgpool-II's native replication (scripts/packages --bench); the
/// commits that are made while a member with an empty disk is filled; and what clients see of a switchover to a member of
/// another version (scripts/postgres-versions fetches some).
///
/// Three rounds with runs of 5 s; with --quick, one of 2 s, one size and one number of clients.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench mirror --quick
  understudy bench mirror --part throughput --records 10000,100000,1000000 --json >mirror.json
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
    /// Only these parts. Default: all, the last one with --upgrade-bin only.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub part: Vec<Part>,
    /// What is sent.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Load::Ycsb, Load::TpcB])]
    pub load: Vec<Load>,
    /// Only these ways of the first part; shares are those of the first one. Default: all.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub way: Vec<Way>,
    /// Numbers of clients of the first part. Default: 1, 8 and 32.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=60))]
    pub clients: Vec<u16>,
    /// YCSB's records, of 1 kB each. Default: 10,000 and 100,000.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1000..))]
    pub records: Vec<u32>,
    /// pgbench's scale of the second part, 15 MB each. Default: 70.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub transfer_scale: Option<u32>,
    /// The programs of the version that the third part upgrades to.
    #[arg(long, value_name = "DIR")]
    pub upgrade_bin: Option<PathBuf>,
}
