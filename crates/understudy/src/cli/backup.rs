//! Arguments of `understudy backup`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use coordination::config::ByteSize;
use dax::ids::NodeName;

use super::{duration, node_name};

/// Keep backups of the database outside of the zones, in a directory or in S3, and restore from them.
///
/// An image is copied from the last checkpoint's seal: the active's PostgreSQL has no part in it. What the repository has of it
/// already is not written again. The log is copied as it becomes durable, over takeovers too.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy backup archive --config north.toml --repository /backup
  understudy backup create --config north.toml --repository s3://bucket/app --key-file /etc/understudy/backup.key
  understudy backup list --repository /backup
  understudy backup restore --repository /backup --directory /tmp/then --to '2026-11-28 14:00:00'
  understudy backup drill --repository /backup --directory /var/tmp/drill
  understudy backup expire --repository /backup --keep 'all for 1d, daily for 14d'
  understudy backup verify --repository /backup")]
pub enum Backup {
    /// Copy an image now, with the log that it needs.
    Create(CreateBackup),
    /// Copy the log as it becomes durable, and images by schedule, until stopped.
    Archive(ArchiveLog),
    /// Show the images, and how far from each the log goes.
    List(BackupRepository),
    /// Read all of it, and say what is damaged or missing.
    Verify(VerifyBackups),
    /// Make a data directory of it, from which PostgreSQL starts by itself.
    Restore(RestoreBackup),
    /// Try a restore: start PostgreSQL on it, check its indexes and tables, throw it away.
    Drill(DrillBackup),
    /// Remove images that no rule keeps, log that no image needs, and pieces that no image has.
    Expire(ExpireBackups),
}

/// Where backups are.
#[derive(Debug, Clone, Args)]
pub struct BackupPlace {
    /// The directory with the backups, on another disk than the zones', better in another building; or s3://bucket/path, with
    /// the credentials, region and endpoint in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT.
    #[arg(long, value_name = "PLACE")]
    pub repository: String,
    /// The file of the key with which they are encrypted. "understudy key --new-secret FILE" makes one: keep a copy elsewhere.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// Where backups are, and how to show them.
#[derive(Debug, Clone, Args)]
pub struct BackupRepository {
    /// Where backups are.
    #[command(flatten)]
    pub place: BackupPlace,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `backup verify`.
#[derive(Debug, Args)]
pub struct VerifyBackups {
    /// Which backups.
    #[command(flatten)]
    pub of: BackupRepository,
    /// Set damaged pieces and images aside, in damaged/ of the repository. The next image writes such a piece again, if the database
    /// still has its contents: older images are whole again then.
    #[arg(long)]
    pub repair: bool,
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
    /// How much is read from the zones in a second at most ("50MiB"). Default: as fast as it goes.
    #[arg(long, value_name = "BYTES")]
    pub rate: Option<ByteSize>,
    /// Read everything, also what was not written since the image before.
    #[arg(long)]
    pub full: bool,
    /// By which name it claims what it reads; no node has it, and nobody else who makes backups at the same time.
    #[arg(long, value_name = "NAME", default_value = "backup-create", value_parser = node_name)]
    pub name: NodeName,
}

/// Arguments of `backup archive`. Those that are not given are taken from the configuration's `[backup]`, if the repository is.
#[derive(Debug, Args)]
pub struct ArchiveLog {
    /// The configuration file of any node.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The directory with the backups, on another disk than the zones', better in another building; or s3://bucket/path. Default:
    /// that of [backup] in the configuration.
    #[arg(long, value_name = "PLACE")]
    pub repository: Option<String>,
    /// The file of the key with which they are encrypted.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// How often an image is copied. Default: 1d.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub images_every: Option<Duration>,
    /// How often the log is copied. Default: 3s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub log_every: Option<Duration>,
    /// Which images stay, such as "all for 1d, daily for 14d, weekly for 8w". Default: all.
    #[arg(long, value_name = "RULES")]
    pub keep: Option<String>,
    /// For how long any moment can be restored, with --keep. Default: 14d.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub log_for: Option<Duration>,
    /// How much is read from the zones in a second at most while an image is copied ("50MiB"). Default: as fast as it goes.
    #[arg(long, value_name = "BYTES")]
    pub rate: Option<ByteSize>,
    /// By which name it claims what it reads; no node has it, and nobody else who makes backups at the same time.
    #[arg(long, value_name = "NAME", default_value = "backup-archive", value_parser = node_name)]
    pub name: NodeName,
    /// Ends when standard input does: for an agent that runs it.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Arguments of `backup restore`.
#[derive(Debug, Args)]
pub struct RestoreBackup {
    /// Where backups are.
    #[command(flatten)]
    pub place: BackupPlace,
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

/// Arguments of `backup drill`.
#[derive(Debug, Args)]
pub struct DrillBackup {
    /// Where backups are.
    #[command(flatten)]
    pub from: BackupRepository,
    /// Where to restore to; it is not there yet, and gone afterwards. Needs as much room as the database.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to stop, as in "backup restore".
    #[arg(long, value_name = "MOMENT", default_value = "latest")]
    pub to: String,
    /// A question in SQL that must be true then; as often as you like.
    #[arg(long, value_name = "SQL")]
    pub query: Vec<String>,
    /// Do not run pg_amcheck, which reads all tables and indexes.
    #[arg(long)]
    pub no_amcheck: bool,
    /// How long recovery may take.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub within: Duration,
    /// The directory of PostgreSQL's programs. Default: Debian's, of the image's version.
    #[arg(long, value_name = "DIR")]
    pub bin: Option<PathBuf>,
    /// A superuser of the database.
    #[arg(long, value_name = "ROLE", default_value = "postgres")]
    pub superuser: String,
    /// User that runs the server, if root gives the command.
    #[arg(long, value_name = "USER", default_value = "postgres")]
    pub owner: String,
}

/// Arguments of `backup expire`.
#[derive(Debug, Args)]
pub struct ExpireBackups {
    /// Where backups are.
    #[command(flatten)]
    pub from: BackupRepository,
    /// Which images stay, such as "all for 1d, daily for 14d, weekly for 8w". The newest always does.
    #[arg(long, value_name = "RULES")]
    pub keep: String,
    /// For how long any moment can be restored; older images can be restored as they are.
    #[arg(long, value_name = "TIME", default_value = "14d", value_parser = duration)]
    pub log_for: Duration,
    /// How long pieces stay that no image has, for restores that have begun.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = humantime::parse_duration)]
    pub grace: Duration,
}
