//! A running server: started, watched, promoted, stopped.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mount::child_io;
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use supervise::{Child, ChildError, Launch, Signals};
use tokio::time::Instant;

use super::install::PG_VARIABLES;
use super::{
    ExitReport, Installation, PostgresError, Result, Session, StartOptions, StopMode, leftovers,
};

/// How often a standby is told to look for the trigger of its promotion.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long one session is asked whether the promotion is done, before another one is opened: the server may have
/// ended it, or not answer on it.
const SESSION_LASTS: Duration = Duration::from_secs(5);

/// A server that was started. Dropping it asks for an immediate shutdown and does not wait.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
    options: StartOptions,
    started: SystemTime,
}

/// Makes a server read its configuration files again, as long as it runs.
#[derive(Debug, Clone)]
pub struct Reloader(Signals);

impl Reloader {
    /// See [`Postgres::reload`].
    pub fn reload(&self) {
        self.0.send(Signal::SIGHUP);
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
        let before = options.clone();
        let launch = Launch {
            program: installation.bin().join("postgres"),
            arguments: arguments(&options),
            server: leftovers::server(&options.data),
            run: options.run.clone(),
            log: options.log.clone(),
            run_as: options.run_as.clone(),
            on_death: Signal::SIGQUIT,
            without: PG_VARIABLES,
            before: Box::new(move || {
                forget_lock_files(&before)?;
                supervise::check_port(&before.listen_addresses, before.port)
            }),
        };
        Ok(Postgres {
            child: Child::start(launch).await?,
            options,
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
        self.child.pid()
    }

    /// How it was started.
    pub fn options(&self) -> &StartOptions {
        &self.options
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        self.child.log_tail(lines)
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<ExitReport> {
        self.child.exit().map(ExitReport::from)
    }

    /// Resolves as soon as the postmaster has ended, for whatever reason. Its children may live for
    /// moments more. Does not borrow: keep it in a task.
    pub fn exited(&self) -> impl Future<Output = ExitReport> + Send + 'static {
        let exited = self.child.exited();
        async move { exited.await.into() }
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
    /// `open` is a session to ask on, if there is one: sessions outlive a promotion, and clients may have taken all
    /// connections that there are.
    ///
    /// # Errors
    /// As [`wait_ready`](Postgres::wait_ready) and [`Session::wait_promoted`].
    pub async fn promote(&self, within: Duration, open: Option<Session>) -> Result<Session> {
        tokio::select! {
            promoted = self.promoted(within, open) => promoted,
            never = self.keep_asking() => match never {},
        }
    }

    /// Waits until it is out of recovery, over as many sessions as that takes.
    async fn promoted(&self, within: Duration, mut open: Option<Session>) -> Result<Session> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let session = match open.take() {
                Some(session) => session,
                None => self.wait_ready(left).await?,
            };
            let asking = session.wait_promoted(left);
            match tokio::time::timeout(SESSION_LASTS, asking).await {
                Ok(Ok(())) => return Ok(session),
                Ok(Err(PostgresError::Sql(error))) => {
                    tracing::debug!(%error, "asking again whether the promotion is done");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => tracing::debug!("asking again whether the promotion is done"),
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
        Reloader(self.child.signals())
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
        Ok(self.child.kill().await?.into())
    }

    async fn cleaned(&self) -> Result<ExitReport> {
        Ok(self.child.cleaned().await?.into())
    }

    fn signal(&self, wanted: Signal) {
        self.child.signal(wanted);
    }
}

/// What the postmaster is told.
fn arguments(options: &StartOptions) -> Vec<String> {
    let data = ["-D".to_owned(), options.data.display().to_string()];
    let settings = settings(options)
        .into_iter()
        .flat_map(|s| ["-c".to_owned(), s]);
    data.into_iter().chain(settings).collect()
}

fn settings(options: &StartOptions) -> Vec<String> {
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

/// Removes PostgreSQL's own lock files. They protect from a second server on one directory, which
/// the search for leftovers has just ruled out; but they take a zombie for a running server, and
/// zombies stay where nobody reaps them, as in many containers.
fn forget_lock_files(options: &StartOptions) -> Result<(), ChildError> {
    let data = options.data.join("postmaster.pid");
    let socket = format!(".s.PGSQL.{}.lock", options.port);
    let socket = options.run.join(socket);
    child_io::remove([&data, &socket]).map_err(|source| ChildError::System {
        what: "cannot remove the stale lock files".to_owned(),
        source,
    })
}

fn describe(error: &PostgresError) -> String {
    match error {
        PostgresError::Sql(e) => e
            .as_db_error()
            .map_or_else(|| e.to_string(), |d| d.message().to_owned()),
        other => other.to_string(),
    }
}
