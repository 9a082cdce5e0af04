//! Arguments of the commands for trying things out.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Start what is needed for a trial on this machine.
#[derive(Debug, Subcommand)]
pub enum Dev {
    /// Start a cluster of Apache Cassandra: one node for each data centre, on loopback addresses.
    Cassandra(DevCassandra),
}

/// Arguments of `understudy dev cassandra`.
///
/// Fetches Cassandra once with Maven (openjdk-17-jre-headless and maven must be installed), starts the
/// nodes, and runs until it is interrupted. Each node needs about half a GiB of memory. Not for data that
/// you want to keep.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy dev cassandra
  understudy dev cassandra --directory /var/tmp/cassandra --nodes 3")]
pub struct DevCassandra {
    /// Directory where the nodes keep their data, to be used again. Default: a new one in the temporary
    /// directory, which is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Number of nodes; each is a data centre of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub nodes: u8,
    /// Disable hinted handoff.
    #[arg(long)]
    pub no_hints: bool,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}
