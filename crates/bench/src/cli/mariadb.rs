//! The arguments of `understudy bench mariadb`.

use clap::Args;

use super::{Common, Runs};

/// Compare MariaDB on a volume with the same server on the plain disk: at work, and when it is killed.
///
/// Clients commit small transactions or read single rows, in turns on all systems. Then the server is killed with its
/// machine: on the disk it is started again at once, a cold restart; on the volume the other node takes over.
///
/// Five rounds with runs of 10 s and five kills after 20 s each, on a million accounts; with --quick, one round of
/// 3 s and one kill, on a tenth.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench mariadb --quick
  understudy bench mariadb --json >mariadb.json")]
pub struct BenchMariadb {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// Numbers of clients that write; the last is also that of those that read.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8],
          value_parser = clap::value_parser!(u16).range(1..=100))]
    pub clients: Vec<u16>,
    /// Accounts of about 130 bytes each. Default: 1,000,000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(10_000..))]
    pub accounts: Option<u32>,
    /// Kills of each system; 0 leaves them out. Default: 5.
    #[arg(long)]
    pub kills: Option<u32>,
}
