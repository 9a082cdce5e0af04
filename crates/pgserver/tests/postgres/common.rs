//! A real cluster in a temporary directory, made once and copied for each test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use pgserver::{InitdbOptions, Installation, Postgres, RunAs, Session, StartOptions};

pub const READY: Duration = Duration::from_secs(60);

/// The newest PostgreSQL of this machine, or the one in `UNDERSTUDY_POSTGRES_BIN`.
pub fn installation() -> Installation {
    let chosen = std::env::var_os("UNDERSTUDY_POSTGRES_BIN").map(PathBuf::from);
    let newest = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
        let mut bins: Vec<PathBuf> = versions.map(|v| v.unwrap().path().join("bin")).collect();
        bins.sort();
        bins.pop().expect("PostgreSQL is installed")
    };
    Installation::find(&chosen.unwrap_or_else(newest)).unwrap()
}

pub fn run_as() -> Option<RunAs> {
    RunAs::resolve("postgres").unwrap()
}

pub fn owned_directory(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    if let Some(user) = run_as() {
        nix::unistd::chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
}

/// An initialised data directory that no test changes; kept among the build's files, per version.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let version = installation().version().to_string();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-{version}"));
        if !kept.is_dir() {
            make_template(&kept);
        }
        kept
    })
}

fn make_template(kept: &Path) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = dir.path().join("template");
    owned_directory(&data);
    let options = InitdbOptions {
        data: data.clone(),
        superuser: "postgres".into(),
        arguments: vec!["--locale=C".into(), "--wal-segsize=1".into()],
        password: None,
        run_as: run_as(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    std::thread::spawn(move || runtime.block_on(installation().initdb(&options)).unwrap())
        .join()
        .unwrap();
    // In one step, so that no other run sees half of it; whoever is first wins.
    let half = kept.with_extension(std::process::id().to_string());
    copy(&data, &half);
    if std::fs::rename(&half, kept).is_err() {
        std::fs::remove_dir_all(&half).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(copied.success());
}

/// One test's cluster. Its processes are killed when the test ends.
pub struct Cluster {
    pub dir: tempfile::TempDir,
    pub options: StartOptions,
}

impl Cluster {
    pub fn new() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().to_owned();
        owned_directory(&path.join("run"));
        copy(template(), &path.join("pgdata"));
        let settings = [
            ("fsync", "off"),
            ("shared_buffers", "8MB"),
            ("restart_after_crash", "off"),
        ];
        let options = StartOptions {
            data: path.join("pgdata"),
            run: path.join("run"),
            log: path.join("postgresql.log"),
            // Without a network address the port is but part of the socket's name.
            port: 5432,
            listen_addresses: String::new(),
            superuser: "postgres".into(),
            settings: settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            run_as: run_as(),
        };
        Cluster { dir, options }
    }

    pub async fn start(&self) -> Postgres {
        Postgres::start(&installation(), self.options.clone())
            .await
            .unwrap()
    }

    pub async fn ready(&self) -> (Postgres, Session) {
        let postgres = self.start().await;
        let session = postgres.wait_ready(READY).await.unwrap();
        (postgres, session)
    }

    /// Processes of PostgreSQL that work in this cluster's data directory.
    pub fn processes(&self) -> Vec<i32> {
        let data = self.options.data.canonicalize().unwrap();
        let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| {
            let pid: i32 = e.ok()?.file_name().to_str()?.parse().ok()?;
            let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            (cwd == data).then_some(pid)
        });
        pids.collect()
    }

    /// Waits until nothing of the server is left.
    pub async fn gone(&self) {
        for _ in 0..2_000 {
            if self.processes().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("left: {:?}", self.processes());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = pgserver::leftovers::clean(&self.options.run, &self.options.data);
    }
}
