//! The command line of the measurements: what each can be told, and what all can be told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use understudy::cli::duration;

/// Measure.
#[derive(Debug, Parser)]
#[command(
    name = "understudy bench",
    bin_name = "understudy bench",
    version,
    max_term_width = 100
)]
pub struct Cli {
    /// What is logged to standard error: error, warn, info, debug, trace, or per part
    /// ("node=debug,info"). RUST_LOG does the same.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// What to measure.
    #[command(subcommand)]
    pub command: Bench,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // the documentation of a variant's arguments is its help text
pub enum Bench {
    Pgbench(BenchPgbench),
    Dax(BenchDax),
    Cassandra(BenchCassandra),
    Soak(BenchSoak),
    Standby(BenchStandby),
    Failover(BenchFailover),
    Peers(BenchPeers),
}

/// How much is measured, where, and how the answer is printed: options of every measurement.
#[derive(Debug, Args)]
pub struct Common {
    /// Short runs on less data; above is how short.
    #[arg(long)]
    pub quick: bool,
    /// Empty directory to work in, on the disk to measure; one below the temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON instead of tables: one object, or one line for every measurement where above says so.
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// What was given, or else what is usual: in short runs, and otherwise.
    pub fn either<T>(&self, given: Option<T>, quick: T, whole: T) -> T {
        given.unwrap_or(if self.quick { quick } else { whole })
    }
}

/// Where PostgreSQL's programs are.
#[derive(Debug, Args)]
pub struct Programs {
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
}

/// How long, and how often.
#[derive(Debug, Args)]
pub struct Runs {
    /// Length of one run in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Runs of each kind.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
}

/// How much data.
#[derive(Debug, Args)]
pub struct Scale {
    /// pgbench's scale: 100,000 accounts (about 15 MB) each; where there is an order entry, as many
    /// warehouses.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
}

/// Pictures.
#[derive(Debug, Args)]
pub struct Charts {
    /// Write the measurement's pictures (SVG) into this directory.
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
}

/// Compare with PostgreSQL alone and with Patroni, on the same machines, disk and network.
///
/// Machines are network namespaces, so it needs root, iproute2 and util-linux; what it compares with comes
/// by scripts/peers. Every measurement is a line of JSON; it fails if Understudy loses anything
/// that was acknowledged.
///
/// Five rounds with runs of 70 s on pgbench's scale 20; with --quick, about ten minutes: one round of runs
/// of 5 s on scale 5, a short load around each loss. The directory to work in is left in place after an error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench peers --quick --output peers.jsonl --report .
  understudy bench peers --system understudy,patroni-sync --clients 8 --rounds 3
  understudy bench peers --unpinned
  understudy bench peers --from bench/results/peers.jsonl --report docs")]
pub struct BenchPeers {
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
    /// Only these systems.
    #[arg(long, value_delimiter = ',')]
    pub system: Vec<crate::peers::Kind>,
    /// Clients of the read-write runs.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=90))]
    pub clients: Vec<u16>,
    /// What is run; all if not given, the read-write and the read-only load of pgbench with --quick.
    #[arg(long, value_delimiter = ',')]
    pub load: Vec<crate::peers::Mode>,
    /// Clients of all loads but the read-write one.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=90))]
    pub other_clients: u16,
    /// Clients at full speed when the active is lost; 0: it is not lost.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=90))]
    pub loss_clients: u16,
    /// shared_buffers of every PostgreSQL in MB; its own default if not given.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..))]
    pub buffers_mb: u32,
    /// checkpoint_timeout of every PostgreSQL in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(30..=3600))]
    pub checkpoint_seconds: u32,
    /// How long Patroni's leader may be silent, in seconds. Its own default is 30; 20 is the least that its
    /// later versions allow.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(10..=300))]
    pub patroni_ttl: u32,
    /// How far the sites are apart.
    #[arg(long, value_enum, default_value = "one-zone")]
    pub distance: crate::peers::Distance,
    /// Let everything run on all processors.
    #[arg(long)]
    pub unpinned: bool,
    /// Append every measurement to this file, as a line of JSON.
    #[arg(long, value_name = "FILE.jsonl")]
    pub output: Option<PathBuf>,
    /// Measure nothing: report what is in this file.
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "output")]
    pub from: Option<PathBuf>,
    /// Write peers.md and its pictures into this directory; they are made of all lines of the file.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// Compare pgbench on a cluster's active with a stock PostgreSQL on the plain disk.
///
/// Five rounds with runs of 60 s on pgbench's scale 20; with --quick, three of 5 s.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench pgbench --quick
  understudy bench pgbench --seconds 60 --rounds 5 --json >result.json")]
pub struct BenchPgbench {
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
    /// pgbench's clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Without a standby, which takes its processor time from the same machine.
    #[arg(long)]
    pub alone: bool,
    /// With TLS between zones and nodes, as between machines; plaintext if not given, as all is on one.
    #[arg(long)]
    pub tls: bool,
}

/// Compare the variants of the block protocol at emulated distances, and lose servers under load.
///
/// Three rounds with runs of 20 s on pgbench's scale 10; with --quick, one of 5 s on scale 5, and no timelines
/// with outages.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench dax --quick
  understudy bench dax --outage-seconds 0 --json
  understudy bench dax --charts docs")]
