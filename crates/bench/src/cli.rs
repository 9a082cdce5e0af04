//! The command line of the measurements: what each can be told, and what all can be told.

mod backup;
mod branch;
mod chaos;
mod mariadb;
mod mirror;
mod proxy;
mod vm;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use understudy::cli::duration;

pub use self::backup::BenchBackup;
pub use self::branch::{BenchBranch, BenchSize};
pub use self::chaos::BenchChaos;
pub use self::mariadb::BenchMariadb;
pub use self::mirror::BenchMirror;
pub use self::proxy::BenchProxy;
pub use self::vm::BenchVm;

/// Run a benchmark.
#[derive(Debug, Parser)]
#[command(
    name = "understudy bench",
    bin_name = "understudy bench",
    version,
    max_term_width = 100
)]
pub struct Cli {
    /// What to log to standard error: error, warn, info, debug or trace, or a level for each part
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
    Chaos(BenchChaos),
    Standby(BenchStandby),
    Failover(BenchFailover),
    Peers(BenchPeers),
    Zones(BenchZones),
    Backup(BenchBackup),
    Branch(BenchBranch),
    Size(BenchSize),
    Mariadb(BenchMariadb),
    Proxy(BenchProxy),
    Mirror(BenchMirror),
    Vm(BenchVm),
}

/// How much is measured, where, and how the answer is printed: options of every measurement.
#[derive(Debug, Args)]
pub struct Common {
    /// Short runs on less data; how short is said above.
    #[arg(long)]
    pub quick: bool,
    /// Empty directory to work in, on the disk to measure. Default: a new one in the temporary directory.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print JSON instead of tables: one object, or one line for every measurement where it is said above.
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
    /// Directory of PostgreSQL's programs. Default: Debian's newest.
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
    /// pgbench's scale: 100,000 accounts (about 15 MB) each. An order entry has as many warehouses.
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
/// Machines are network namespaces, so root, iproute2 and util-linux are needed; scripts/peers installs
/// the other systems. Every measurement is a line of JSON. The benchmark fails if Understudy loses
/// anything that was acknowledged.
///
/// Five rounds with runs of 70 s on pgbench's scale 20; with --quick, about ten minutes: one round of runs
/// of 5 s on scale 5, and a short load around each loss. After an error, the working directory is kept.
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
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// Only these systems.
    #[arg(long, value_delimiter = ',')]
    pub system: Vec<crate::peers::Kind>,
    /// Clients of the read-write runs.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=90))]
    pub clients: Vec<u16>,
    /// Loads to run. Default: all; with --quick, the read-write and the read-only load of pgbench.
    #[arg(long, value_delimiter = ',')]
    pub load: Vec<crate::peers::Mode>,
    /// Clients of all other loads.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=90))]
    pub other_clients: u16,
    /// Clients at full speed when the active is lost; 0 leaves the loss out.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=90))]
    pub loss_clients: u16,
    /// shared_buffers of every PostgreSQL in MB.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..))]
    pub buffers_mb: u32,
    /// checkpoint_timeout of every PostgreSQL in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(30..=3600))]
    pub checkpoint_seconds: u32,
    /// Patroni's ttl in seconds: how long its leader may be silent. Patroni's default is 30; 20 is the least
    /// that its later versions allow.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(10..=300))]
    pub patroni_ttl: u32,
    /// Run no load but that around the loss, with another PostgreSQL that subscribes to the prober's rows. Reported is how
    /// long it got nothing, and what it missed. From PostgreSQL 17 on Patroni's nodes have failover slots, before a
    /// permanent slot of Patroni's.
    #[arg(long, conflicts_with = "load")]
    pub subscriber: bool,
    /// How far apart the sites are.
    #[arg(long, value_enum, default_value = "one-zone")]
    pub distance: crate::peers::Distance,
    /// Run everything on all processors.
    #[arg(long)]
    pub unpinned: bool,
    /// Append every measurement to this file, as a line of JSON.
    #[arg(long, value_name = "FILE.jsonl")]
    pub output: Option<PathBuf>,
    /// Measure nothing, and report what is in this file.
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "output")]
    pub from: Option<PathBuf>,
    /// Write peers.md and its pictures, made from all lines of the file, into this directory.
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
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// pgbench's clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Run without a standby, which would use processor time of the same machine.
    #[arg(long)]
    pub alone: bool,
    /// Use TLS between zones and nodes, as between machines. Default: plaintext, because all is on one machine.
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
    /// Amount of data.
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
/// of 8 KiB through Understudy's client, and through the driver alone, in turns. Transactions are compared with the
/// paper's two baselines: writes to all copies, or writes and reads of a quorum.
///
/// Five rounds with runs of 10 s, after a round that does not count; with --quick, two with runs of 3 s.
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
    /// How far apart the data centres are. Clients are next to the first.
    #[arg(long, value_enum, default_value = "one-machine")]
    pub distance: crate::cassandra::Distance,
    /// Numbers of concurrent clients.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: Vec<u16>,
}

