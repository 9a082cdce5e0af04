//! The ways to back up a cluster: its own, and those that people use.
//!
//! Invariant: each has a repository of its own, and all of them compress by zstd where they can compress.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use cluster::Cluster;
use cluster::clients::session::connect;
use cluster::elsewhere::{base_backup, open_directory, postgres, succeeded};
use serde::Serialize;

/// The server's `archive_command` where the tool needs none.
const NO_ARCHIVE: &str = "/bin/true";

/// Longest time that anything here takes: a restored server of a few gigabytes is ready within this.
pub const WITHIN: Duration = Duration::from_secs(1800);

/// A way to back up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// `understudy backup`.
    Understudy,
    /// pgBackRest.
    PgBackRest,
    /// `pg_basebackup`, which has no incremental backup before PostgreSQL 17 and no repository.
    BaseBackup,
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 3] = [Tool::Understudy, Tool::PgBackRest, Tool::BaseBackup];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Understudy => "understudy backup",
            Tool::PgBackRest => "pgBackRest",
            Tool::BaseBackup => "pg_basebackup",
        }
    }

    /// True if it reads less for a later backup than for the first one.
    pub fn is_incremental(self) -> bool {
        self != Tool::BaseBackup
    }
}

/// A tool and its repository.
#[derive(Debug)]
pub struct Repository {
    pub tool: Tool,
    home: PathBuf,
    node: PathBuf,
    /// The active's directory and port, and the directory of its socket.
    server: (String, u16, String),
}

impl Repository {
    /// Makes one in a new directory of `dir`. The server's log goes there from now on, if the tool has it sent by the server.
    pub async fn create(
        tool: Tool,
        cluster: &Cluster,
        active: &str,
        dir: &Path,
    ) -> Result<Repository> {
        let name = format!("{tool:?}").to_lowercase();
        let home = open_directory(dir, &name)?;
        open_directory(&home, "repository")?;
        let server = cluster.server(active)?;
        let client = connect(&server.config()).await?;
        let asked =
            "SELECT current_setting('data_directory'), current_setting('unix_socket_directories')";
        let row = client.query_one(asked, &[]).await?;
        let repository = Repository {
            tool,
            home,
            node: cluster.node(active)?.config.clone(),
            server: (row.get(0), server.port, row.get(1)),
        };
        if tool == Tool::PgBackRest {
            repository.configure()?;
            succeeded(repository.backrest(&["stanza-create"]))?;
        }
        repository.archive(cluster).await?;
        Ok(repository)
    }

    /// Where its objects are.
    pub fn path(&self) -> PathBuf {
        self.home.join("repository")
    }

    fn configure(&self) -> Result<()> {
        let (home, processors) = (self.home.display(), processors());
        let text = format!(
            "[global]\nrepo1-path={home}/repository\nlog-path={home}\nlock-path={home}\nspool-path={home}\nstart-fast=y\n\
             compress-type=zst\nprocess-max={processors}\nlog-level-console=warn\n[main]\npg1-path={}\npg1-port={}\n\
             pg1-socket-path={}\npg1-user=postgres\n",
            self.server.0, self.server.1, self.server.2
        );
        Ok(std::fs::write(self.home.join("pgbackrest.conf"), text)?)
    }

    fn backrest(&self, verb: &[&str]) -> Command {
        let mut command = postgres("pgbackrest");
        let config = self.home.join("pgbackrest.conf");
        command.arg(format!("--config={}", config.display()));
        command.arg("--stanza=main").args(verb);
        command
    }

    /// Has the server send its log to this repository, if that is how the tool gets it.
    pub async fn archive(&self, cluster: &Cluster) -> Result<()> {
        let command = match self.tool {
            Tool::PgBackRest => format!(
                "pgbackrest --config={}/pgbackrest.conf --stanza=main archive-push %p",
                self.home.display()
            ),
            Tool::Understudy | Tool::BaseBackup => NO_ARCHIVE.to_owned(),
        };
        archive_by(cluster, &self.node, &command).await
    }

    /// Has the server send its log nowhere.
    pub async fn archive_nothing(&self, cluster: &Cluster) -> Result<()> {
        archive_by(cluster, &self.node, NO_ARCHIVE).await
    }

    /// Backs up in whole, or what is new.
    pub fn back_up(&self, cluster: &Cluster, active: &str, is_full: bool) -> Result<()> {
        match self.tool {
            Tool::Understudy => {
                let mut create = self.understudy(cluster, &["backup", "create"]);
                create.arg("--config").arg(&self.node);
                create.args(is_full.then_some("--full"));
                succeeded(create)?;
            }
            Tool::PgBackRest => {
                let kind = if is_full {
                    "--type=full"
                } else {
                    "--type=incr"
                };
                succeeded(self.backrest(&[kind, "backup"]))?;
            }
            Tool::BaseBackup => base_backup(cluster, active, &self.path().join("base"))?,
        }
        Ok(())
    }

    /// A process that archives the log all the time, for the tool whose server does not.
    pub fn archiver(&self, cluster: &Cluster) -> Command {
        let mut archive = self.understudy(cluster, &["backup", "archive"]);
        archive.args(["--images-every", "1d", "--config"]);
        archive.arg(&self.node).stdin(Stdio::null());
        archive.stdout(Stdio::null()).stderr(Stdio::null());
        archive
    }

    fn understudy(&self, cluster: &Cluster, verb: &[&str]) -> Command {
        let mut command = Command::new(&cluster.options().understudy);
        command.args(verb).arg("--repository").arg(self.path());
        command
    }

    /// The end of the log that it has.
    pub async fn log_end(&self, cluster: &Cluster) -> Result<Option<String>> {
        let at = self.path().display().to_string();
        let listed = cluster
            .run(&["timeline", "--json", "--repository", &at])
            .await?;
        let timeline: serde_json::Value = serde_json::from_str(&listed)?;
        let last = timeline["spans"].as_array().and_then(|spans| spans.last());
        Ok(last.and_then(|span| span["to"].as_str().map(str::to_owned)))
    }

    /// Writes the newest state into a directory, which is returned, so that a server can start there.
    pub fn restore(&self, cluster: &Cluster) -> Result<PathBuf> {
        let to = self.home.join("restored");
        match self.tool {
            Tool::Understudy => {
                let mut restore = self.understudy(cluster, &["backup", "restore"]);
                restore.arg("--directory").arg(&to);
                succeeded(restore)?;
            }
            Tool::PgBackRest => {
                let place = format!("--pg1-path={}", to.display());
                succeeded(self.backrest(&[&place, "restore"]))?;
            }
            Tool::BaseBackup => {
                let mut copy = postgres("cp");
                copy.arg("-a").arg(self.path().join("base")).arg(&to);
                succeeded(copy)?;
            }
        }
        Ok(to)
    }
}

async fn archive_by(cluster: &Cluster, node: &Path, command: &str) -> Result<()> {
    let (config, parameter) = (
        node.display().to_string(),
        format!("archive_command={command}"),
    );
    let edit = ["edit-config", "--config", &config, "-p", &parameter];
    cluster.run(&edit).await.map(drop)
}

pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}
