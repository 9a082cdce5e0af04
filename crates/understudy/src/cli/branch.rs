//! Arguments of `understudy branch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;

/// Branches: databases that begin as this one was at a moment, and share with it what neither has changed since.
///
/// A branch is a volume of its own in the same zones, laid over an image of the database. It costs what is written to it. Nothing
/// that happens to the branch touches the database, nor the other way round.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  understudy branch create test --config north.toml --directory /var/lib/understudy/test --port 5433
  understudy branch run --directory /var/lib/understudy/test
  understudy branch create before --config north.toml --directory /tmp/before --at '2026-11-28 14:00:00'
  understudy branch create restored --config north.toml --directory /tmp/restored --repository /mnt/backup
  understudy branch list --config north.toml
  understudy branch reset test --config north.toml --directory /var/lib/understudy/test
  understudy branch drop test --config north.toml")]
pub enum Branch {
    /// Make a branch, and a node's configuration that serves it.
    Create(CreateBranch),
    /// Show the branches.
    List(ListBranches),
    /// Serve a branch on this machine until stopped.
    Run(RunBranch),
    /// Put a branch in the place of the database.
    ///
    /// The nodes go on with it, and clients see a pause. What the database has been until then stays as a branch: promote that to
    /// undo it.
    Promote(PromoteBranch),
    /// Make a branch again, at another moment of what it was made of. Its own changes are gone.
    Reset(ResetBranch),
    /// Have the zones copy what a branch shows of its parent, so that the parent can be dropped.
    ///
    /// It takes as much room in each zone as the branch shows of its parent. The branch is served meanwhile.
    Fill(FillBranch),
    /// Remove a branch for good, or all that have expired.
    Drop(DropBranch),
}

/// Where the zones' secret is, if they have one.
#[derive(Debug, Clone, Args)]
pub struct ZonesSecret {
    /// The file with the zones' secret, if they have one: the branch's volume gets a key of its own.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

/// A repository of backups to begin from, in place of the zones.
#[derive(Debug, Clone, Args)]
pub struct FromRepository {
    /// Begin from a repository of this database's backups: a directory, or s3://bucket/path. It is read until everything is in the
    /// zones, by every node that serves the branch.
    #[arg(long, value_name = "PLACE")]
    pub repository: Option<String>,
    /// The file of the repository's key. It must be at the same place on every node that serves the branch.
    #[arg(long, value_name = "FILE", requires = "repository")]
    pub key_file: Option<PathBuf>,
}

/// Arguments of `branch create`.
#[derive(Debug, Args)]
pub struct CreateBranch {
    /// Name of the branch: letters, digits, '-' and '_'.
    #[arg(value_name = "NAME", value_parser = branch_name)]
    pub name: String,
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// A directory on this machine for the branch's node, which must be empty or not there yet.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// The moment: "now", a position such as 0/16B3748, a time in UTC such as "2026-11-28 14:00:00", or "seal 3.17" for that image.
    #[arg(long, value_name = "MOMENT", default_value = "now")]
    pub at: String,
    /// Do not ask the active for a checkpoint first. The active has less work then, and recovery of the branch takes longer.
    #[arg(long)]
    pub no_checkpoint: bool,
    /// A repository to begin from.
    #[command(flatten)]
    pub from: FromRepository,
    /// PostgreSQL's port on this machine; a free one, if none is given.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// A file for psql that hides what the branch shall not show, before anybody else can connect. It begins in the database
    /// "postgres": \\connect leads to another one. Can be given several times.
    #[arg(long, value_name = "FILE")]
    pub mask: Vec<PathBuf>,
    /// Time after which "branch drop --expired" removes the branch, such as 7d.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
    /// How long recovery may take.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `branch reset`.
#[derive(Debug, Args)]
pub struct ResetBranch {
    /// Name of the branch. The nodes that serve it must be stopped.
    #[arg(value_name = "NAME", value_parser = branch_name)]
    pub name: String,
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The directory that "branch create" made.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// The moment, as "branch create" takes it.
    #[arg(long, value_name = "MOMENT", default_value = "now")]
    pub at: String,
    /// Do not ask the active for a checkpoint first. The active has less work then, and recovery of the branch takes longer.
    #[arg(long)]
    pub no_checkpoint: bool,
    /// A file for psql, as "branch create" takes it. Give all of them again.
    #[arg(long, value_name = "FILE")]
    pub mask: Vec<PathBuf>,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
    /// How long recovery may take.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `branch list`.
#[derive(Debug, Args)]
pub struct ListBranches {
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `branch run`.
#[derive(Debug, Args)]
pub struct RunBranch {
    /// The directory that "branch create" made.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// End when standard input is closed.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// Arguments of `branch promote`.
#[derive(Debug, Args)]
pub struct PromoteBranch {
    /// Name of the branch. The nodes that serve it must be stopped.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `branch fill`.
#[derive(Debug, Args)]
pub struct FillBranch {
    /// Name of the branch.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `rewind`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  understudy rewind --to '2026-11-28 14:00:00' --config /etc/understudy/node.toml --secret-file /etc/understudy/zones.secret
  understudy branch promote main --config /etc/understudy/node.toml --secret-file /etc/understudy/zones.secret")]
pub struct Rewind {
    /// The moment: a position such as 0/16B3748, a time in UTC such as "2026-11-28 14:00:00", or "seal 3.17" for that image.
    #[arg(long, value_name = "MOMENT")]
    pub to: String,
    /// A repository to begin from.
    #[command(flatten)]
    pub from: FromRepository,
    /// Configuration file of a node of the database, on this machine.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
    /// Time that recovery may take.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `branch drop`.
#[derive(Debug, Args)]
pub struct DropBranch {
    /// Name of the branch.
    #[arg(value_name = "NAME", value_parser = branch_name, required_unless_present = "expired")]
    pub name: Option<String>,
    /// Every branch whose time is over, whether it is served or not.
    #[arg(long, conflicts_with = "name")]
    pub expired: bool,
    /// Configuration file of a node of the database.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The zones' secret.
    #[command(flatten)]
    pub secret: ZonesSecret,
}

/// A name that a branch may have.
///
/// # Errors
/// Says what a name must be.
pub fn branch_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    match !text.is_empty() && text.len() <= 30 && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("must have 1 to 30 of a-z, 0-9, '-' and '_'".to_owned()),
    }
}
