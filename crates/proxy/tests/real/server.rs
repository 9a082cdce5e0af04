//! A server of stock PostgreSQL in a temporary directory, stopped and removed when dropped.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, Error, NoTls};

/// The port in the name of each server's socket; they have directories of their own. One that listens has a port of its
/// own as well.
const PORT: u16 = 5432;

/// A port for a server or a proxy of a test, which no client's connection is given meanwhile.
pub fn free_port() -> u16 {
    supervise::ports::free().expect("a port is free")
}

/// What [`Server::cancel`] cancels.
pub const SLEEP: &str = "SELECT pg_sleep(60)";

/// PostgreSQL's programs; `PG_BIN` overrides.
pub fn bin() -> PathBuf {
    let bin = std::env::var_os("PG_BIN").map(PathBuf::from);
    bin.unwrap_or_else(|| "/usr/lib/postgresql/15/bin".into())
}

/// PostgreSQL refuses to run as root.
fn unprivileged() -> Option<User> {
    geteuid().is_root().then(|| {
        let user = User::from_name("postgres").expect("the user database can be read");
        user.expect("tests run as root need a user `postgres`")
    })
}

fn own(path: &Path) {
    if let Some(user) = unprivileged() {
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("root may");
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new(bin().join(program));
    if let Some(user) = unprivileged() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    // The home of whoever runs the tests may be closed to the user that they run PostgreSQL as.
    command.env("LC_ALL", "C").env("HOME", "/nonexistent");
    command.current_dir("/");
    command
}

/// Runs a program of PostgreSQL; its standard output.
fn run(program: &str, arguments: &[&str]) -> String {
    let result = command(program).args(arguments).output().expect(program);
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&result.stdout).trim().to_owned()
}

