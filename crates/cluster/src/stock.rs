//! A stock PostgreSQL on the plain disk: what the benchmark compares with, and what the tests of
//! the load and of the verdict run against.
//!
//! Invariant: as [`super::Cluster`], nothing is left when it is dropped.

use std::net::Ipv4Addr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::unistd::{Gid, Pid, Uid, User};

use super::ports;
use super::process::{Kill, Process};
use crate::clients::schema::Server;
use crate::clients::session::connect;

/// A stock server.
#[derive(Debug)]
pub struct Stock {
    dir: PathBuf,
    bin: PathBuf,
    port: u16,
    parameters: Vec<(String, String)>,
    place: Place,
    run_as: Option<(Uid, Gid)>,
    process: Option<Process>,
}

/// Where a server runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// Where it listens.
    pub address: Ipv4Addr,
    /// What its own command is given to (`nsenter ...`); needs root if it is not empty.
    pub wrapper: Vec<String>,
}

impl Default for Place {
    fn default() -> Place {
        Place {
            address: Ipv4Addr::LOCALHOST,
            wrapper: Vec::new(),
        }
    }
}

impl Stock {
    /// Creates a database in `dir` (which must not exist) with PostgreSQL's own defaults and these
    /// parameters, and starts it. As root it runs as the user `postgres`.
    ///
    /// # Errors
    /// `initdb` or the server fails; the message says where its log is.
    pub async fn start(
        dir: &Path,
        bin: &Path,
        parameters: Vec<(String, String)>,
    ) -> anyhow::Result<Stock> {
        Stock::start_at(Place::default(), dir, bin, parameters).await
    }

    /// The same in some other place.
    ///
    /// # Errors
    /// As [`Stock::start`].
    pub async fn start_at(
        place: Place,
        dir: &Path,
        bin: &Path,
        parameters: Vec<(String, String)>,
    ) -> anyhow::Result<Stock> {
        let run_as = unprivileged()?;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut stock = Stock {
            dir: dir.to_owned(),
            bin: bin.to_owned(),
            port: ports::free()?,
            parameters,
            place,
            run_as,
            process: None,
        };
        if let Some((uid, gid)) = run_as {
            chown(dir, Some(uid.as_raw()), Some(gid.as_raw())).context("cannot give it away")?;
        }
        stock.initdb()?;
        stock.restart().await?;
        Ok(stock)
    }

    fn command(&self, program: &str) -> Command {
        let path = self.bin.join(program);
        let mut command = match self.place.wrapper.split_first() {
            Some((first, arguments)) => {
                let mut command = Command::new(first);
                command.args(arguments);
                command.args(["setpriv", "--reuid=postgres", "--regid=postgres"]);
                command.args(["--init-groups", "--"]).arg(path);
                command
            }
            None => Command::new(path),
        };
        command.current_dir(&self.dir);
        if let Some((uid, gid)) = self.run_as
            && self.place.wrapper.is_empty()
        {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }

    fn initdb(&self) -> anyhow::Result<()> {
        let output = self
            .command("initdb")
            .args([
                "--auth=trust",
                "--username=postgres",
                "--no-sync",
                "--pgdata",
            ])
            .arg(self.data())
            .stdin(Stdio::null())
            .output()
            .context("cannot run initdb")?;
        ensure!(
            output.status.success(),
            "initdb failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// Starts the server again and waits until it accepts writes.
    ///
    /// # Errors
    /// It does not.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        let own = [
            ("port", self.port.to_string()),
            ("listen_addresses", self.place.address.to_string()),
            ("unix_socket_directories", self.dir.display().to_string()),
        ];
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let given = self
            .parameters
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()));
        for (name, value) in own.chain(given) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let process = Process::spawn("postgres", command, &self.dir.join("server.log"))?;
        self.process = Some(process);
        self.wait_ready().await
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let config = self.server().config();
        while connect(&config).await.is_err() {
            if let Some(process) = &mut self.process {
                process.check_running()?;
            }
            ensure!(Instant::now() < deadline, "PostgreSQL does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Kills it and starts it with a database that is as new as after its creation.
    ///
    /// # Errors
    /// As [`Stock::start`].
    pub async fn renew(&mut self) -> anyhow::Result<()> {
        self.kill();
        let data = self.data();
        std::fs::remove_dir_all(&data)
            .with_context(|| format!("cannot remove {}", data.display()))?;
        self.initdb()?;
        self.restart().await
    }

    /// Its postmaster.
    pub fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(Process::pid)
    }

    /// Kills all of it.
    pub fn kill(&mut self) -> Option<Kill> {
        self.process.take().map(|mut process| process.kill_all())
    }

    /// Where it listens.
    pub fn server(&self) -> Server {
        Server {
            host: self.place.address.to_string(),
            port: self.port,
            user: "postgres".into(),
            database: "postgres".into(),
            password: None,
        }
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(Duration::from_secs(10));
        }
    }
}

/// Who PostgreSQL runs as: it refuses to run as root.
///
/// # Errors
/// There is no such user.
pub fn unprivileged() -> anyhow::Result<Option<(Uid, Gid)>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    let user = User::from_name("postgres")
        .context("cannot look up the user postgres")?
        .context("there is no user postgres to run PostgreSQL as")?;
    Ok(Some((user.uid, user.gid)))
}
