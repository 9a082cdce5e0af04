//! Options of `understudy bench backup`.

use clap::Args;

use super::{Common, Programs, Runs, Scale};

/// Compare backups of a cluster under load: `understudy backup`, pgBackRest and `pg_basebackup`.
///
/// Each makes a full backup, and two more if it has incremental ones. Each is restored and started, and must have every commit of
/// before. Then pgbench runs with and without an archive, and with and without ten images of the past in the zones. On pgbench's scale 340 (5 GB), 60 s apart; with --quick, on scale 10,
/// 5 s apart. pgBackRest must be installed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench backup --quick
  understudy bench backup --json > backup.json")]
pub struct BenchBackup {
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
    /// Transactions a second of all clients together, during backups.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Length of a run with or without images of the past in seconds; that of the other runs if it is not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub churn_seconds: Option<u32>,
}
