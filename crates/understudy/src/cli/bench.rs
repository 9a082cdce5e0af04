//! Arguments of the measurements.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;

/// Measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Compare pgbench on a cluster's active with a stock PostgreSQL on the plain disk.
    Pgbench(BenchPgbench),
    /// Compare the variants of the block protocol at emulated distances, and lose servers under load.
    Dax(BenchDax),
    /// Compare the block path over Apache Cassandra with its driver alone.
    Cassandra(BenchCassandra),
    /// Run everything at once for a long time, kill the active, and verify.
    Soak(BenchSoak),
    /// Measure how standbys keep up, what they cost the active, and how soon a new one is there.
    Standby(BenchStandby),
    /// Lose the active in every way, again and again, and measure what clients see.
    Failover(BenchFailover),
    /// Compare with PostgreSQL alone and with Patroni, on the same machines, disk and network.
    Peers(BenchPeers),
}

/// Options of `bench peers`.
///
/// Machines are network namespaces, so it needs root, iproute2 and util-linux; what it compares with comes
/// by scripts/peers. Every measurement is a line of JSON; it fails if Understudy loses anything
/// that was acknowledged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench peers --quick --output peers.jsonl --report .
  understudy bench peers --system understudy,patroni-sync --clients 8 --rounds 3
  understudy bench peers --unpinned
  understudy bench peers --from bench/results/peers.jsonl --report docs")]
pub struct BenchPeers {
    /// About ten minutes: one round, runs of 5 s, a short load around each loss.
    #[arg(long)]
    pub quick: bool,
    /// Only these systems.
    #[arg(long, value_delimiter = ',')]
    pub system: Vec<crate::bench::peers::Kind>,
    /// How often each; 5 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Clients of the read-write runs.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=90))]
    pub clients: Vec<u16>,
    /// What is run; all if not given, the read-write and the read-only load of pgbench with --quick.
    #[arg(long, value_delimiter = ',')]
    pub load: Vec<crate::bench::peers::Mode>,
    /// Length of one run in seconds; 70 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Clients of all loads but the read-write one.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=90))]
    pub other_clients: u16,
    /// Clients at full speed when the active is lost; 0: it is not lost.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=90))]
    pub loss_clients: u16,
    /// pgbench's scale: 100,000 accounts (about 15 MB) each; 20 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
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
    pub distance: crate::bench::peers::Distance,
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
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in, on the disk to measure; one below the temporary directory if not given.
    /// Left in place after an error.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print every measurement as a line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `understudy bench pgbench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench pgbench --quick
  understudy bench pgbench --seconds 60 --rounds 5 --json >result.json")]
pub struct BenchPgbench {
    /// Short runs: 3 rounds of 5 s instead of 5 of 60 s.
    #[arg(long)]
    pub quick: bool,
    /// Length of one run in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Runs of each workload on each system.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// pgbench's clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: u32,
    /// Without a standby, which takes its processor time from the same machine.
    #[arg(long)]
    pub alone: bool,
    /// With TLS between zones and nodes, as between machines; plaintext if not given, as all is on one.
    #[arg(long)]
    pub tls: bool,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in, on the disk to measure; one below the temporary directory if
    /// not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench dax`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench dax --quick
  understudy bench dax --outage-seconds 0 --json
  understudy bench dax --charts docs")]
pub struct BenchDax {
    /// Short runs on less data: 1 round of 5 s instead of 3 of 20 s, and no timelines with outages.
    #[arg(long)]
    pub quick: bool,
    /// Length of one run in seconds.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Runs of each variant at each distance.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Length of each timeline with an outage in seconds; 0 leaves them out.
    #[arg(long)]
    pub outage_seconds: Option<u32>,
    /// pgbench's clients.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
    /// Write dax-variants.svg and dax-outages.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in; one below the temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench cassandra`.
///
/// Starts three data centres of one node each, which are fetched with Maven. Clients write and read blocks
/// of 8 KiB through our client, and through the driver alone, in turns. Transactions are compared with the
/// paper's two baselines: writes to all copies, or writes and reads of a quorum.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench cassandra --quick
  understudy bench cassandra --load commit,read --clients 1,64 --rounds 5 --json
  understudy bench cassandra --load transaction --distance wan   # needs root, for network namespaces")]
pub struct BenchCassandra {
    /// Runs of 3 s, 2 of each side.
    #[arg(long)]
    pub quick: bool,
    /// What clients do.
    #[arg(long, value_delimiter = ',', value_enum, default_values = ["commit", "read", "transaction"])]
    pub load: Vec<crate::bench::cassandra::Load>,
    /// How far the data centres are apart. Clients are next to the first.
    #[arg(long, value_enum, default_value = "one-machine")]
    pub distance: crate::bench::cassandra::Distance,
    /// Clients at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: Vec<u16>,
    /// Length of one run in seconds; 10 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Runs of each side, after one that does not count; 5 if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Empty directory to work in; one below the temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench failover`.
///
/// Nodes live in network namespaces of their own, so it needs root, iproute2 and util-linux. Clients try
/// again every 10 ms. Succeeds only if nothing that was acknowledged is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench failover --quick
  understudy bench failover --only causes --fault node-killed,switchover --json
  understudy bench failover --only row --scale 340       # 5 GB
  understudy bench failover --only busy --busy 30m")]
pub struct BenchFailover {
    /// 3 rounds of each fault, 5 in the row, one busy minute.
    #[arg(long)]
    pub quick: bool,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<crate::bench::failover::Part>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',')]
    pub fault: Vec<crate::bench::failover::Fault>,
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
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: u32,
    /// Decides the order of the row's faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write failover.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in; one below the temporary directory if not given. Left in place if a
    /// check fails.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench soak`.
///
/// pgbench's transactions, an order entry like TPC-C's and tables that come and go, on nodes with
/// few buffers; sessions on the standby check what they are told. Then the active is killed, comes
/// back as a standby, and everything is verified. Succeeds only if every check holds.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench soak --quick
  understudy bench soak --duration 1h --json >soak.json")]
pub struct BenchSoak {
    /// A short run on less data: 20 s until the kill, a checkpoint every 5 s.
    #[arg(long)]
    pub quick: bool,
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
    /// pgbench's scale, and as many warehouses.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
    /// What keeps the blocks: zone servers, or Apache Cassandra in three data centres; what it says of its tables
    /// under the load is in the report then. It takes fewer transactions a second: choose a --rate.
    #[arg(long, value_enum, default_value_t)]
    pub store: crate::cluster::tier::Store,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in; one below the temporary directory if not given. Left in place
    /// if a check fails.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object, with all samples, instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Where the picture goes; none if not given.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}

/// Options of `bench standby`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy bench standby --quick
  understudy bench standby --only curve,cost --json
  understudy bench standby --only attach --size 10240
  understudy bench standby --charts docs")]
pub struct BenchStandby {
    /// Short runs on less data, about ten minutes in all.
    #[arg(long)]
    pub quick: bool,
    /// Which parts; all if not given.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<crate::bench::standby::Part>,
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
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: Option<u32>,
    /// Write standby-curve.svg and standby-methods.svg into this directory.
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in; one below the temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}
