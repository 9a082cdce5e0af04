//! Arguments of the commands for a running cluster.

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
    /// Repeat until interrupted, every SECONDS (default: 2).
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub watch: Option<Duration>,
}

/// Show which node is active, how far behind the standbys are, and which zones are up.
///
/// The exit code is 0 if there is an active, and 3 if there is none or the zones do not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy status --config north.toml
  understudy status --config north.toml --json | jq .active")]
pub struct Status {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Repeating.
    #[command(flatten)]
    pub watching: Watching,
}

/// Exchange roles: the active hands over to a standby, and becomes a standby.
///
/// The active stops cleanly, so no recovery is needed; clients see a pause. If there is no active, the
/// command is refused: see failover.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy switchover --config north.toml
  understudy switchover --config north.toml --to south
  understudy switchover --config north.toml --at 'in 5m'
  understudy switchover --config north.toml --at 2026-01-31T04:00:00Z")]
pub struct Switchover {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby that becomes the active. Default: the one that has replayed most.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub to: Option<NodeName>,
    /// When, if not at once: RFC 3339, or "in 5m". The active carries it out; see also flush.
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
}

/// Make another node the active, and wait until it serves.
///
/// The active is asked to stop cleanly and hand over. If it has failed, or with --force, the standby
/// takes over as it would by itself. No committed transaction is lost either way.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy failover --config north.toml
  understudy failover --config north.toml --to south --force")]
pub struct Failover {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby that becomes the active. Default: the best one.
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub to: Option<NodeName>,
    /// Do not wait for the cooperation of the old active.
    #[arg(long)]
    pub force: bool,
}

/// Show which node was active when, why it changed, and how long each step took.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy history --config north.toml --last 5")]
pub struct History {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Repeating.
    #[command(flatten)]
    pub watching: Watching,
    /// Number of changes to show, counted from the latest.
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    pub last: usize,
}

/// Show the nodes in a table: role, state, timeline, lag, and what waits for a restart.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy list --config north.toml
  understudy list --config north.toml --watch 5")]
pub struct List {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Repeating.
    #[command(flatten)]
    pub watching: Watching,
}

/// Show the nodes as a tree: the active, its standbys, and the zones they are in.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy topology --config north.toml")]
pub struct Topology {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Repeating.
    #[command(flatten)]
    pub watching: Watching,
}

/// Disable automatic takeovers, for work on the network or on machines.
///
/// Everything else continues, and switchover and failover are still carried out. See resume.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy pause --config north.toml --wait --reason \"the switches are replaced\"")]
pub struct Pause {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The reason, which status shows.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until every node that answers has applied it.
    #[arg(long)]
    pub wait: bool,
}

/// Enable automatic takeovers again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy resume --config north.toml --wait")]
pub struct Resume {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Wait until every node that answers has applied it.
    #[arg(long)]
    pub wait: bool,
}

/// Restart PostgreSQL, on one node or on all.
///
/// A standby reattaches. The server of the active stops cleanly and starts again in place, and no standby
/// takes over in the meantime. With --rolling, the standbys are restarted one after the other, and then one
/// of them becomes the active: clients see one short pause. New binaries are used from then on, so this is
/// also how to install a new minor version.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy restart --config north.toml
  understudy restart --config north.toml south
  understudy restart --config north.toml --all --rolling")]
pub struct Restart {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The node. Default: the node of the configuration file.
    #[arg(value_name = "NODE", value_parser = node_name, conflicts_with = "all")]
    pub node: Option<NodeName>,
    /// Every node, the active last.
    #[arg(long)]
    pub all: bool,
    /// Switch over instead of restarting the active in place.
    #[arg(long, requires = "all")]
    pub rolling: bool,
}

/// Make every PostgreSQL read its configuration files again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy reload --config north.toml")]
pub struct Reload {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// Make a standby start afresh: it reattaches, and discards what it had in memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy reinit --config north.toml south")]
pub struct Reinit {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The standby.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: NodeName,
}

/// Remove a dead node: its record, and what is kept for it. Refused if the node is alive.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy remove --config north.toml south")]
pub struct Remove {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The node.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: NodeName,
}

/// Accept that texts sort on a node as in the volume's indexes, although its glibc or ICU is another version.
///
/// All nodes read the same indexes. A node whose libraries differ from those that the indexes were built with does not
/// take over by itself, because searches in indexes on text could miss rows there. After this command the versions of
/// that node count as the volume's, and nodes with other ones do not take over.
///
/// Do this after an upgrade of the operating system, once the node is to serve: switch over to it, and rebuild the indexes
/// on text at once, before anybody writes with the new order.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, after south's operating system was upgraded:
  understudy accept-collations --config north.toml south
  understudy switchover --config north.toml --to south
  reindexdb --all --concurrently
  psql -c 'ALTER DATABASE name REFRESH COLLATION VERSION'      # PostgreSQL 15 and later, in each database")]
pub struct AcceptCollations {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// The node whose versions are accepted.
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: NodeName,
}

/// Show the configuration that all nodes share.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  understudy show-config --config north.toml")]
pub struct ShowConfig {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// Change the configuration that all nodes share.
///
/// Without options, it opens in $EDITOR. PostgreSQL's parameters are written where every node reads them,
/// and reloaded; list shows what needs a restart. Heartbeats change at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy edit-config --config north.toml
  understudy edit-config --config north.toml -p work_mem=16MB -p jit=off
  understudy edit-config --config north.toml -p jit=
  understudy edit-config --config north.toml -s heartbeat.preset=normal -s standbys=2
  understudy edit-config --config north.toml --apply cluster.toml")]
pub struct EditConfig {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Set a value, or remove it if none is given.
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Set a parameter of PostgreSQL, or remove it if no value is given.
    #[arg(short = 'p', long = "parameter", value_name = "NAME=VALUE")]
    pub parameter: Vec<String>,
    /// Take the whole configuration from this file (TOML, as show-config prints it); - for standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["set", "parameter"])]
    pub apply: Option<PathBuf>,
}

/// Cancel a planned action.
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
    /// Options that name the cluster.
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
