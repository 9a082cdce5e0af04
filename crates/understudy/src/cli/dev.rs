//! Arguments of the helpers for trying out.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Start what a trial needs on this machine.
#[derive(Debug, Subcommand)]
pub enum Dev {
    /// Start a cluster of Apache Cassandra: one node for each data centre, on loopback addresses.
    Cassandra(DevCassandra),
}

/// Arguments of `understudy dev cassandra`.
///
/// Fetches Cassandra with Maven once (openjdk-17-jre-headless and maven must be installed), starts the
/// nodes, and runs until it is interrupted. About half a GiB of memory for each node. Not for data that
/// somebody needs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy dev cassandra
  understudy dev cassandra --directory /var/tmp/cassandra --nodes 3")]
pub struct DevCassandra {
    /// Where the nodes keep their data, to be found again; one below the temporary directory, removed at
    /// the end, if not given.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Nodes; each is a data centre of its own.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub nodes: u8,
    /// Without hinted handoff.
    #[arg(long)]
    pub no_hints: bool,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}
