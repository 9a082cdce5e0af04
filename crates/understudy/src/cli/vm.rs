//! Arguments of `understudy vm`: virtual machines protected by checkpoints.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Protect a virtual machine with any database by checkpoints, many times a second.
///
/// A machine runs on one of two hosts; the other one holds its memory, devices and disk as they were some
/// tens of milliseconds ago, and runs it on when the first is lost: with warm memory, and with the connections
/// of its clients. Nothing that the standby does not hold leaves the machine.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy vm create --image /var/lib/understudy/image --password-file secret
  understudy vm init --config north.toml
  understudy vm run --config north.toml             on the host where the machine begins
  understudy vm run --standby --config south.toml   on the other one
  understudy vm status --config north.toml --json
  understudy vm switchover --config north.toml")]
pub enum Vm {
    /// Make the image of a machine: Debian with a database.
    Create(VmCreate),
    /// Make the volume that says who runs the machine.
    Init(VmFile),
    /// Run the machine on this host, or follow whoever runs it already.
    ///
    /// With --standby, hold the checkpoints of the machine that the other host runs, and take over when that is lost.
    Run(VmRun),
    /// Former name of `run --standby`.
    #[command(hide = true)]
    Protect(VmHost),
    /// Show what both hosts are, and what checkpoints cost.
    Status(VmAsking),
    /// Let the standby take over now.
    Switchover(VmAsking),
    /// Former name of `switchover`.
    #[command(hide = true)]
    Failover(VmAsking),
    /// Start the machine from the disk of the host of this file, when no host starts it by itself: the host that
    /// ran it last is gone for good, or restarted before its disk was synced. What the other host's disk has and
    /// this one's has not is lost.
    StartFromDisk(VmFile),
    /// Have the host of this file read it again: checkpoint_interval, protection, compression and read_tracking change while the machine runs.
    Reload(VmAsking),
    /// Show who ran the machine since when.
    History(VmAsking),
    /// Show what the host of this file has counted, as Prometheus reads it.
    Metrics(VmFile),
}

/// A database that an image can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VmDatabase {
    /// PostgreSQL.
    Postgresql,
    /// MariaDB.
    Mariadb,
}

/// Make an image.
#[derive(Debug, Args)]
pub struct VmCreate {
    /// A directory that does not exist yet.
    #[arg(long, value_name = "DIR")]
    pub image: PathBuf,
    /// Its database.
    #[arg(long, value_enum, default_value = "postgresql")]
    pub database: VmDatabase,
    /// A file with the password of the database's administrator.
    #[arg(long, value_name = "FILE")]
    pub password_file: PathBuf,
    /// Megabytes of the disk.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1024..=1 << 20))]
    pub disk_mb: u64,
    /// The machine's name.
    #[arg(long, default_value = "database")]
    pub hostname: String,
    /// Debian packages that it has besides.
    #[arg(long, value_name = "PACKAGE")]
    pub package: Vec<String>,
}

/// Which host.
#[derive(Debug, Args)]
pub struct VmFile {
    /// A configuration file with the name, volume, zones and [tls] of a node's, and [vm].
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Run a host, as what it is to be.
#[derive(Debug, Args)]
pub struct VmRun {
    /// The host.
    #[command(flatten)]
    pub host: VmHost,
    /// Begin as the standby: hold the checkpoints of the machine that the other host runs.
    #[arg(long)]
    pub standby: bool,
}

/// Run a host.
#[derive(Debug, Args)]
pub struct VmHost {
    /// Options that name the machine's file.
    #[command(flatten)]
    pub file: VmFile,
    /// End when standard input ends.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Ask the hosts.
#[derive(Debug, Args)]
pub struct VmAsking {
    /// One of them.
    #[command(flatten)]
    pub file: VmFile,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
