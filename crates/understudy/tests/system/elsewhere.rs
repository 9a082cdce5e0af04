//! A copy of the database on a local disk, and a stock PostgreSQL that runs on it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::ports;
use nix::unistd::Uid;

use crate::stage::Stage;
use crate::verbs::until;

/// A program of PostgreSQL or for it, by a user that may run a server.
pub fn postgres(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if !Uid::effective().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

pub fn succeeded(mut command: Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}: {said}{printed}");
    Ok(output)
}

/// A directory in which that user may make others.
pub fn open_directory(home: &Path, name: &str) -> Result<PathBuf> {
    let home = home.join(name);
    std::fs::create_dir(&home)?;
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777))?;
    Ok(home)
}

/// A base backup of a node into `data`.
pub fn base_backup(stage: &Stage, node: &str, data: &Path) -> Result<()> {
    let server = stage.cluster.server(node)?;
    let mut backup = postgres(stage.cluster.options().bin.join("pg_basebackup"));
    backup
        .args(["-h", "127.0.0.1", "-U", "postgres"])
        .args(["-X", "stream", "-c", "fast"])
        .args(["-p", &server.port.to_string(), "-D"])
        .arg(data)
        .envs(server.environment());
    succeeded(backup).map(drop)
}

/// A server on such a directory, which ends when this is dropped.
pub struct Elsewhere {
    data: PathBuf,
    pg_ctl: PathBuf,
    pub server: Server,
}

impl Elsewhere {
    /// Starts it, and waits until it takes writes.
    pub async fn start(stage: &Stage, data: &Path) -> Result<Elsewhere> {
        let home = data.parent().context("it is in a directory")?;
        let elsewhere = Elsewhere {
            data: data.to_owned(),
            pg_ctl: stage.cluster.options().bin.join("pg_ctl"),
            server: Server {
                host: "127.0.0.1".to_owned(),
                port: ports::free()?,
                user: "postgres".to_owned(),
                database: "postgres".to_owned(),
                password: stage.cluster.options().password.clone(),
            },
        };
        let options = format!(
            "-p {} -k {} -c listen_addresses=127.0.0.1 -c archive_command=/bin/true",
            elsewhere.server.port,
            home.display()
        );
        let log = data.with_extension("log");
        let mut start = postgres(&elsewhere.pg_ctl);
        start.args(["start", "-w", "-t", "60", "-o", &options, "-l"]);
        // pg_ctl's server keeps what it inherits, so its output must not be a pipe.
        start.arg(&log).arg("-D").arg(data);
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let started = start.status()?;
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        ensure!(started.success(), "{}", said());
        let look = async || {
            let client = connect(&elsewhere.server.config()).await?;
            let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await?;
            Ok(row.get::<_, bool>(0))
        };
        let recovered = until("it ends its recovery", look, |recovers| !recovers).await;
        recovered.with_context(said)?;
        Ok(elsewhere)
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
