//! Arguments of `understudy mirror`: the same transactions on a second, independent database.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Keep the same transactions on a second, independent database.
///
/// A replication manager beside each of two members: any PostgreSQL, also of different versions. Clients
/// connect to the primary's manager as to PostgreSQL; what they write is in a log on the zones, and on
/// both members.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy mirror init --config north.toml
  understudy mirror run --config north.toml
  understudy mirror status --config north.toml
  understudy mirror switchover --config north.toml
  understudy mirror verify --config north.toml --json")]
pub enum Mirror {
    /// Make the volume that keeps the log.
    Init(MirrorFile),
    /// Run the replication manager of a member.
    Run(MirrorRun),
    /// Show what both managers are, and how far.
    Status(MirrorAsking),
    /// Let the standby become primary, as soon as no transaction is open.
    Switchover(MirrorAsking),
    /// Compare the members, table by table, while clients go on.
    Verify(MirrorAsking),
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
