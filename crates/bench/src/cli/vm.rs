//! The arguments of `understudy bench vm`.

use std::path::PathBuf;

use clap::Args;

use super::{Common, Runs};
use crate::vm::{Guest, Load, Measurement};

/// Compare a virtual machine that is protected by checkpoints with the same machine unprotected.
///
/// After RemusDB's figures: plain checkpoints, compression, read tracking, commit protection and all of them; other intervals, sizes
/// of data and of memory; and hosts that are killed. Only ratios are worth anything where QEMU translates the guest's code.
///
/// Root, QEMU and /dev/net/tun are needed, and memory for two machines; what is missing is said before anything starts. Images are
/// made first, a minute each, unless --images has them.
///
/// Three rounds with runs of 10 s; with --quick, one of 4 s, of the first part and a failover, with 50 ms between checkpoints.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench vm --quick --images /var/cache/understudy/images
  understudy bench vm --part overhead --guest postgresql --rounds 5 --json >overhead.json
  understudy bench vm --part intervals --intervals 25,50,100,250,500
  understudy bench vm --part sizes,memory --load scan --multiples 1,2,4")]
pub struct BenchVm {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// Only these parts. Default: all; with --quick, overhead and failover.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub part: Vec<Measurement>,
    /// The databases.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Guest::Postgresql, Guest::Mariadb])]
    pub guest: Vec<Guest>,
    /// What clients do. Each database takes some of them.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Load::Orders, Load::Statements, Load::Scan, Load::Transfers])]
    pub load: Vec<Load>,
    /// Clients that write.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=60))]
    pub clients: u16,
    /// Milliseconds between checkpoints.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(10..=700))]
    pub epoch_ms: u32,
    /// Those of the part about intervals.
    #[arg(long, value_delimiter = ',', default_values_t = [25, 50, 100, 250, 500], value_parser = clap::value_parser!(u32).range(10..=700))]
    pub intervals: Vec<u32>,
    /// Warehouses of the order entry. Default: 4; 1 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub warehouses: Option<u32>,
    /// Megabytes that are scanned. Default: 512; 192 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(16..=1200))]
    pub scan_mb: Option<u32>,
    /// Megabytes of the machine's memory.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(192..))]
    pub memory_mb: u64,
    /// What data and memory are multiplied by in the parts about them.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u32).range(1..=16))]
    pub multiples: Vec<u32>,
    /// Where images are kept. Default: they are made anew.
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
}
