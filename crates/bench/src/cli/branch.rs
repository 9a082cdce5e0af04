//! Options of `understudy bench branch`.

use clap::Args;

use super::{Common, Programs, Runs, Scale};

/// Make branches of a busy database, and copies by `pg_basebackup`.
///
/// Each is served until it has answered a query. On pgbench's scale 340 (5 GB), in runs of 30 s; with --quick, on scale 10, in runs of
/// 5 s.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench branch --quick
  understudy bench branch --json > branch.json")]
pub struct BenchBranch {
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
}

/// Measure what takes longer with a larger database, and which memory that needs.
///
/// A new standby, a branch, the loss of the active and the exchange of a zone, under load. On 50 GB; with --quick, on 1 GB.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench size --quick
  understudy bench size --gigabytes 5 --json > size.json")]
pub struct BenchSize {
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// Size of the database, in GB.
    #[arg(long, value_name = "GB")]
    pub gigabytes: Option<u64>,
}
