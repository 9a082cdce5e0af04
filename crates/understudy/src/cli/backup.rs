//! Arguments of `understudy backup`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use dax::ids::NodeName;

use super::{duration, node_name};

/// Keep backups of the database in a directory outside of the zones, and restore from them.
///
/// An image is copied from the last checkpoint's seal: the active's PostgreSQL has no part in it. What the repository has of it
/// already is not written again. The log is copied as it becomes durable, over takeovers too.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy backup archive --config north.toml --repository /backup
  understudy backup create --config north.toml --repository /backup
  understudy backup list --repository /backup
  understudy backup restore --repository /backup --directory /tmp/then --to '2026-11-28 14:00:00'
  understudy backup verify --repository /backup")]
pub enum Backup {
    /// Copy an image now, with the log that it needs.
    Create(CreateBackup),
    /// Copy the log as it becomes durable, and images by schedule, until stopped.
    Archive(ArchiveLog),
    /// Show the images, and how far from each the log goes.
    List(BackupRepository),
    /// Read all of it, and say what is damaged or missing.
    Verify(BackupRepository),
    /// Make a data directory of it, from which PostgreSQL starts by itself.
    Restore(RestoreBackup),
}

/// Where backups are.
#[derive(Debug, Clone, Args)]
pub struct BackupRepository {
    /// The directory with the backups: on another disk than the zones', better in another building.
    #[arg(long, value_name = "DIR")]
    pub repository: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `backup create`.
#[derive(Debug, Args)]
pub struct CreateBackup {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Where to.
    #[command(flatten)]
    pub to: BackupRepository,
    /// By which name it claims what it reads; no node has it, and nobody else who makes backups at the same time.
    #[arg(long, value_name = "NAME", default_value = "backup-create", value_parser = node_name)]
    pub name: NodeName,
}

/// Arguments of `backup archive`.
#[derive(Debug, Args)]
pub struct ArchiveLog {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The directory with the backups: on another disk than the zones', better in another building.
    #[arg(long, value_name = "DIR")]
    pub repository: PathBuf,
    /// How often an image is copied.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = duration)]
    pub images_every: Duration,
    /// How often the log is copied.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub log_every: Duration,
    /// By which name it claims what it reads; no node has it, and nobody else who makes backups at the same time.
    #[arg(long, value_name = "NAME", default_value = "backup-archive", value_parser = node_name)]
    pub name: NodeName,
}

/// Arguments of `backup restore`.
#[derive(Debug, Args)]
pub struct RestoreBackup {
    /// The directory with the backups.
    #[arg(long, value_name = "DIR")]
    pub repository: PathBuf,
    /// The data directory to make: empty, or not there yet.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to stop: "latest", a position of the log (0/16B3748), or a time in UTC ("2026-11-28 14:00:00").
    #[arg(long, value_name = "MOMENT", default_value = "latest")]
    pub to: String,
    /// The image to begin with, by its name in "backup list". Default: the last one before the moment.
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// The owner of the files, if root makes them.
    #[arg(long, value_name = "USER", default_value = "postgres")]
    pub owner: String,
}
