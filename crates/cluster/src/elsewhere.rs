//! A copy of the database on a local disk, and a stock PostgreSQL that runs on it.
//!
//! Invariant: the server ends when its [`Elsewhere`] is dropped. Its directory stays.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;

use super::{Cluster, ports};
use crate::clients::schema::Server;
use crate::clients::session::connect;

/// How often it is looked whether recovery has ended.
const POLL: Duration = Duration::from_millis(100);

/// Returns a command of PostgreSQL or for it, by a user that may run a server.
pub fn postgres(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if !Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

/// Runs a command.
///
/// # Errors
/// It fails; the message has what it said.
pub fn succeeded(mut command: Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}: {said}{printed}");
    Ok(output)
}

/// Makes a directory in which that user may make others.
///
/// # Errors
/// It cannot be made.
pub fn open_directory(home: &Path, name: &str) -> Result<PathBuf> {
    let home = home.join(name);
    std::fs::create_dir(&home)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777))?;
    Ok(home)
}

/// Makes a base backup of a node in `data`.
///
/// # Errors
/// `pg_basebackup` fails.
pub fn base_backup(cluster: &Cluster, node: &str, data: &Path) -> Result<()> {
    let server = cluster.server(node)?;
    let mut backup = postgres(cluster.options().bin.join("pg_basebackup"));
    backup
        .args(["-h", "127.0.0.1", "-U", "postgres"])
        .args(["-X", "stream", "-c", "fast"])
        .args(["-p", &server.port.to_string(), "-D"])
        .arg(data)
        .envs(server.environment());
    succeeded(backup).map(drop)
}

/// A server on such a directory, which ends when this is dropped.
#[derive(Debug)]
pub struct Elsewhere {
    data: PathBuf,
    pg_ctl: PathBuf,
    /// Where it listens.
    pub server: Server,
}

impl Elsewhere {
    /// Starts it with the cluster's programs and password, and waits so long at most until it takes writes.
    ///
    /// # Errors
    /// It does not start, or its recovery does not end; the message has its log.
    pub async fn start(cluster: &Cluster, data: &Path, within: Duration) -> Result<Elsewhere> {
        let began = Instant::now();
        let home = data.parent().context("it is in a directory")?;
        let elsewhere = Elsewhere {
            data: data.to_owned(),
            pg_ctl: cluster.options().bin.join("pg_ctl"),
            server: Server {
                host: "127.0.0.1".to_owned(),
                port: ports::free()?,
                user: "postgres".to_owned(),
                database: "postgres".to_owned(),
                password: cluster.options().password.clone(),
            },
        };
        let options = format!(
            "-p {} -k {} -c listen_addresses=127.0.0.1 -c archive_command=/bin/true",
            elsewhere.server.port,
            home.display()
        );
        let log = data.with_extension("log");
        let mut start = postgres(&elsewhere.pg_ctl);
        let seconds = within.as_secs().to_string();
        start.args(["start", "-w", "-t", &seconds, "-o", &options, "-l"]);
        // pg_ctl's server keeps what it inherits, so its output must not be a pipe.
        start.arg(&log).arg("-D").arg(data);
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let started = start.status()?;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        ensure!(started.success(), "{}", said());
        while elsewhere.recovers().await != Some(false) {
            ensure!(began.elapsed() < within, "it recovers: {}", said());
            tokio::time::sleep(POLL).await;
        }
        Ok(elsewhere)
    }

    async fn recovers(&self) -> Option<bool> {
        let client = connect(&self.server.config()).await.ok()?;
        let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
        Some(row.ok()?.get(0))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut stop = postgres(&self.pg_ctl);
        stop.args(["stop", "-w", "-m", "immediate", "-D"])
            .arg(&self.data);
        // If it does not run, the test has failed already.
        let _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