/// Lose the active in every way, again and again, and measure what clients see.
///
/// Nodes run in network namespaces of their own, so root, iproute2 and util-linux are needed. Clients try
/// again every 10 ms. The benchmark succeeds only if nothing that was acknowledged is lost.
///
/// Twenty rounds of each fault, twenty takeovers in the row, and half an hour of the busy part, on pgbench's
/// scale 7; with --quick, 3 rounds, 5 takeovers in the row, and one busy minute. If a check fails, the working
/// directory is kept.
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
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// Pictures.
    #[command(flatten)]
    pub charts: Charts,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<crate::failover::Measurement>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',')]
    pub fault: Vec<crate::failover::Fault>,
    /// How often to repeat each fault. Default: 20.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Takeovers in the row. Default: 20.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub row: Option<u32>,
    /// Length of the busy part. Default: 30m.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub busy: Option<Duration>,
    /// Clients that write.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Determines the order of the faults in the row.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Exchange a zone under load: how long that takes, and what clients see of it.
///
/// Commits are counted for 30 s, then another zone takes the third one's place, then they are counted again; on
/// pgbench's scale 20, with --quick 2 and 5 s. Succeeds only if no client met an error and nothing is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench zones --quick
  understudy bench zones --scale 70 --scrub-rate 256MiB --json      # 1 GB")]
pub struct BenchZones {
    /// What every measurement can be told.
    #[command(flatten)]
    pub common: Common,
    /// PostgreSQL.
    #[command(flatten)]
    pub programs: Programs,
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// Clients that write.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// How much is compared in a second at most (storage.scrub_rate).
    #[arg(long, value_name = "SIZE")]
    pub scrub_rate: Option<String>,
}

/// Run everything at once for a long time, kill the active, and verify.
///
/// pgbench's transactions, an order entry like TPC-C's, and tables that are created and dropped, on nodes
/// with few buffers. Sessions on the standby check what they read. Then the active is killed and comes back
/// as a standby, and everything is verified. The benchmark succeeds only if every check passes.
///
/// Ten minutes until the kill, on pgbench's scale 4; with --quick, 20 s on scale 2, and a checkpoint every 5 s.
/// If a check fails, the working directory is kept.
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
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// How long the clients run until the kill. Default: 10m.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// Transactions a second, a fifth of them order entry; there is a round of table changes for every 60 of
    /// them. 0 means no limit. Default: 300, or 150 with --quick.
    #[arg(long)]
    pub rate: Option<u32>,
    /// Clients of each kind.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// Where the blocks are stored: in zone servers, or in Apache Cassandra in three data centres. Then the
    /// report contains Cassandra's statistics of its tables. It manages fewer transactions a second: choose a
    /// --rate.
    #[arg(long, value_enum, default_value_t)]
    pub store: cluster::tier::Store,
    /// File for a picture. Default: none.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}

/// Measure how standbys keep up, what they cost the active, and how soon a new one is ready.
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
    /// Amount of data.
    #[command(flatten)]
    pub scale: Scale,
    /// Pictures.
    #[command(flatten)]
    pub charts: Charts,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<crate::standby::Measurement>,
    /// Size in MiB of the database that a new standby joins.
    #[arg(long, value_parser = clap::value_parser!(u32).range(15..))]
    pub size: Option<u32>,
    /// Length in seconds of the load before the failure, for each way to deal with a slow standby.
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
    fn defaults_depend_on_the_length_of_the_run() {
        let parse = |words: &str| match Cli::try_parse_from(words.split(' ')).unwrap().command {
            Bench::Pgbench(args) => args.common.either(args.runs.seconds, 5, 60),
            other => panic!("another command: {other:?}"),
        };
        assert_eq!(parse("bench pgbench"), 60);
        assert_eq!(parse("bench pgbench --quick"), 5);
        assert_eq!(parse("bench pgbench --quick --seconds 7"), 7);
    }
}
