//! The command line: what can be asked for, with its help and examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dax::ids::VolumeName;
use dax::storage::Protocol;

const AFTER_HELP: &str = "\
Exit codes: 0 done; 1 failed, or a check did not hold; 2 wrong command line or configuration;
3 not available now (zones, agent, something to install); 4 refused; 130 interrupted.

Try it:  understudy demo";

/// Keeps an unmodified PostgreSQL available: standbys replay the log on shared, replicated storage
/// and take over in about a second, without losing a commit.
#[derive(Debug, Parser)]
#[command(name = "understudy", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// What is logged to standard error: error, warn, info, debug, trace, or per part
    /// ("node=debug,info"). RUST_LOG does the same.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // the documentation of a variant's arguments is its help text
pub enum Command {
    Store(Store),
    Key(Key),
    Init(Init),
    Node(Node),
    Status(Status),
    Switchover(Switchover),
    Failover(Failover),
    History(History),
    Demo(Demo),
    #[command(subcommand)]
    Bench(Bench),
}

/// Serve one zone: keep a replica of every volume's blocks in a local directory.
///
/// Run one in each data centre, or rack, or on each disk. Start three before the first `init`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy store --data /var/lib/understudy/zone-a --listen 10.0.0.1:7101 \\
    --secret-file /etc/understudy/zones.secret
  understudy store --data ./zone-a --listen 127.0.0.1:7101")]
pub struct Store {
    /// Where the blocks are kept; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where to listen: host:port or unix:/path. May be given several times. What is sent is not
    /// encrypted: keep it off public networks.
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<String>,
    /// For tests on one machine: emulate the distances to clients that this file says (see
    /// docs/OPERATIONS.md). It is watched: a change takes effect at once.
    #[arg(long, value_name = "FILE", requires = "zone")]
    pub network: Option<PathBuf>,
    /// The zone that this server is in, as the network file names it.
    #[arg(long, value_name = "NAME", requires = "network")]
    pub zone: Option<String>,
    /// The zones' secret: clients must prove that they know their volume's key, which is made from
    /// it. See understudy key. Without one only this machine may connect.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Make the zones' secret, and from it the key of each volume.
///
/// Every zone of a cluster has the same secret. A node gets the key of its volume only, and with it
/// cannot read or write any other. Files are made so that only their owner can read them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy key --new-secret /etc/understudy/zones.secret
  understudy key --secret-file /etc/understudy/zones.secret --volume main --output main.key")]
pub struct Key {
    /// Write a new random secret into this file, which must not exist.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "secret_file",
        conflicts_with_all = ["secret_file", "volume", "output"]
    )]
    pub new_secret: Option<PathBuf>,
    /// The zones' secret: at least 32 random bytes, raw or as hexadecimal digits.
    #[arg(long, value_name = "FILE", requires = "volume")]
    pub secret_file: Option<PathBuf>,
    /// The volume whose key to make; it need not exist yet.
    #[arg(long, value_name = "NAME", requires = "secret_file", value_parser = volume_name)]
    pub volume: Option<VolumeName>,
    /// Write the key into this file, which must not exist; standard output if not given.
    #[arg(long, value_name = "FILE", requires = "secret_file")]
    pub output: Option<PathBuf>,
}

/// Create a volume in the zones, and an empty or imported database in it.
///
/// Run it once for a cluster, on any node, before the first `node`. Takes the superuser's name and
/// PostgreSQL's version from the configuration.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy init --config /etc/understudy/north.toml
  understudy init --config north.toml -- --locale=C.UTF-8 --data-checksums
  understudy init --config north.toml --import /var/lib/postgresql/15/main")]
pub struct Init {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Copy this data directory of a cleanly stopped PostgreSQL in place of running initdb.
    #[arg(long, value_name = "DIR")]
    pub import: Option<PathBuf>,
    /// Copies that make a write durable (k); by default a majority that reaches two zones. There
    /// are as many copies (N) as "zones" in the configuration lists servers.
    #[arg(long, value_name = "K")]
    pub sync_replicas: Option<u8>,
    /// How blocks are written and read. All but the default are for comparison only.
    #[arg(long, value_enum, default_value_t = BlockProtocol::StrongOptimistic)]
    pub protocol: BlockProtocol,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Further arguments for initdb.
    #[arg(
        last = true,
        value_name = "INITDB ARGUMENTS",
        conflicts_with = "import"
    )]
    pub initdb: Vec<String>,
}

/// The variants of the block protocol that DAX compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BlockProtocol {
    /// Baseline 1: writes wait for all copies, reads ask one.
    WriteAll,
    /// Baseline 2: writes wait for k copies, reads ask N-k+1.
    Quorum,
    /// Sync points wait for one copy: losing a zone loses acknowledged commits.
    BasicOptimistic,
    /// Sync points wait for k copies, reads ask one where its version proves to be the newest.
    StrongOptimistic,
}

