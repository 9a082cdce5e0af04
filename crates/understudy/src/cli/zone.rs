//! Arguments of `understudy zone`: who keeps the copies.

use clap::{Args, Subcommand};

use super::Asking;

/// Show and exchange the zones that keep the volume, while it serves.
///
/// One change at a time. The active sends a newcomer everything before it counts; whoever takes over meanwhile goes
/// on with it, and the same command watches it again. A zone that left can be stopped, and its directory removed.
/// Nodes find the zones by any that they list, so "zones" in their configurations may be brought up to date later.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy zone list --config north.toml
  understudy zone replace --config north.toml zone2:7101 zone4:7101
  understudy zone add --config north.toml zone4:7101 zone5:7101
  understudy zone remove --config north.toml zone5:7101
  understudy zone cancel --config north.toml")]
pub enum Zone {
    /// Show the zones, and an exchange that is under way.
    List(ZoneList),
    /// Add zones, each with a copy of everything.
    Add(ZoneAdd),
    /// Let a new zone take an old one's place.
    Replace(ZoneReplace),
    /// Remove zones.
    Remove(ZoneRemove),
    /// Give up the exchange that is under way.
    Cancel(ZoneCancel),
}

/// Show the zones.
#[derive(Debug, Args)]
pub struct ZoneList {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
}

/// How an exchange is carried out.
#[derive(Debug, Args)]
pub struct Exchanging {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
    /// Copies that make a commit durable afterwards; as few as are safe, if not given.
    #[arg(long, value_name = "COPIES")]
    pub sync_copies: Option<u8>,
    /// Return once it is under way.
    #[arg(long)]
    pub no_wait: bool,
}

/// Add zones.
#[derive(Debug, Args)]
pub struct ZoneAdd {
    /// Options of every exchange.
    #[command(flatten)]
    pub exchanging: Exchanging,
    /// Their addresses, as the nodes reach them.
    #[arg(value_name = "ADDRESS", required = true)]
    pub addresses: Vec<String>,
    /// The zone that they are in, if that has copies already: its number in "understudy zone list".
    #[arg(long, value_name = "NUMBER")]
    pub zone: Option<u8>,
}

/// Exchange one.
#[derive(Debug, Args)]
pub struct ZoneReplace {
    /// Options of every exchange.
    #[command(flatten)]
    pub exchanging: Exchanging,
    /// The old one's address, or its store's id.
    pub old: String,
    /// The new one's address.
    pub new: String,
}

/// Remove zones.
#[derive(Debug, Args)]
pub struct ZoneRemove {
    /// Options of every exchange.
    #[command(flatten)]
    pub exchanging: Exchanging,
    /// Their addresses, or their stores' ids.
    #[arg(value_name = "ADDRESS", required = true)]
    pub addresses: Vec<String>,
    /// Also if fewer than three are left, so that none of them may fail.
    #[arg(long)]
    pub force: bool,
}

/// Give it up.
#[derive(Debug, Args)]
pub struct ZoneCancel {
    /// Options that name the cluster.
    #[command(flatten)]
    pub asking: Asking,
}
