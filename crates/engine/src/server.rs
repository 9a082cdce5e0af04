//! One hosted server: started by its recipe, found ready, stopped.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use supervise::leftovers::Server;
use supervise::{Child, Exit, Launch, RunAs, check_port, spawn};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use crate::config::Paths;
use crate::error::{EngineError, Result};
use crate::recipe::{Invocation, Ready, Recipe};
use crate::version::Version;

/// Between two looks whether a server is ready.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long one look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Variables of the agent that would change what a server does.
const HIDDEN: &str = "MYSQL";
/// Lines of a failed program's output that are passed on.
const OUTPUT_LINES: usize = 20;

/// A server that was started. Dropping it kills it.
pub(crate) struct Hosted {
    child: Child,
    recipe: Recipe,
    log: String,
}

/// By what processes of this node's server are known.
pub(crate) fn identity(recipe: &Recipe, paths: &Paths) -> Server {
    let program = recipe.server.program.file_name().unwrap_or_default();
    Server {
        program: program.to_string_lossy().into_owned(),
        data: paths.mount(),
    }
}

impl Hosted {
    /// Starts the server; it may still fail or take long.
    ///
    /// # Errors
    /// What the system says; a port that is in use.
    pub(crate) async fn start(
        recipe: &Recipe,
        paths: &Paths,
        run_as: Option<RunAs>,
    ) -> Result<Hosted> {
        empty_tmp(&paths.tmp(), run_as.as_ref())?;
        for (address, port) in &recipe.listens {
            check_port(address, *port)?;
        }
        let launch = Launch {
            program: recipe.server.program.clone(),
            arguments: recipe.server.arguments.clone(),
            server: identity(recipe, paths),
            run: paths.run(),
            log: paths.log(),
            run_as,
            // Nothing is lost by it that a lost machine would not lose, and it cannot be ignored.
            on_death: Signal::SIGKILL,
            without: HIDDEN,
            before: Box::new(|| Ok(())),
        };
        Ok(Hosted {
            child: Child::start(launch).await?,
            recipe: recipe.clone(),
            log: paths.log().display().to_string(),
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Resolves when it has ended.
    pub(crate) fn exited(&self) -> impl Future<Output = String> + Send + 'static {
        let exited = self.child.exited();
        async move { describe(&exited.await) }
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// `Exited` if it ends before, `NotReady` if it takes too long.
    pub(crate) async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + self.recipe.ready_within;
        let exited = self.exited();
        tokio::pin!(exited);
        loop {
            let look = tokio::time::timeout(LOOK_WITHIN, is_ready(&self.recipe.ready));
            tokio::select! {
                biased;
                report = &mut exited => return Err(EngineError::Exited { name: self.recipe.name.clone(), report }),
                ready = look => if ready.unwrap_or(false) {
                    return Ok(());
                },
            }
            if Instant::now() >= deadline {
                return Err(EngineError::NotReady {
                    name: self.recipe.name.clone(),
                    after: self.recipe.ready_within,
                    log: self.log.clone(),
                });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Stops it cleanly, or kills it if that takes too long; whether it was clean.
    ///
    /// # Errors
    /// Only if a process hangs in the kernel.
    pub(crate) async fn stop(&self) -> Result<bool> {
        let within = self.recipe.stop_within;
        self.child.signal(self.recipe.stop_signal);
        if tokio::time::timeout(within, self.child.exited())
            .await
            .is_err()
        {
            tracing::warn!(
                server = %self.recipe.name,
                signal = %self.recipe.stop_signal,
                ?within,
                "the server does not stop; it is killed, and the next start recovers"
            );
            self.child.kill().await?;
            return Ok(false);
        }
        let exit = self.child.cleaned().await?;
        if exit.code != Some(0) {
            tracing::warn!(report = %describe(&exit), "the server did not stop cleanly; the next start recovers");
        }
        Ok(exit.code == Some(0))
    }

    /// Kills it at once.
    ///
    /// # Errors
    /// Only if a process hangs in the kernel.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.child.kill().await?;
        Ok(())
    }
}

/// A server's temporary files are of one run.
pub(crate) fn empty_tmp(tmp: &Path, run_as: Option<&RunAs>) -> Result<()> {
    let failed = |e| EngineError::system(format!("cannot empty {}", tmp.display()), e);
    match std::fs::remove_dir_all(tmp) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    std::fs::create_dir(tmp).map_err(failed)?;
    if let Some(user) = run_as {
        let (uid, gid) = user.owner();
        nix::unistd::chown(tmp, Some(uid), Some(gid)).map_err(|e| failed(e.into()))?;
    }
    Ok(())
}

async fn is_ready(ready: &Ready) -> bool {
    match ready {
        Ready::MySqlGreeting(socket) => greets(socket).await.unwrap_or(false),
        Ready::Connects(address) if address.starts_with('/') => {
            UnixStream::connect(address).await.is_ok()
        }
        Ready::Connects(address) => TcpStream::connect(address).await.is_ok(),
        Ready::Program(invocation) => succeeds(invocation).await.unwrap_or(false),
    }
}

/// True if the server says the first word of MySQL's protocol: a packet of protocol version 10. While it starts it
/// does not listen, and while it stops it sends an error packet.
async fn greets(socket: &Path) -> std::io::Result<bool> {
    const PROTOCOL_VERSION: u8 = 10;
    let mut stream = UnixStream::connect(socket).await?;
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    Ok(head[4] == PROTOCOL_VERSION)
}

async fn succeeds(invocation: &Invocation) -> std::io::Result<bool> {
    let mut command = tokio::process::Command::from(spawn::command(&invocation.program, HIDDEN));
    let status = command
        .args(&invocation.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    Ok(status.await?.success())
}

/// Runs a program to its end as the server's user.
///
/// # Errors
/// `Program` with the end of what it printed, if it fails.
pub(crate) async fn run(invocation: &Invocation, run_as: Option<RunAs>) -> Result<()> {
    let program = invocation.program.display().to_string();
    let mut command = spawn::command(&invocation.program, HIDDEN);
    command.args(&invocation.arguments).stdin(Stdio::null());
    spawn::prepare(&mut command, run_as, None);
    let output = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output()
        .await;
    let output = output.map_err(|e| EngineError::system(format!("cannot run {program}"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(OUTPUT_LINES)..].join("\n");
    Err(EngineError::Program {
        program,
        output: format!("{}\n{last}", output.status),
    })
}

/// What the installed server says its version is; `None` if the recipe does not ask for it.
///
/// # Errors
/// `Machine` if it says none.
pub(crate) async fn version(recipe: &Recipe) -> Result<Option<Version>> {
    let Some(invocation) = &recipe.version else {
        return Ok(None);
    };
    let program = invocation.program.display().to_string();
    let mut command = tokio::process::Command::from(spawn::command(&invocation.program, HIDDEN));
    command.args(&invocation.arguments).stdin(Stdio::null());
    let output = command.kill_on_drop(true).output().await;
    let output = output.map_err(|e| EngineError::system(format!("cannot run {program}"), e))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = Version::find(&said).filter(|_| output.status.success());
    let silent = || {
        let arguments = invocation.arguments.join(" ");
        EngineError::Machine(format!(
            "\"{program} {arguments}\" prints no version, so whether it can open the database is not known \
             ({}): {}",
            output.status,
            said.trim()
        ))
    };
    found.map(Some).ok_or_else(silent)
}

fn describe(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".to_owned(),
    };
    let says = |line: &&String| line.contains("[ERROR]") || line.to_lowercase().contains("error");
    match exit.log.iter().rev().find(says) {
        Some(line) => format!("{how}; its log says: {line}"),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_last_error_of_the_log() {
        let log = ["[Note] x", "[ERROR] InnoDB: no space", "[Note] end"].map(str::to_owned);
        let exit = Exit {
            code: Some(1),
            signal: None,
            log: log.to_vec(),
        };
        assert_eq!(
            describe(&exit),
            "exit code 1; its log says: [ERROR] InnoDB: no space"
        );
    }

    #[tokio::test]
    async fn a_greeting_is_told_from_a_refusal() {
        use tokio::io::AsyncWriteExt;
        let directory = tempfile::tempdir().unwrap();
        for (first, ready) in [(10u8, true), (0xff, false)] {
            let path = directory.path().join(format!("{first}"));
            let listener = tokio::net::UnixListener::bind(&path).unwrap();
            let answering = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&[1, 0, 0, 0, first]).await.unwrap();
            });
            assert_eq!(is_ready(&Ready::MySqlGreeting(path)).await, ready);
            answering.await.unwrap();
        }
        assert!(!is_ready(&Ready::Connects("/nowhere".to_owned())).await);
    }

    #[tokio::test]
    async fn a_program_that_fails_tells_what_it_printed() {
        let script = |text: &str| Invocation {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), text.into()],
        };
        run(&script("true"), None).await.unwrap();
        let error = run(&script("echo why; exit 3"), None)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }
}