impl From<BlockProtocol> for Protocol {
    fn from(protocol: BlockProtocol) -> Protocol {
        match protocol {
            BlockProtocol::WriteAll => Protocol::WriteAll,
            BlockProtocol::Quorum => Protocol::Quorum,
            BlockProtocol::BasicOptimistic => Protocol::BasicOptimistic,
            BlockProtocol::StrongOptimistic => Protocol::StrongOptimistic,
        }
    }
}

/// Run a node: agent, mount and PostgreSQL.
///
/// It becomes the active if nobody is, a standby otherwise, and takes over when the active is gone.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy node --config /etc/understudy/north.toml")]
pub struct Node {
    /// The node's configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Show who is active, how far standbys are, and which zones are up.
///
/// Exit code 0 if a node serves, 3 if nobody does or the zones do not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy status --config north.toml
  understudy status --config north.toml --json | jq .active")]
pub struct Status {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Exchange roles as planned: the active hands over to a standby, and becomes one.
///
/// The active stops cleanly, so nothing has to be recovered; clients see a pause. Refused if nobody
/// serves: see failover.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy switchover --config north.toml
  understudy switchover --config north.toml --to south")]
pub struct Switchover {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The standby that shall become the active; the one that is furthest if not given.
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Let another node become the active, and wait until it serves.
///
/// The active is asked to stop cleanly and hand over. If it is gone, or with --force, the standby
/// takes over as it would by itself. Nothing that was committed is lost either way.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy failover --config north.toml
  understudy failover --config north.toml --to south --force")]
pub struct Failover {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The standby that shall become the active; the best one if not given.
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// Do not wait for the old active's cooperation.
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Show who was active when, why it changed, and how long each step took.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy history --config north.toml --last 5")]
pub struct History {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How many changes, counted from the latest.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    pub last: usize,
    /// Print one JSON array, oldest first.
    #[arg(long)]
    pub json: bool,
}

/// Show a failover: start a cluster on this machine, load it, kill the active, verify.
///
/// Three zones, an active and a standby node run as child processes on free ports. Clients run
/// pgbench's transactions; somewhere in the middle the active's agent and PostgreSQL are killed
/// with SIGKILL. Afterwards every acknowledged commit is looked for. Succeeds only if none is lost
/// and every check holds. Leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy demo
  understudy demo --duration 60s --clients 16 --ddl
  understudy demo --seed 42 --json >result.json
  understudy demo --bin /usr/lib/postgresql/15/bin --keep --data /tmp/stage")]
pub struct Demo {
    /// How long the clients run.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub duration: Duration,
    /// Concurrent clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: u16,
    /// pgbench's scale: 100,000 accounts (about 15 MB) each.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub scale: u32,
    /// Decides the moment of the kill and the rows touched; random if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Beside the load, create, change and drop tables all the time.
    #[arg(long)]
    pub ddl: bool,
    /// Start the killed node again after the takeover, and wait until it follows as a standby.
    #[arg(long)]
    pub rejoin: bool,
    /// Directory of PostgreSQL's programs; Debian's newest if not given.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// Empty directory to work in; one below the temporary directory if not given.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    #[arg(long)]
    pub keep: bool,
    /// Print one JSON object instead of the story.
    #[arg(long)]
    pub json: bool,
    /// Where the picture goes; understudy-demo-<SEED>.svg in the temporary directory if not given.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}

/// Measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Compare pgbench on a cluster's active with a stock PostgreSQL on the plain disk.
    Pgbench(BenchPgbench),
    /// Compare the variants of the block protocol at emulated distances, and lose servers under load.
    Dax(BenchDax),
    /// Run everything at once for a long time, kill the active, and verify.
    Soak(BenchSoak),
    /// Measure how standbys keep up, what they cost the active, and how soon a new one is there.
    Standby(BenchStandby),
    /// Lose the active in every way, again and again, and measure what clients see.
    Failover(BenchFailover),
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

/// A length of time such as `30s`, `500ms`, `2m` or `1m 30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write for example 30s, 500ms or 2m"))?;
    if parsed.is_zero() {
        return Err("must be longer than nothing".into());
    }
    Ok(parsed)
}

fn volume_name(text: &str) -> Result<VolumeName, String> {
    VolumeName::new(text).map_err(|error| error.to_string())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("write a number of at least 1".into()),
    }
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
    fn a_key_command_makes_one_thing() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        let accepted = [
            "understudy key --new-secret s",
            "understudy key --secret-file s --volume main",
            "understudy key --secret-file s --volume main --output k",
        ];
        let refused = [
            "understudy key",
            "understudy key --secret-file s",
            "understudy key --volume main",
            "understudy key --new-secret s --volume main",
            "understudy key --new-secret s --output k",
            "understudy key --secret-file s --volume no/name",
        ];
        for words in accepted {
            assert!(parse(words).is_ok(), "{words}");
        }
        for words in refused {
            assert!(parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn lengths_of_time_have_units() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("30").is_err());
        assert!(duration("0s").is_err());
    }
}
