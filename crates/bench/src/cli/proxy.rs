//! The arguments of `understudy bench proxy`.

use clap::Args;

use super::{Common, Programs, Runs, Scale};
use crate::proxy::{Load, Measurement, Pooling, Protocol};

/// Compare the proxy with PgBouncer and with a direct connection, and show how reads scale with standbys.
///
/// Four parts: transactions a second and latency; the memory of idle clients; a bookshop whose reads go to more and more
/// standbys, each database server with the same slice of a processor; and a standby that is lost and returns. PgBouncer
/// is needed for the first two (scripts/packages --bench), root and control groups for the last two.
///
/// Three rounds with runs of 5 s; with --quick, one of 2 s, two clients, and fewer standbys.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench proxy --quick
  understudy bench proxy --part throughput,idle --json >proxy.json
  understudy bench proxy --part scaling --standbys 1,2,4,8 --updates 5,20,50 --slice 10")]
pub struct BenchProxy {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// How much data.
    #[command(flatten)]
    pub scale: Scale,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub part: Vec<Measurement>,
    /// Numbers of clients of the first part. Default: 1, 8, 32 and 200.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=240))]
    pub clients: Vec<u16>,
    /// What they send.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Load::SelectOnly, Load::ReadWrite])]
    pub load: Vec<Load>,
    /// How they send it.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Protocol::Simple, Protocol::Extended])]
    pub protocol: Vec<Protocol>,
    /// How servers are shared.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Pooling::Session, Pooling::Transaction])]
    pub pooling: Vec<Pooling>,
    /// Idle clients of the second part. Default: 5,000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub idle: Option<u32>,
    /// Numbers of standbys in the third part. Default: 1, 2, 4 and 8.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=16))]
    pub standbys: Vec<u16>,
    /// Updates in a hundred interactions of the third part. Default: 0, 5, 20 and 50.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=100))]
    pub updates: Vec<u32>,
    /// Clients of the bookshop.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub shoppers: u16,
    /// Books, and as many customers and orders. Default: 10,000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..))]
    pub books: Option<u32>,
    /// What each database server may use of a processor in the third part, in percent, and three times that in the last.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slice: u32,
    /// Run everything on all processors.
    #[arg(long)]
    pub unpinned: bool,
}
