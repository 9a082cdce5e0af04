//! The thread that starts one server, waits for its end and cleans up behind it.
//!
//! The parent-death signal hangs on this thread, so it lives exactly as long as the server.

use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;

use mount::child_io;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::logfile::LogFile;
use super::{ExitReport, PostgresError, Result, StartOptions, leftovers, spawn};

/// Whether the server has ended, and whether anything of it is left.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    pub(super) exit: Option<ExitReport>,
    pub(super) clean: bool,
}

pub(super) struct Running {
    pub(super) pid: Pid,
    pub(super) log: LogFile,
    /// Whether the pid is still the server's (running or not yet reaped).
    pub(super) ours: Arc<Mutex<bool>>,
    pub(super) status: watch::Receiver<Status>,
}

/// The thread of one server, alive as long as the server is.
pub(super) struct Supervisor {
    pub(super) program: PathBuf,
    pub(super) options: StartOptions,
}

impl Supervisor {
    pub(super) fn run(self, started: oneshot::Sender<Result<Running>>) {
        let (child, log) = match self.spawn() {
            Ok(spawned) => spawned,
            Err(error) => {
                // The caller may have given up; nothing was started.
                let _ = started.send(Err(error));
                return;
            }
        };
        let pid = Pid::from_raw(child.id().cast_signed());
        let ours = Arc::new(Mutex::new(true));
        let (status, watched) = watch::channel(Status::default());
        let running = Running {
            pid,
            log: log.clone(),
            ours: Arc::clone(&ours),
            status: watched,
        };
        if started.send(Ok(running)).is_err() {
            // Nobody will ever stop it.
            let _ = kill(pid, Signal::SIGQUIT);
        }
        self.watch(child, pid, &log, &ours, &status);
    }

    fn watch(
        &self,
        mut child: Child,
        pid: Pid,
        log: &LogFile,
        ours: &Mutex<bool>,
        status: &watch::Sender<Status>,
    ) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(pid), flags) {}
        let ended = {
            let mut ours = ours.lock();
            *ours = false;
            child.wait()
        };
        let report = report(ended.ok(), log);
        status.send_modify(|s| s.exit = Some(report));
        match leftovers::kill_tree(None, &self.options.data) {
            Ok(_) => {
                leftovers::forget(&self.options.run);
                status.send_modify(|s| s.clean = true);
            }
            Err(error) => tracing::error!(%error, "processes of PostgreSQL are left"),
        }
    }

    fn spawn(&self) -> Result<(Child, LogFile)> {
        let options = &self.options;
        let killed = leftovers::clean(&options.run, &options.data)?;
        if killed > 0 {
            tracing::warn!(
                killed,
                "killed processes of a server that an earlier agent left behind"
            );
        }
        forget_lock_files(options)?;
        check_port(&options.listen_addresses, options.port)?;
        let (log, file) = LogFile::open(&options.log).map_err(|e| {
            PostgresError::system(format!("cannot open {}", options.log.display()), e)
        })?;
        let copy = file
            .try_clone()
            .map_err(|e| PostgresError::system("cannot duplicate the log's descriptor", e))?;
        let mut command = spawn::command(&self.program);
        command
            .arg("-D")
            .arg(&options.data)
            .args(
                self.settings()
                    .into_iter()
                    .flat_map(|s| ["-c".to_owned(), s]),
            )
            .stdin(Stdio::null())
            .stdout(copy)
            .stderr(file);
        spawn::prepare(&mut command, options.run_as.clone(), Some(Signal::SIGQUIT));
        let child = command.spawn().map_err(|e| {
            PostgresError::system(format!("cannot start {}", self.program.display()), e)
        })?;
        if let Err(error) = leftovers::note(&options.run, Pid::from_raw(child.id().cast_signed())) {
            // It would be found by its working directory all the same.
            tracing::warn!(%error, "cannot note the server's pid");
        }
        Ok((child, log))
    }

    fn settings(&self) -> Vec<String> {
        let options = &self.options;
        // Ours first where the caller may know better, last where it may not.
        let log = [
            ("logging_collector", "off".to_owned()),
            ("log_destination", "stderr".to_owned()),
            ("lc_messages", "C".to_owned()),
        ];
        let fixed = [
            ("port", options.port.to_string()),
            ("listen_addresses", options.listen_addresses.clone()),
            ("unix_socket_directories", options.run.display().to_string()),
        ];
        let given = options
            .settings
            .iter()
            .map(|(k, v)| (k.as_str(), v.clone()));
        let all = log.into_iter().chain(given).chain(fixed);
        all.map(|(name, value)| format!("{name}={value}")).collect()
    }
}

fn report(ended: Option<ExitStatus>, log: &LogFile) -> ExitReport {
    ExitReport {
        code: ended.and_then(|s| s.code()),
        signal: ended.and_then(|s| s.signal()),
        log: log.tail(30),
    }
}

/// Removes PostgreSQL's own lock files. They protect from a second server on one directory, which
/// the search for leftovers has just ruled out; but they take a zombie for a running server, and
/// zombies stay where nobody reaps them, as in many containers.
fn forget_lock_files(options: &StartOptions) -> Result<()> {
    let data = options.data.join("postmaster.pid");
    let socket = format!(".s.PGSQL.{}.lock", options.port);
    let socket = options.run.join(socket);
    child_io::remove([&data, &socket])
        .map_err(|e| PostgresError::system("cannot remove the stale lock files", e))
}

/// Tries the addresses, so that the most common mistake gets a clear message.
///
/// # Errors
/// [`PostgresError::PortInUse`].
pub fn check_port(listen_addresses: &str, port: u16) -> Result<()> {
    let hosts = listen_addresses.split(',').map(str::trim);
    for host in hosts.filter(|h| !h.is_empty()) {
        let host = if host == "*" { "0.0.0.0" } else { host };
        // An unknown name, or an address that is not this machine's, is PostgreSQL's to explain.
        let addresses = (host, port).to_socket_addrs().into_iter().flatten();
        for address in addresses {
            let tried = TcpListener::bind(address);
            if tried.is_err_and(|e| e.kind() == std::io::ErrorKind::AddrInUse) {
                return Err(PostgresError::PortInUse {
                    address: host.to_owned(),
                    port,
                });
            }
        }
    }
    Ok(())
}
