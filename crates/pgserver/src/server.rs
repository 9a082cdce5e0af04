//! A running server: started, watched, signalled, stopped.
//!
//! ```text
//!   start ─▶ running ── waitid(WNOWAIT) ─▶ exited (told at once) ─▶ children killed ─▶ clean
//! ```
//!
//! The exit is told before the process is reaped and signals are sent under the same lock as the
//! reaping, so no signal ever reaches a reused pid.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::logfile::LogFile;
use super::supervisor::{Status, Supervisor};
use super::{ExitReport, Installation, PostgresError, Result, Session, StartOptions, StopMode};

/// How often a standby is told to look for the trigger of its promotion.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long one session is asked whether the promotion is done, before another one is opened: the server may have
/// ended it, or not answer on it.
const SESSION_LASTS: Duration = Duration::from_secs(5);

/// A server that was started. Dropping it asks for an immediate shutdown and does not wait.
#[derive(Debug)]
pub struct Postgres {
    pid: Pid,
    options: StartOptions,
    log: LogFile,
    /// Whether the pid is still the server's (running or not yet reaped).
    ours: Arc<Mutex<bool>>,
    status: watch::Receiver<Status>,
    started: SystemTime,
}

/// Makes a server read its configuration files again, as long as it runs.
#[derive(Debug, Clone)]
pub struct Reloader {
    pid: Pid,
    ours: Arc<Mutex<bool>>,
}

impl Reloader {
    /// See [`Postgres::reload`].
    pub fn reload(&self) {
        signal(self.pid, &self.ours, Signal::SIGHUP);
    }
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
        let supervisor = Supervisor {
            program,
            options: options.clone(),
        };
        std::thread::Builder::new()
            .name("postmaster".to_owned())
            .spawn(move || supervisor.run(started))
            .map_err(|e| PostgresError::system("cannot start a thread", e))?;
        let gone = |_| PostgresError::Answer("the postmaster's thread ended".to_owned());
        let running = starting.await.map_err(gone)??;
        Ok(Postgres {
            pid: running.pid,
            options,
            log: running.log,
            ours: running.ours,
            status: running.status,
            started: SystemTime::now(),
        })
    }

    /// When it was started, Unix milliseconds; for people only.
    pub fn started_unix_ms(&self) -> u64 {
        let since = self.started.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
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

    /// Writes the file that asks a standby to end recovery, as `pg_ctl promote` does. PostgreSQL looks for it
    /// when it is signalled: see [`promote`](Postgres::promote).
    ///
    /// `trigger` is where the data directory's file `promote` is on a disk that this process does not serve itself.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn place_trigger(&self, trigger: &Path) -> Result<()> {
        tokio::fs::write(trigger, b"")
            .await
            .map_err(|e| PostgresError::system(format!("cannot write {}", trigger.display()), e))
    }

    /// Signals a standby whose trigger was placed until it has left recovery. A single signal could be lost: the
    /// postmaster looks for the trigger once for each, and passes it on only in some of its states.
    ///
    /// # Errors
    /// As [`wait_ready`](Postgres::wait_ready) and [`Session::wait_promoted`].
    pub async fn promote(&self, within: Duration) -> Result<Session> {
        tokio::select! {
            promoted = self.promoted(within) => promoted,
            never = self.keep_asking() => match never {},
        }
    }

    /// Waits until it is out of recovery, over as many sessions as that takes.
    async fn promoted(&self, within: Duration) -> Result<Session> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let session = self.wait_ready(left).await?;
            let asking = session.wait_promoted(left);
            match tokio::time::timeout(SESSION_LASTS, asking).await {
                Ok(Ok(())) => return Ok(session),
                Ok(Err(PostgresError::Sql(error))) => {
                    tracing::debug!(%error, "asking anew whether the promotion is done");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => tracing::debug!("asking anew whether the promotion is done"),
            }
        }
    }

    async fn keep_asking(&self) -> Infallible {
        loop {
            self.signal(Signal::SIGUSR1);
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    /// Makes it read its configuration files again.
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// The same for who does not have the server.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            pid: self.pid,
            ours: Arc::clone(&self.ours),
        }
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
                "PostgreSQL does not stop; trying a harder way"
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
        // The postmaster first, under the lock; its children are the supervisor's business.
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

    fn signal(&self, wanted: Signal) {
        signal(self.pid, &self.ours, wanted);
    }
}

fn signal(pid: Pid, ours: &Mutex<bool>, signal: Signal) {
    let ours = ours.lock();
    if *ours {
        // The pid is running or a zombie that only the supervisor can reap, under this lock.
        let _ = kill(pid, signal);
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
