//! A running server: started, watched, signalled, stopped.
//!
//! ```text
//!   start ─▶ running ── waitid(WNOWAIT) ─▶ exited (told at once) ─▶ children killed ─▶ clean
//! ```
//!
//! The exit is told before the process is reaped and signals are sent under the same lock as the
//! reaping, so no signal ever reaches a reused pid.

use std::fmt;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, Uid};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::logfile::{self, LogFile};
use super::{Installation, PostgresError, Result, RunAs, Session, leftovers, spawn};

/// What a server is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// The data directory (the mount).
    pub data: PathBuf,
    /// The directory of the Unix socket and the pid file, accessible to `run_as`.
    pub run: PathBuf,
    /// The server log.
    pub log: PathBuf,
    /// The port of socket and network.
    pub port: u16,
    /// PostgreSQL's `listen_addresses`; may be empty.
    pub listen_addresses: String,
    /// The role that [`Session`]s use.
    pub superuser: String,
    /// Parameters for the command line; the last of a name wins.
    pub settings: Vec<(String, String)>,
    /// Who it runs as, if not as this process.
    pub run_as: Option<RunAs>,
}

/// How a server is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for clients to leave.
    Smart,
    /// Ends sessions, then writes a shutdown checkpoint.
    Fast,
    /// At once, without a checkpoint.
    Immediate,
}

impl StopMode {
    fn signal(self) -> Signal {
        match self {
            StopMode::Smart => Signal::SIGTERM,
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        }
    }
}

/// How a server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitReport {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last lines of its log.
    pub log: Vec<String>,
}

impl ExitReport {
    /// Whether it stopped as asked.
    pub fn is_clean(&self) -> bool {
        self.code == Some(0)
    }

    /// Whether redo failed, so that the same attach would fail again.
    pub fn redo_failed(&self) -> bool {
        logfile::redo_failed(&self.log)
    }
}

