//! Arguments of the demonstration.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;
use cluster::tier::Store;

/// Servers that a demonstration can host besides PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostedEngine {
    /// MariaDB (Debian: mariadb-server-core and mariadb-client).
    Mariadb,
}

/// What of a machine's output waits for checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VmProtection {
    /// Everything: connections go on.
    Everything,
    /// What ends a transaction.
    Commits,
    /// Nothing.
    Nothing,
}

/// Show a failover: start a cluster on this machine, load it, kill the active, verify.
///
/// Three zones, an active and a standby run as child processes on free ports. Clients run pgbench's
/// transactions. Somewhere in the middle, the active's agent and PostgreSQL are killed with SIGKILL.
/// Afterwards every acknowledged commit is looked up. The demo succeeds only if none is lost and every
/// check passes. It leaves nothing behind but a picture.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy demo
  understudy demo --duration 60s --clients 16 --ddl
  understudy demo --seed 42 --json >result.json
  understudy demo --store cassandra
  understudy demo --engine mariadb --kills 20
  understudy demo --engine mariadb --kills 20 --large-writes
  understudy demo --proxy
  understudy demo --proxy --kills 20 --switchovers 5 --restarts 2 --scale 1
  understudy demo --past
  understudy demo --mirror
  understudy demo --mirror --kills 20 --duration 120s --scale 1
  understudy demo --vm --kills 5
  understudy demo --vm --protection commits --image /var/lib/understudy/image --password-file secret
  understudy demo --bin /usr/lib/postgresql/15/bin --keep --data /tmp/stage")]
pub struct Demo {
    /// Another server than PostgreSQL: MariaDB, which is restarted on the other node when its machine is killed.
    #[arg(long, value_enum, group = "many")]
    pub engine: Option<HostedEngine>,
    /// With --engine: how often the machine of the active is killed. With --proxy: how often its agent and PostgreSQL are.
    /// With --mirror: how often a machine, a manager or a member is.
    #[arg(long, default_value_t = 1, requires = "many", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub kills: u32,
    /// With --proxy: switchovers, which must have no errors. Half of the clients then use the simple protocol.
    #[arg(long, default_value_t = 0, requires = "proxy", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub switchovers: u32,
    /// With --proxy: rolling restarts, which must have no errors.
    #[arg(long, default_value_t = 0, requires = "proxy", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub restarts: u32,
    /// With --engine: half of the clients write large rows, and before each recovery every page is looked at.
    #[arg(long, requires = "engine")]
    pub large_writes: bool,
    /// Where the blocks are stored: in zone servers, or in Apache Cassandra in three data centres, which is
    /// fetched with Maven.
    #[arg(long, value_enum, default_value_t)]
    pub store: Store,
    /// How long the clients run.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub duration: Duration,
    /// Concurrent clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: u32,
    /// Determines the moment of the kill and the rows that are touched. Default: random.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Create, change and drop tables all the time, in addition to the load.
    #[arg(long)]
    pub ddl: bool,
    /// Start the killed node again after the takeover, and wait until it follows as a standby.
    #[arg(long)]
    pub rejoin: bool,
    /// Let the clients connect to a proxy, which keeps their sessions and their transactions over the takeover.
    #[arg(long, group = "many")]
    pub proxy: bool,
    /// Keep the same transactions on two independent servers: managers and members are killed, and come back, the first one
    /// with an empty disk.
    #[arg(long, group = "many")]
    pub mirror: bool,
    /// A table is dropped, and comes back by a branch, by a restore from a repository, and by a rewind of the database.
    #[arg(long, group = "many", conflicts_with_all = ["engine", "proxy", "mirror", "vm", "ddl", "rejoin", "kills", "store"])]
    pub past: bool,
    /// A virtual machine with PostgreSQL, protected by checkpoints: the processes of the host that runs it are killed.
    /// Needs root.
    #[arg(long, group = "many", conflicts_with_all = ["engine", "proxy", "ddl", "rejoin"])]
    pub vm: bool,
    /// With --vm: what waits for checkpoints. "nothing" loses commits, and shows what the others are for.
    #[arg(long, value_enum, default_value = "everything", requires = "vm")]
    pub protection: VmProtection,
    /// With --vm: time between two checkpoints.
    #[arg(long, alias = "epoch", default_value = "50ms", value_parser = duration, requires = "vm")]
    pub checkpoint_interval: Duration,
    /// With --vm: megabytes of memory.
    #[arg(long, default_value_t = 512, requires = "vm", value_parser = clap::value_parser!(u64).range(256..=1 << 20))]
    pub memory_mb: u64,
    /// With --vm: an image that "understudy vm create" made. Default: a new one, which takes a minute.
    #[arg(long, value_name = "DIR", requires = "vm", requires = "password_file")]
    pub image: Option<PathBuf>,
    /// The file with the image's password.
    #[arg(long, value_name = "FILE", requires = "image")]
    pub password_file: Option<PathBuf>,
    /// Directory of PostgreSQL's programs. Default: Debian's newest.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in. Default: a new one in the temporary directory.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Keep data and logs.
    #[arg(long)]
    pub keep: bool,
    /// Print one JSON object instead of the report.
    #[arg(long)]
    pub json: bool,
    /// File for the picture. Default: understudy-demo-<SEED>.svg in the temporary directory.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}
