//! Processes that a node runs beside its agent: a proxy, an archiver.
//!
//! Processes of their own, because the agent must not suffer from them: it serves the mount that PostgreSQL works on, and its
//! death is a takeover.

use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::process::{Child, ChildStdin};

/// The wait before a process that has ended is started again. It doubles while it ends at once.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Runs a command with a node's configuration, and starts it again if it ends. Dropping the future asks it to end: its standard
/// input closes.
pub(super) async fn run(command: &[&str], file: PathBuf) -> Infallible {
    let named = command.join(" ");
    let mut wait = AGAIN_AFTER;
    loop {
        let began = Instant::now();
        match start(command, &file) {
            Ok(child) => match attend(child).await {
                Ok(status) => {
                    tracing::warn!(%status, "understudy {named} ended; starting it again")
                }
                Err(error) => tracing::warn!(%error, "understudy {named} cannot be waited for"),
            },
            Err(error) => tracing::warn!(%error, "understudy {named} cannot be started"),
        }
        wait = match began.elapsed() > LONGEST_WAIT {
            true => AGAIN_AFTER,
            false => (wait * 2).min(LONGEST_WAIT),
        };
        tokio::time::sleep(wait).await;
    }
}

/// Waits until a process has ended, and whatever process has taken its place: they share the standard input, by which they would
/// be asked to end.
async fn attend(mut child: Child) -> std::io::Result<ExitStatus> {
    // Left there it would be closed now.
    let input = child.stdin.take();
    let status = child.wait().await?;
    while input.as_ref().is_some_and(is_read) {
        tokio::time::sleep(AGAIN_AFTER).await;
    }
    Ok(status)
}

/// True if somebody has the other end of a pipe.
fn is_read(input: &ChildStdin) -> bool {
    let mut ends = [PollFd::new(input.as_fd(), PollFlags::empty())];
    let polled = poll(&mut ends, PollTimeout::ZERO);
    let is_broken = |end: &PollFd<'_>| {
        let events = end.revents();
        events.is_none_or(|events| events.contains(PollFlags::POLLERR))
    };
    polled.is_ok() && !ends.iter().any(is_broken)
}

fn start(command: &[&str], file: &Path) -> std::io::Result<Child> {
    tokio::process::Command::new(std::env::current_exe()?)
        .args(command)
        .args(["--until-stdin-closes", "--config"])
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Child {
        let mut command = tokio::process::Command::new("sh");
        let command = command.args(["-c", script]).stdin(Stdio::piped());
        command.spawn().expect("a shell")
    }

    async fn has_ended(script: &str) -> bool {
        let attending = attend(run(script));
        tokio::time::timeout(Duration::from_millis(300), attending)
            .await
            .is_ok()
    }

    /// Waiting for a child closes its standard input, unless that was taken: then a proxy ended as soon as it was started.
    // hazard: PROXY-33
    #[tokio::test]
    async fn a_process_is_there_until_it_and_its_successors_have_ended() {
        assert!(!has_ended("cat").await, "it serves");
        let successor = "exec 3<&0; cat <&3 & exit 0";
        assert!(!has_ended(successor).await, "another process serves");
        assert!(has_ended("exit 0").await);
    }
}
