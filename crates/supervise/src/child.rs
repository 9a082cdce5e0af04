//! A running server and the thread that starts it, waits for its end and cleans up behind it.
//!
//! The exit is told before the process is reaped, and signals are sent under the same lock as the reaping, so no
//! signal ever reaches a reused pid.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::leftovers::{self, Server};
use super::logfile::LogFile;
use super::{ChildError, Result, RunAs, spawn};

/// Lines of its log that are kept when a server ends.
const LOG_LINES: usize = 30;
/// How long what is left of a killed server may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// Something to do right before a server is started, when nothing of an earlier one is left.
pub type Before = Box<dyn FnOnce() -> Result<()> + Send>;

/// What a server is started with.
pub struct Launch {
    /// Its program.
    pub program: PathBuf,
    /// What the program is told.
    pub arguments: Vec<String>,
    /// By what its processes are known.
    pub server: Server,
    /// A directory for the note of its pid.
    pub run: PathBuf,
    /// Its standard output and error.
    pub log: PathBuf,
    /// Who it runs as, if not as this process.
    pub run_as: Option<RunAs>,
    /// What it gets when this process dies.
    pub on_death: Signal,
    /// Variables of this process that begin so are not passed on.
    pub without: &'static str,
    /// See [`Before`].
    pub before: Before,
}

/// How a server ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last lines of its log.
    pub log: Vec<String>,
}

/// True if the server has ended, and whether anything of it is left.
#[derive(Debug, Clone, Default)]
struct Status {
    exit: Option<Exit>,
    clean: bool,
}

/// A server that was started. Dropping it sends the signal of [`Launch::on_death`] and does not wait.
#[derive(Debug)]
pub struct Child {
    signals: Signals,
    log: LogFile,
    on_death: Signal,
    status: watch::Receiver<Status>,
}

/// Sends signals to a server for as long as it runs. Clones are the same.
#[derive(Debug, Clone)]
pub struct Signals {
    pid: Pid,
    /// True if the pid is still the server's (running or not yet reaped).
    ours: Arc<Mutex<bool>>,
}

impl Signals {
    /// Sends one; nothing if the server has ended.
    pub fn send(&self, signal: Signal) {
        let ours = self.ours.lock();
        if *ours {
            // The pid is running or a zombie that only the supervisor can reap, under this lock.
            let _ = kill(self.pid, signal);
        }
    }
}

impl Child {
    /// Starts a server, after killing what a killed agent left behind. Returns when the process exists; it may
    /// still fail or take long.
    ///
    /// # Errors
    /// What the system says, or [`Launch::before`].
    pub async fn start(launch: Launch) -> Result<Child> {
        let (started, starting) = oneshot::channel();
        std::thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || supervise(launch, started))
            .map_err(|e| ChildError::system("cannot start a thread", e))?;
        let gone =
            |_| ChildError::system("cannot start the server", std::io::ErrorKind::BrokenPipe);
        starting.await.map_err(gone)?
    }

    /// Process id of the server.
    pub fn pid(&self) -> i32 {
        self.signals.pid.as_raw()
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        self.log.tail(lines)
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<Exit> {
        self.status.borrow().exit.clone()
    }

    /// Resolves as soon as the process has ended, for whatever reason. Its children may live for moments more. Does
    /// not borrow: keep it in a task.
    pub fn exited(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            let ended = status.wait_for(|s| s.exit.is_some()).await;
            ended.ok().and_then(|s| s.exit.clone()).unwrap_or_default()
        }
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&self, signal: Signal) {
        self.signals.send(signal);
    }

    /// The same for who does not have the server.
    pub fn signals(&self) -> Signals {
        self.signals.clone()
    }

    /// Kills the server and all its children, at once; returns when nothing of it is left.
    ///
    /// # Errors
    /// [`ChildError::Timeout`] only if a process hangs in the kernel.
    pub async fn kill(&self) -> Result<Exit> {
        // The first process under the lock; its children are the supervisor's business.
        self.signal(Signal::SIGKILL);
        self.cleaned().await
    }

    /// Waits until nothing is left of a server that was told to end.
    ///
    /// # Errors
    /// [`ChildError::Timeout`] only if a process hangs in the kernel.
    pub async fn cleaned(&self) -> Result<Exit> {
        let mut status = self.status.clone();
        let waited = tokio::time::timeout(GONE_WITHIN, status.wait_for(|s| s.clean)).await;
        match waited {
            Ok(Ok(status)) => Ok(status.exit.clone().unwrap_or_default()),
            _ => Err(ChildError::Timeout {
                what: "go away",
                after: GONE_WITHIN,
                detail: ": a process of it hangs in the kernel".to_owned(),
            }),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(self.on_death);
    }
}

