//! A stock PostgreSQL cluster in a temporary directory, stopped and removed when dropped.

#![allow(dead_code, missing_docs, clippy::unwrap_used)] // each test uses its part

pub mod judge;

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::unistd::{User, geteuid};

/// PostgreSQL's programs; `PG_BIN` overrides.
pub fn bin() -> PathBuf {
    let bin = std::env::var_os("PG_BIN").map(PathBuf::from);
    let bin = bin.unwrap_or_else(|| "/usr/lib/postgresql/15/bin".into());
    assert!(
        bin.join("initdb").exists(),
        "these tests need PostgreSQL: install it (Debian: apt install postgresql-15) or set PG_BIN \
         to the directory of its programs; {} has no initdb",
        bin.display()
    );
    bin
}

/// PostgreSQL refuses to run as root.
fn unprivileged() -> Option<User> {
    geteuid().is_root().then(|| {
        let user = User::from_name("postgres").expect("the user database can be read");
        user.expect("tests run as root need a user `postgres`")
    })
}

pub fn own(path: &Path) {
    if let Some(user) = unprivileged() {
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    }
}

/// A temporary directory of PostgreSQL's user.
pub fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    own(directory.path());
    directory
}

fn command(program: &str) -> Command {
    let mut command = Command::new(bin().join(program));
    if let Some(user) = unprivileged() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.env("LC_ALL", "C").current_dir("/");
    command
}

fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a program of PostgreSQL; its standard output.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let result = output(command(program).args(arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        result.status.success(),
        "{program} {arguments:?}: {}",
        text(&result.stderr)
    );
    text(&result.stdout)
}

pub struct Cluster {
    root: tempfile::TempDir,
    port: u16,
}

impl Cluster {
    pub fn init(port: u16, segment_mib: u32, configuration: &str) -> Cluster {
        let cluster = Cluster {
            root: directory(),
            port,
        };
        let segments = format!("--wal-segsize={segment_mib}");
        let data = cluster.data();
        run(
            "initdb",
            &[
                "-D",
                text(&data),
                "-A",
                "trust",
                "-U",
                "postgres",
                "-N",
                &segments,
            ],
        );
        cluster.configure(configuration);
        cluster
    }

    /// A plain copy of a stopped cluster.
    pub fn copy_of(other: &Cluster, port: u16) -> Cluster {
        let cluster = Cluster {
            root: directory(),
            port,
        };
        let (from, to) = (other.data(), cluster.data());
        let copied = Command::new("cp")
            .args(["-a", text(&from), text(&to)])
            .status()
            .unwrap();
        assert!(copied.success());
        cluster
    }

    pub fn configure(&self, lines: &str) {
        let path = self.data().join("postgresql.conf");
        let old = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{old}\n{lines}\n")).unwrap();
    }

    pub fn signal(&self, name: &str) {
        let path = self.data().join(name);
        fs::write(&path, "").unwrap();
        own(&path);
    }

    pub fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    pub fn wal(&self) -> PathBuf {
        self.data().join("pg_wal")
    }

    pub fn socket(&self) -> PathBuf {
        self.root.path().join(format!(".s.PGSQL.{}", self.port))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    pub fn start(&self, settings: &[String]) {
        let quoted: Vec<String> = settings
            .iter()
            .map(|argument| format!("'{}'", argument.replace('\'', "'\\''")))
            .collect();
        let socket = text(self.root.path()).to_owned();
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={socket} -p {} {}",
            self.port,
            quoted.join(" ")
        );
        let (data, log) = (self.data(), self.root.path().join("log"));
        let arguments = [
            "-D",
            text(&data),
            "-l",
            text(&log),
            "-o",
            &options,
            "-w",
            "-t",
            "60",
            "start",
        ];
        let result = command("pg_ctl")
            .args(arguments)
            .stdout(std::process::Stdio::null())
            .status();
        assert!(
            result.unwrap().success(),
            "PostgreSQL did not start: {}",
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

    /// Runs statements, each on its own; the last one's result.
    pub fn sql(&self, statements: &[&str]) -> String {
        let port = self.port.to_string();
        let mut arguments = vec![
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            text(self.root.path()),
            "-p",
            &port,
            "-U",
            "postgres",
            "-d",
            "postgres",
        ];
        for statement in statements {
            arguments.extend(["-c", statement]);
        }
        run("psql", &arguments).trim().to_owned()
    }

    pub fn pgbench(&self, arguments: &[&str]) {
        let port = self.port.to_string();
        let mut all = vec!["-h", text(self.root.path()), "-p", &port, "-U", "postgres"];
        all.extend(arguments);
        all.push("postgres");
        run("pgbench", &all);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.data();
        if data.join("postmaster.pid").exists() {
            drop(output(command("pg_ctl").args([
                "-D",
                text(&data),
                "-m",
                "immediate",
                "stop",
            ])));
        }
        if std::thread::panicking() {
            eprintln!("--- PostgreSQL's log\n{}", self.log());
        }
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}