impl fmt::Display for ExitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}")?,
            (None, Some(signal)) => write!(f, "signal {signal}")?,
            (None, None) => write!(f, "unknown status")?,
        }
        match logfile::reason(&self.log) {
            Some(reason) => write!(f, "; its log says: {reason}"),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Status {
    exit: Option<ExitReport>,
    clean: bool,
}

/// A server that was started. Dropping it asks for an immediate shutdown and does not wait.
#[derive(Debug)]
pub struct Postgres {
    pid: Pid,
    options: StartOptions,
    log: LogFile,
    /// Whether the pid is still the server's (running or not yet reaped).
    ours: Arc<Mutex<bool>>,
    status: watch::Receiver<Status>,
}

impl Postgres {
    /// Starts a server, after killing what a killed agent left behind. Returns when the process
    /// exists; it may still fail or take long: see [`wait_ready`](Postgres::wait_ready).
    ///
    /// # Errors
    /// [`PostgresError::PortInUse`], [`PostgresError::Root`], or what the system says.
    pub async fn start(installation: &Installation, options: StartOptions) -> Result<Postgres> {
        if options.run_as.is_none() && Uid::effective().is_root() {
            return Err(PostgresError::Root);
        }
        let program = installation.bin().join("postgres");
        let (started, starting) = oneshot::channel();
        let keeper = Keeper {
            program,
            options: options.clone(),
        };
        std::thread::Builder::new()
            .name("postmaster".to_owned())
            .spawn(move || keeper.run(started))
            .map_err(|e| PostgresError::system("cannot start a thread", e))?;
        let gone = |_| PostgresError::Answer("the postmaster's thread ended".to_owned());
        let running = starting.await.map_err(gone)??;
        Ok(Postgres {
            pid: running.pid,
            options,
            log: running.log,
            ours: running.ours,
            status: running.status,
        })
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// How it was started.
    pub fn options(&self) -> &StartOptions {
        &self.options
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        self.log.tail(lines)
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<ExitReport> {
        self.status.borrow().exit.clone()
    }

    /// Resolves as soon as the postmaster has ended, for whatever reason. Its children may live for
    /// moments more. Does not borrow: keep it in a task.
    pub fn exited(&self) -> impl Future<Output = ExitReport> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            let ended = status.wait_for(|s| s.exit.is_some()).await;
            let exit = ended.ok().and_then(|s| s.exit.clone());
            exit.unwrap_or(ExitReport {
                code: None,
                signal: None,
                log: Vec::new(),
            })
        }
    }

    /// Waits until the server accepts the agent's connection.
    ///
    /// # Errors
    /// [`PostgresError::Exited`] if it ends before; [`PostgresError::Timeout`] with what it last
    /// said.
    pub async fn wait_ready(&self, within: Duration) -> Result<Session> {
        let deadline = Instant::now() + within;
        let mut exited = std::pin::pin!(self.exited());
        loop {
            let said = tokio::select! {
                biased;
                report = &mut exited => return Err(self.explain(report)),
                tried = tokio::time::timeout_at(deadline, self.connect()) => match tried {
                    Ok(Ok(session)) => return Ok(session),
                    Ok(Err(error)) => describe(&error),
                    Err(_) => "it does not answer".to_owned(),
                },
            };
            if Instant::now() >= deadline {
                return Err(PostgresError::Timeout {
                    what: "accept connections",
                    after: within,
                    detail: format!(": {said}"),
                });
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A start that failed because of the port gets the same error as the check before it.
    fn explain(&self, report: ExitReport) -> PostgresError {
        let in_use = |l: &String| l.contains("could not bind") && l.contains("in use");
        if report.log.iter().any(in_use) {
            return PostgresError::PortInUse {
                address: self.options.listen_addresses.clone(),
                port: self.options.port,
            };
        }
        PostgresError::Exited(report)
    }

    /// Opens a session of the agent, over the private Unix socket.
    ///
    /// # Errors
    /// [`PostgresError::Sql`] while the server does not accept connections.
    pub async fn connect(&self) -> Result<Session> {
        Session::open(
            &self.options.run,
            self.options.port,
            &self.options.superuser,
        )
        .await
    }

    /// Asks a standby to end recovery, as `pg_ctl promote` does. Returns at once; see
    /// [`Session::wait_promoted`].
    ///
    /// # Errors
    /// If the trigger file cannot be written into the data directory.
    pub async fn promote(&self) -> Result<()> {
        let trigger = self.options.data.join("promote");
        tokio::fs::write(&trigger, b"")
            .await
            .map_err(|e| PostgresError::system(format!("cannot write {}", trigger.display()), e))?;
        self.signal(Signal::SIGUSR1);
        Ok(())
    }

    /// Makes it read its configuration files again.
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Stops the server and returns how it ended, when nothing of it is left. If it takes longer
    /// than `within`, the next harder way is used: fast, immediate, then SIGKILL to all of it.
    ///
    /// # Errors
    /// [`PostgresError::Timeout`] only if a process hangs in the kernel.
    pub async fn stop(&self, mode: StopMode, within: Duration) -> Result<ExitReport> {
        let mut mode = Some(mode);
        while let Some(now) = mode {
            self.signal(now.signal());
            if tokio::time::timeout(within, self.exited()).await.is_ok() {
                return self.cleaned().await;
            }
            tracing::warn!(
                pid = self.pid(),
                ?now,
                ?within,
                "PostgreSQL does not stop; trying harder"
            );
            mode = match now {
                StopMode::Smart => Some(StopMode::Fast),
                StopMode::Fast => Some(StopMode::Immediate),
                StopMode::Immediate => None,
            };
        }
        self.kill().await
    }

    /// Kills the server and all its children, at once.
    ///
    /// # Errors
    /// [`PostgresError::Timeout`] only if a process hangs in the kernel.
    pub async fn kill(&self) -> Result<ExitReport> {
        // The postmaster first, under the lock; its children are the keeper's business.
        self.signal(Signal::SIGKILL);
        self.cleaned().await
    }

    async fn cleaned(&self) -> Result<ExitReport> {
        let mut status = self.status.clone();
        let limit = Duration::from_secs(15);
        let waited = tokio::time::timeout(limit, status.wait_for(|s| s.clean)).await;
        match waited {
            Ok(Ok(status)) => status
                .exit
                .clone()
                .ok_or_else(|| PostgresError::Answer("no exit status".to_owned())),
            _ => Err(PostgresError::Timeout {
                what: "go away",
                after: limit,
                detail: ": a process of it hangs in the kernel".to_owned(),
            }),
        }
    }

    fn signal(&self, signal: Signal) {
        let ours = self.ours.lock();
        if *ours {
            // The pid is running or a zombie that only the keeper can reap, under this lock.
            let _ = kill(self.pid, signal);
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal(Signal::SIGQUIT);
    }
}

fn describe(error: &PostgresError) -> String {
    match error {
        PostgresError::Sql(e) => e
            .as_db_error()
            .map_or_else(|| e.to_string(), |d| d.message().to_owned()),
        other => other.to_string(),
    }
}

struct Running {
    pid: Pid,
    log: LogFile,
    ours: Arc<Mutex<bool>>,
    status: watch::Receiver<Status>,
}

/// The thread of one server, alive as long as the server is.
struct Keeper {
    program: PathBuf,
    options: StartOptions,
}

impl Keeper {
    fn run(self, started: oneshot::Sender<Result<Running>>) {
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
    let socket = format!(".s.PGSQL.{}.lock", options.port);
    for path in [
        options.data.join("postmaster.pid"),
        options.run.join(socket),
    ] {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                let what = format!("cannot remove the stale {}", path.display());
                return Err(PostgresError::system(what, e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Tries the addresses, so that the most common mistake gets a clear message.
fn check_port(listen_addresses: &str, port: u16) -> Result<()> {
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
