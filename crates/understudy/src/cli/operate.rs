//! Arguments of what operators ask of a running cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use dax::ids::NodeName;

use super::node_name;
use super::{at_least_one, duration};

/// How the cluster is found, and how the answer is printed.
#[derive(Debug, Clone, Args)]
pub struct Asking {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// How often something is shown.
#[derive(Debug, Clone, Copy, Args)]
pub struct Watching {
    /// Show it again and again, every 2 seconds if not given, until interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub watch: Option<Duration>,
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
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Again and again.
    #[command(flatten)]
    pub watching: Watching,
}

/// Exchange roles as planned: the active hands over to a standby, and becomes one.
///
/// The active stops cleanly, so nothing has to be recovered; clients see a pause. Refused if nobody
/// serves: see failover.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy switchover --config north.toml
  understudy switchover --config north.toml --to south
  understudy switchover --config north.toml --at 'in 5m'
  understudy switchover --config north.toml --at 2026-01-31T04:00:00Z")]
pub struct Switchover {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby that shall become the active; the one that is furthest if not given.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub to: Option<NodeName>,
    /// When, in place of at once: RFC 3339, or "in 5m". The active carries it out; see flush.
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
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
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby that shall become the active; the best one if not given.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub to: Option<NodeName>,
    /// Do not wait for the old active's cooperation.
    #[arg(long)]
    pub force: bool,
}

/// Show who was active when, why it changed, and how long each step took.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy history --config north.toml --last 5")]
pub struct History {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Again and again.
    #[command(flatten)]
    pub watching: Watching,
    /// How many changes, counted from the latest.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    pub last: usize,
}

/// Show the nodes in one table: role, state, timeline, lag, what waits for a restart.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy list --config north.toml
  understudy list --config north.toml --watch 5")]
pub struct List {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Again and again.
    #[command(flatten)]
    pub watching: Watching,
}

/// Show the nodes as a tree: the active, its standbys, and the zones they are in.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy topology --config north.toml")]
pub struct Topology {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Again and again.
    #[command(flatten)]
    pub watching: Watching,
}

/// Switch automatic takeovers off: during work on network or machines.
///
/// Everything else goes on, and orders (switchover, failover) are still carried out. See resume.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy pause --config north.toml --wait --reason \"the switches are replaced\"")]
pub struct Pause {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Why; status shows it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until every node that answers goes by it.
    #[arg(long)]
    pub wait: bool,
}

/// Switch automatic takeovers on again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy resume --config north.toml --wait")]
pub struct Resume {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Wait until every node that answers goes by it.
    #[arg(long)]
    pub wait: bool,
}

/// Restart PostgreSQL, on one node or on all.
///
/// A standby attaches afresh. The active's server stops cleanly and starts again in place; nobody takes
/// over meanwhile. With --rolling the standbys are restarted one after the other, then one of them
/// becomes the active: clients see one short pause. New binaries are used from then on, so that is the
/// way to a new minor version as well.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy restart --config north.toml
  understudy restart --config north.toml south
  understudy restart --config north.toml --all --rolling")]
pub struct Restart {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The node; the one of the configuration file if not given.
    #[arg(value_name = "NODE", value_parser = node_name, conflicts_with = "all")]
    pub node: Option<NodeName>,
    /// Every node, the active last.
    #[arg(long)]
    pub all: bool,
    /// Switch over, in place of restarting the active in place.
    #[arg(long, requires = "all")]
    pub rolling: bool,
}

/// Have every PostgreSQL read its configuration files again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy reload --config north.toml")]
pub struct Reload {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// Have a standby begin anew: it attaches afresh and forgets what it had in memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy reinit --config north.toml south")]
pub struct Reinit {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: NodeName,
}

/// Forget a dead node: its record, and what is kept for it. Refused if it is alive.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy remove --config north.toml south")]
pub struct Remove {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The node.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: NodeName,
}

/// Show the configuration that all nodes share.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy show-config --config north.toml")]
pub struct ShowConfig {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// Change the configuration that all nodes share.
///
/// Without options in $EDITOR. PostgreSQL's parameters are written where every node reads them, and
/// reloaded; what needs a restart is shown by list. Heartbeats change at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy edit-config --config north.toml
  understudy edit-config --config north.toml -p work_mem=16MB -p jit=off
  understudy edit-config --config north.toml -p jit=
  understudy edit-config --config north.toml -s heartbeat.preset=normal -s standbys=2
  understudy edit-config --config north.toml --apply cluster.toml")]
pub struct EditConfig {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Set a value, or take it away if none is written.
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Set a parameter of PostgreSQL, or take it away if no value is written.
    #[arg(short = 'p', long = "parameter", value_name = "NAME=VALUE")]
    pub parameter: Vec<String>,
    /// Take the whole configuration from this file (TOML, as show-config prints it); - for standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["set", "parameter"])]
    pub apply: Option<PathBuf>,
}

/// Cancel what is planned.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy flush switchover --config north.toml")]
pub struct Flush {
    /// What.
    #[command(subcommand)]
    pub what: Planned,
}

/// What can be planned.
#[derive(Debug, Subcommand)]
pub enum Planned {
    /// The scheduled switchover.
    Switchover(Unschedule),
}

/// Arguments of `flush switchover`.
#[derive(Debug, Args)]
pub struct Unschedule {
    /// The cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// Seconds, or a length of time with a unit.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(seconds) => duration(&format!("{seconds}s")),
        Err(_) => duration(text),
    }
}
