//! Arguments of `understudy mirror`: the same transactions on a second, independent database.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;

/// Keep the same transactions on a second, independent database.
///
/// A replication manager beside each of two members: any PostgreSQL, also of different versions. Clients
/// connect to the primary's manager as to PostgreSQL; what they write is in a log on the zones, and on
/// both members.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy mirror check --config north.toml
  understudy mirror create-log --config north.toml
  understudy mirror run --config north.toml
  understudy mirror status --config north.toml
  understudy mirror switchover --config north.toml
  understudy mirror verify --config north.toml --json
  understudy mirror upgrade --config north.toml
  understudy mirror resolve --keep north --config north.toml")]
pub enum Mirror {
    /// Say what would be refused, or differ, before anything starts; nothing is changed.
    Check(MirrorAsking),
    /// Make the volume that keeps the log.
    CreateLog(MirrorFile),
    /// Former name of `create-log`.
    #[command(hide = true)]
    Init(MirrorFile),
    /// Run the replication manager of a member.
    Run(MirrorRun),
    /// Show what both managers are, and how far.
    Status(MirrorAsking),
    /// Let the standby become primary, as soon as no transaction is open.
    Switchover(MirrorAsking),
    /// Compare the members, table by table, while clients go on.
    Verify(MirrorAsking),
    /// Upgrade to a new major version: the standby, which has it, becomes primary.
    ///
    /// Says what is missing, waits until the standby follows, compares the members, and switches over. The
    /// older member then follows, so there is a way back.
    Upgrade(MirrorUpgrading),
    /// Decide which member is right, and replace the other one, which is kept under another name.
    ///
    /// A member that differs, that belongs to another log, or whose database has something else is set aside
    /// until then: `status` says what it is. The one to keep is primary or set aside.
    Resolve(MirrorResolving),
    /// Show who was primary since when.
    History(MirrorAsking),
    /// Show what the manager of this file has counted, as Prometheus reads it.
    Metrics(MirrorFile),
}

/// Which manager.
#[derive(Debug, Args)]
pub struct MirrorFile {
    /// A configuration file with the name, volume, zones and [tls] of a node's, and [mirror].
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Run a manager.
#[derive(Debug, Args)]
pub struct MirrorRun {
    /// Which.
    #[command(flatten)]
    pub file: MirrorFile,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Decide which member is right.
#[derive(Debug, Args)]
pub struct MirrorResolving {
    /// The managers, and how to print.
    #[command(flatten)]
    pub asking: MirrorAsking,
    /// The name of the manager whose member is right.
    #[arg(long, value_name = "NAME")]
    pub keep: String,
}

/// Upgrade to a new major version.
#[derive(Debug, Args)]
pub struct MirrorUpgrading {
    /// The managers, and how to print.
    #[command(flatten)]
    pub asking: MirrorAsking,
    /// Switch over to the older version again.
    #[arg(long, conflicts_with = "finish")]
    pub back: bool,
    /// Say how the older member is replaced, which ends the upgrade.
    #[arg(long, conflicts_with = "dry_run")]
    pub finish: bool,
    /// Do everything but the switchover.
    #[arg(long)]
    pub dry_run: bool,
    /// Stop if a member has not followed for so long, or does not serve.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub timeout: Duration,
}

/// Ask the managers.
#[derive(Debug, Args)]
pub struct MirrorAsking {
    /// One of them.
    #[command(flatten)]
    pub file: MirrorFile,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
