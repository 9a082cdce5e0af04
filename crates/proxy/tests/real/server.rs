//! A server of stock PostgreSQL in a temporary directory, stopped and removed when dropped.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{User, geteuid};

/// The port in the name of each server's socket; they have directories of their own.
const PORT: &str = "5432";

fn bin() -> PathBuf {
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
    command.env("LC_ALL", "C").current_dir("/");
    command
}

/// Runs a program of PostgreSQL; its standard output.
fn run(program: &str, arguments: &[&str]) -> String {
    let result = command(program).args(arguments).output().expect(program);
    let errors = String::from_utf8_lossy(&result.stderr).into_owned();
    assert!(result.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&result.stdout).trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

pub struct Server {
    root: tempfile::TempDir,
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
        Server { root }
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
        let host = primary.directory().display();
        self.configure(&format!(
            "primary_conninfo = 'host={host} port={PORT} user=postgres application_name=standby'"
        ));
    }

    pub fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub fn directory(&self) -> &Path {
        self.root.path()
    }

    /// As the proxy wants it.
    pub fn address(&self) -> String {
        format!("{}:{PORT}", self.directory().display())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    pub fn start(&self) {
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -p {PORT}",
            self.directory().display()
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

    /// Runs statements, each on its own; what the last one answers.
    pub fn sql(&self, statements: &[&str]) -> String {
        let mut arguments = vec![
            "-XqAt",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-p",
            PORT,
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
