//! A MariaDB on the plain disk: what the benchmark compares with.
//!
//! Invariant: as [`Cluster`](crate::Cluster), nothing is left when it is dropped.

use std::net::Ipv4Addr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use nix::unistd::{Gid, Pid, Uid, User};

use crate::clients::mysql::Server;
use crate::ports;
use crate::process::Process;

/// A server of its own.
#[derive(Debug)]
pub struct Plain {
    dir: PathBuf,
    port: u16,
    parameters: Vec<(String, String)>,
    run_as: Option<(Uid, Gid)>,
    process: Option<Process>,
}

/// How long a start may take, recovery included.
const READY_WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Plain {
    /// Creates a database in `dir` (which must not exist) and starts it with these parameters beside those that a
    /// node gives.
    ///
    /// # Errors
    /// MariaDB is not installed, or does not start; the message says where its log is.
    pub async fn start(dir: &Path, parameters: Vec<(String, String)>) -> anyhow::Result<Plain> {
        std::fs::create_dir_all(dir.join("tmp"))
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let run_as = match Uid::effective().is_root() {
            true => User::from_name(super::user()?)?.map(|user| (user.uid, user.gid)),
            false => None,
        };
        let mut plain = Plain {
            dir: dir.to_owned(),
            port: ports::free()?,
            parameters,
            run_as,
            process: None,
        };
        if let Some((uid, gid)) = run_as {
            for dir in [dir.to_owned(), dir.join("tmp")] {
                chown(&dir, Some(uid.as_raw()), Some(gid.as_raw()))?;
            }
        }
        plain.install()?;
        plain.restart().await?;
        Ok(plain)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={}", self.dir.join("data").display()))
            .arg(format!("--tmpdir={}", self.dir.join("tmp").display()));
        command.current_dir(&self.dir).stdin(Stdio::null());
        if let Some((uid, gid)) = self.run_as {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
        command
    }

    fn install(&self) -> anyhow::Result<()> {
        let owner = User::from_uid(Uid::effective())?.context("we have no name")?;
        let output = self
            .command("mariadb-install-db")
            .args(["--auth-root-authentication-method=socket", "--skip-test-db"])
            .arg(format!("--auth-root-socket-user={}", owner.name))
            .output()
            .context("cannot run mariadb-install-db: apt-get install mariadb-server-core")?;
        ensure!(
            output.status.success(),
            "mariadb-install-db failed: {}",
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(())
    }

    /// Starts the server, which recovers, and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("/usr/sbin/mariadbd");
        let own = [
            ("socket", self.socket().display().to_string()),
            ("pid_file", self.dir.join("pid").display().to_string()),
            ("port", self.port.to_string()),
            ("bind_address", Ipv4Addr::LOCALHOST.to_string()),
            ("skip_name_resolve", "ON".to_owned()),
        ];
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let given = self
            .parameters
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()));
        for (name, value) in own.chain(given) {
            command.arg(format!("--{}={value}", name.replace('_', "-")));
        }
        let process = Process::spawn("mariadbd", command, &self.dir.join("server.log"))?;
        self.process = Some(process);
        self.wait_ready().await
    }

    /// A connection that is accepted: it listens only once it has recovered.
    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
            .await
            .is_err()
        {
            if let Some(process) = &mut self.process {
                process.check_running()?;
            }
            ensure!(Instant::now() < deadline, "MariaDB does not start");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Kills it as a machine that loses power; when it was dead.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self) -> anyhow::Result<SystemTime> {
        let mut process = self.process.take().context("it does not run")?;
        process.kill_all();
        Ok(SystemTime::now())
    }

    /// Process id of the server; `None` if it does not run.
    pub fn pid(&self) -> Option<Pid> {
        self.process.as_ref().map(Process::pid)
    }

    /// Where its administrator connects.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("server.sock")
    }

    /// Where clients connect.
    pub fn server(&self) -> Server {
        Server {
            address: Ipv4Addr::LOCALHOST,
            port: self.port,
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(Duration::from_secs(20));
        }
    }
}