pub struct BenchDax {
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
    /// Pictures.
    #[command(flatten)]
    pub charts: Charts,
    /// Length of each timeline with an outage in seconds; 0 leaves them out.
    #[arg(long)]
    pub outage_seconds: Option<u32>,
    /// pgbench's clients.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
}

/// Compare the block path over Apache Cassandra with its driver alone.
///
/// Starts three data centres of one node each, which are fetched with Maven. Clients write and read blocks
/// of 8 KiB through our client, and through the driver alone, in turns. Transactions are compared with the
/// paper's two baselines: writes to all copies, or writes and reads of a quorum.
///
/// Five rounds with runs of 10 s, after one that does not count; with --quick, two of 3 s.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench cassandra --quick
  understudy bench cassandra --load commit,read --clients 1,64 --rounds 5 --json
  understudy bench cassandra --load transaction --distance wan   # needs root, for network namespaces")]
pub struct BenchCassandra {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// How long and how often.
    #[command(flatten)]
    pub runs: Runs,
    /// What clients do.
    #[arg(long, value_delimiter = ',', value_enum, default_values = ["commit", "read", "transaction"])]
    pub load: Vec<crate::cassandra::Load>,
    /// How far the data centres are apart. Clients are next to the first.
    #[arg(long, value_enum, default_value = "one-machine")]
    pub distance: crate::cassandra::Distance,
    /// Clients at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: Vec<u16>,
}

/// Lose the active in every way, again and again, and measure what clients see.
///
/// Nodes live in network namespaces of their own, so it needs root, iproute2 and util-linux. Clients try
/// again every 10 ms. Succeeds only if nothing that was acknowledged is lost.
///
/// Twenty rounds of each fault, twenty takeovers in the row, half an hour of the busy part, on pgbench's scale
/// 7; with --quick, 3 rounds, 5 in the row, one busy minute. The directory to work in is left in place if a check
/// fails.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench failover --quick
  understudy bench failover --only causes --fault node-killed,switchover --json
  understudy bench failover --only row --scale 340       # 5 GB
  understudy bench failover --only busy --busy 30m")]
pub struct BenchFailover {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How much data.
    #[command(flatten)]
    pub scale: Scale,
    /// Pictures.
    #[command(flatten)]
    pub charts: Charts,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<crate::failover::Part>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',')]
    pub fault: Vec<crate::failover::Fault>,
    /// How often each fault; 20 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Takeovers in the row; 20 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub row: Option<u32>,
    /// Length of the busy part; 30m if not given.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub busy: Option<Duration>,
    /// Clients that write.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Decides the order of the row's faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Run everything at once for a long time, kill the active, and verify.
///
/// pgbench's transactions, an order entry like TPC-C's and tables that come and go, on nodes with
/// few buffers; sessions on the standby check what they are told. Then the active is killed, comes
/// back as a standby, and everything is verified. Succeeds only if every check holds.
///
/// Ten minutes until the kill, on pgbench's scale 4; with --quick, 20 s on scale 2, and a checkpoint every 5 s.
/// The directory to work in is left in place if a check fails.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench soak --quick
  understudy bench soak --duration 1h --json >soak.json")]
pub struct BenchSoak {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How much data.
    #[command(flatten)]
    pub scale: Scale,
    /// How long the clients run until the kill; 10m if not given.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// Transactions a second, a fifth of them order entry; with 60 of them goes a round of table changes.
    /// 0 for as many as there can be. 300 if not given, 150 with --quick.
    #[arg(long)]
    pub rate: Option<u32>,
    /// Clients of each kind.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// What keeps the blocks: zone servers, or Apache Cassandra in three data centres; what it says of its tables
    /// under the load is in the report then. It takes fewer transactions a second: choose a --rate.
    #[arg(long, value_enum, default_value_t)]
    pub store: cluster::tier::Store,
    /// Where the picture goes; none if not given.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}

/// Measure how standbys keep up, what they cost the active, and how soon a new one is there.
///
/// On pgbench's scale 40, with 20 rounds for the cost; with --quick, about ten minutes in all, on scale 10, with
/// 3 rounds.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench standby --quick
  understudy bench standby --only curve,cost --json
  understudy bench standby --only attach --size 10240
  understudy bench standby --charts docs")]
pub struct BenchStandby {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// How much data.
    #[command(flatten)]
    pub scale: Scale,
    /// Pictures.
    #[command(flatten)]
    pub charts: Charts,
    /// Which parts; all if not given.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<crate::standby::Part>,
    /// Size of the database that a new standby joins, in MiB.
    #[arg(long, value_parser = clap::value_parser!(u32).range(15..))]
    pub size: Option<u32>,
    /// Length of the load before the failure, for each way to deal with a slow standby, in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..))]
    pub seconds: Option<u32>,
    /// Runs with each number of standbys.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=50))]
    pub clients: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_not_given_depends_on_how_short_it_shall_be() {
        let parse = |words: &str| match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Bench::Pgbench(args) => args.common.either(args.runs.seconds, 5, 60),
            other => panic!("another command: {other:?}"),
        };
        assert_eq!(parse("bench pgbench"), 60);
        assert_eq!(parse("bench pgbench --quick"), 5);
        assert_eq!(parse("bench pgbench --quick --seconds 7"), 7);
    }
}