/// Runs a statement as a client of libpq does: what it answers, or what psql says was wrong.
pub fn psql(conninfo: &str, statement: &str) -> Result<String, String> {
    let mut command = command("psql");
    command.args(["-XAtw", "-d", conninfo, "-c", statement]);
    let result = command.output().expect("psql");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match result.status.success() {
        true => Ok(said(&result.stdout)),
        false => Err(said(&result.stderr)),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

pub struct Server {
    root: tempfile::TempDir,
    port: u16,
    /// It is reached over the network as well.
    listens: bool,
}

impl Server {
    pub fn init(configuration: &str) -> Server {
        let server = Server::empty();
        let data = server.data();
        run(
            "initdb",
            &["-D", text(&data), "-A", "trust", "-U", "postgres", "-N"],
        );
        server.configure(configuration);
        server
    }

    fn empty() -> Server {
        let root = tempfile::tempdir().expect("a directory");
        own(root.path());
        Server {
            root,
            port: PORT,
            listens: false,
        }
    }

    /// A plain copy of a stopped server.
    pub fn copy_of(other: &Server) -> Server {
        let server = Server::empty();
        let (from, to) = (other.data(), server.data());
        let copied = Command::new("cp")
            .args(["-a", text(&from), text(&to)])
            .status();
        assert!(copied.expect("cp").success());
        server
    }

    pub fn configure(&self, lines: &str) {
        let path = self.data().join("postgresql.conf");
        let old = fs::read_to_string(&path).expect("it is there");
        fs::write(&path, format!("{old}\n{lines}\n")).expect("it can be written");
    }

    /// Makes it a standby.
    pub fn follow(&self, primary: &Server) {
        let path = self.data().join("standby.signal");
        fs::write(&path, "").expect("it can be written");
        own(&path);
        let (host, port) = (primary.directory().display(), primary.port);
        self.configure(&format!(
            "primary_conninfo = 'host={host} port={port} user=postgres application_name=standby'"
        ));
    }

    pub fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub fn directory(&self) -> &Path {
        self.root.path()
    }

    /// Lets it listen at a port of 127.0.0.1, when it starts.
    pub fn listen(&mut self) {
        self.port = free_port();
        self.listens = true;
    }

    /// Encrypts connections that ask for it, with these, from its start or the next reload on.
    pub fn certify(&self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.data().join(name);
            fs::write(&path, text).expect("it can be written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
            own(&path);
        }
    }

    /// Who may log in how.
    pub fn admit(&self, lines: &str) {
        fs::write(self.data().join("pg_hba.conf"), lines).expect("it can be written");
    }

    /// As the proxy wants it.
    pub fn address(&self) -> String {
        match self.listens {
            true => format!("127.0.0.1:{}", self.port),
            false => format!("{}:{}", self.directory().display(), self.port),
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    pub fn start(&self) {
        let options = format!(
            "-c listen_addresses={} -c unix_socket_directories={} -p {}",
            if self.listens { "127.0.0.1" } else { "" },
            self.directory().display(),
            self.port
        );
        let (data, log) = (self.data(), self.root.path().join("log"));
        let started = command("pg_ctl")
            .args(["-D", text(&data), "-l", text(&log), "-o", &options])
            .args(["-w", "-t", "60", "start"])
            .stdout(Stdio::null())
            .status();
        assert!(
            started.expect("pg_ctl").success(),
            "it did not start: {}",
            self.log()
        );
    }

    pub fn stop(&self, mode: &str) {
        run(
            "pg_ctl",
            &["-D", text(&self.data()), "-m", mode, "-w", "stop"],
        );
    }

    pub fn promote(&self) {
        run(
            "pg_ctl",
            &["-D", text(&self.data()), "-w", "-t", "60", "promote"],
        );
    }

    /// Stops all its processes where they are, until the answer is dropped.
    pub fn freeze(&self) -> Frozen {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).expect("it runs");
        let postmaster = file.lines().next().expect("a number").to_owned();
        let children = Command::new("pgrep").args(["-P", &postmaster]).output();
        let children = children.expect("pgrep").stdout;
        let children = String::from_utf8(children).expect("numbers");
        let all = children.lines().chain([postmaster.as_str()]);
        let all: Vec<Pid> = all
            .map(|pid| Pid::from_raw(pid.parse().expect("a number")))
            .collect();
        // The postmaster first, so that no child is missed.
        for pid in all.iter().rev() {
            let _ = kill(*pid, Signal::SIGSTOP);
        }
        Frozen(all)
    }

    /// Cancels a client's [`SLEEP`] once it runs here: nothing else can be cancelled. What its client is told.
    pub async fn cancel(
        &self,
        sleep: impl Future<Output = Result<(), Error>>,
        token: &CancelToken,
    ) -> SqlState {
        let text = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query = '{SLEEP}'"
        );
        let cancel = async {
            for _ in 0..1000 {
                let asleep = tokio::task::block_in_place(|| self.sql(&[&text]));
                if asleep.trim() != "0" {
                    return token.cancel_query(NoTls).await.expect("it is asked");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("the statement does not begin");
        };
        let (slept, ()) = tokio::join!(sleep, cancel);
        let error = slept.expect_err("it is cancelled");
        error.code().cloned().expect("the server says so")
    }

    /// Runs statements, each on its own; what the last one answers.
    pub fn sql(&self, statements: &[&str]) -> String {
        let port = self.port.to_string();
        let mut arguments = vec![
            "-XqAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-p",
            &port,
        ];
        arguments.extend(["-h", text(self.directory()), "-d", "postgres"]);
        for statement in statements {
            arguments.extend(["-c", statement]);
        }
        run("psql", &arguments)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let data = self.data();
        if data.join("postmaster.pid").exists() {
            // It may be gone already.
            let _ = command("pg_ctl")
                .args(["-D", text(&data), "-m", "immediate", "stop"])
                .output();
        }
        if std::thread::panicking() {
            eprintln!("--- PostgreSQL's log\n{}", self.log());
        }
    }
}

/// Processes that stand still.
pub struct Frozen(Vec<Pid>);

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill(*pid, Signal::SIGCONT);
        }
    }
}