/// The thread of one server, alive as long as the server is: the parent-death signal hangs on it.
fn supervise(launch: Launch, started: oneshot::Sender<Result<Child>>) {
    let (server, run, on_death) = (launch.server.clone(), launch.run.clone(), launch.on_death);
    let (process, log) = match spawn_server(launch) {
        Ok(spawned) => spawned,
        Err(error) => {
            // The caller may have given up; nothing was started.
            let _ = started.send(Err(error));
            return;
        }
    };
    let signals = Signals {
        pid: Pid::from_raw(process.id().cast_signed()),
        ours: Arc::new(Mutex::new(true)),
    };
    let (status, watched) = watch::channel(Status::default());
    let child = Child {
        signals: signals.clone(),
        log: log.clone(),
        on_death,
        status: watched,
    };
    // If nobody takes it, its drop ends it.
    drop(started.send(Ok(child)));
    await_end(process, &signals, &log, &status);
    match leftovers::kill_tree(None, &server) {
        Ok(_) => {
            leftovers::forget(&run);
            status.send_modify(|s| s.clean = true);
        }
        Err(error) => tracing::error!(%error, "processes of the server are left"),
    }
}

fn await_end(
    mut process: std::process::Child,
    signals: &Signals,
    log: &LogFile,
    status: &watch::Sender<Status>,
) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while let Err(nix::errno::Errno::EINTR) = waitid(Id::Pid(signals.pid), flags) {}
    let ended = {
        let mut ours = signals.ours.lock();
        *ours = false;
        process.wait()
    };
    let exit = report(ended.ok(), log);
    status.send_modify(|s| s.exit = Some(exit));
}

fn spawn_server(launch: Launch) -> Result<(std::process::Child, LogFile)> {
    let killed = leftovers::clean(&launch.run, &launch.server)?;
    if killed > 0 {
        tracing::warn!(
            killed,
            "killed processes of a server that an earlier agent left behind"
        );
    }
    (launch.before)()?;
    let (log, file) = LogFile::open(&launch.log)
        .map_err(|e| ChildError::system(format!("cannot open {}", launch.log.display()), e))?;
    let copy = file
        .try_clone()
        .map_err(|e| ChildError::system("cannot duplicate the log's descriptor", e))?;
    let mut command = spawn::command(&launch.program, launch.without);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(copy)
        .stderr(file);
    spawn::prepare(&mut command, launch.run_as, Some(launch.on_death));
    let process = command
        .spawn()
        .map_err(|e| ChildError::system(format!("cannot start {}", launch.program.display()), e))?;
    if let Err(error) = leftovers::note(&launch.run, Pid::from_raw(process.id().cast_signed())) {
        // It would be found by its working directory all the same.
        tracing::warn!(%error, "cannot note the server's pid");
    }
    Ok((process, log))
}

fn report(ended: Option<ExitStatus>, log: &LogFile) -> Exit {
    Exit {
        code: ended.and_then(|s| s.code()),
        signal: ended.and_then(|s| s.signal()),
        log: log.tail(LOG_LINES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(directory: &std::path::Path, script: &str) -> Launch {
        Launch {
            program: "/bin/sh".into(),
            arguments: vec![
                "-c".into(),
                script.into(),
                "x".into(),
                directory.display().to_string(),
            ],
            server: Server {
                program: "sh".to_owned(),
                data: directory.to_owned(),
            },
            run: directory.to_owned(),
            log: directory.join("log"),
            run_as: None,
            on_death: Signal::SIGKILL,
            without: "UNDERSTUDY_CHILD_TEST",
            before: Box::new(|| Ok(())),
        }
    }

    #[tokio::test]
    async fn how_it_ends_is_told_with_the_end_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let child = Child::start(launch(directory.path(), "echo one; echo two >&2; exit 7"))
            .await
            .unwrap();
        let exit = child.exited().await;
        assert_eq!((exit.code, exit.signal), (Some(7), None));
        assert_eq!(exit.log, ["one", "two"]);
    }

    #[tokio::test]
    async fn a_killed_server_takes_its_children_along() {
        let directory = tempfile::tempdir().unwrap();
        let script = "cd \"$1\" && sh -c 'sleep 60; :' & wait";
        let child = Child::start(launch(directory.path(), script))
            .await
            .unwrap();
        let exit = child.kill().await.unwrap();
        assert_eq!(exit.signal, Some(Signal::SIGKILL as i32));
        assert_eq!(
            leftovers::clean(directory.path(), &launch(directory.path(), "").server).unwrap(),
            0
        );
    }

    #[tokio::test]
    async fn failures_before_the_start_reach_the_caller() {
        let directory = tempfile::tempdir().unwrap();
        let mut launch = launch(directory.path(), "exit 0");
        launch.before = Box::new(|| Err(ChildError::Root));
        assert!(matches!(Child::start(launch).await, Err(ChildError::Root)));
    }
}
