//! A child process and everything below it: started in a group of its own, killed as a machine dies.
//!
//! Invariant: signals go to process ids that were found below a child of ours, never to names. A
//! dropped [`Process`] is dead, with all its descendants.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpStream;

use super::remnants::Remnants;

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// A kill that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// Just before the first signal.
    pub at: SystemTime,
    /// How many processes were killed.
    pub processes: usize,
}

impl Process {
    /// Starts `command` in its own process group; what it prints is appended to `log`. Its standard
    /// input stays open as long as this process lives, and says nothing.
    ///
    /// # Errors
    /// The program or the log file cannot be opened.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> anyhow::Result<Process> {
        let output = open_log(log)?;
        let errors = output.try_clone().context("cannot share a log file")?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        tracing::debug!(name, pid = child.id(), "started");
        Ok(Process {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Process id, of a child of this process.
    pub fn pid(&self) -> Pid {
        // Linux process ids are below 2^22.
        Pid::from_raw(self.child.id() as i32)
    }

    /// Where it logs.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits until it accepts connections at an address.
    ///
    /// # Errors
    /// It has ended, or does not in time.
    pub async fn wait_listens(
        &mut self,
        address: (&str, u16),
        timeout: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        while let Err(error) = TcpStream::connect(address).await {
            self.check_running()?;
            let in_time = Instant::now() < deadline;
            anyhow::ensure!(in_time, "the {} does not listen: {error}", self.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Fails, with the end of the log, if the process has ended.
    ///
    /// # Errors
    /// It has.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => anyhow::bail!(
                "{} ended ({status}). Its log, {}, ends with:\n{}",
                self.name,
                self.log.display(),
                last_lines(&self.log, 12)
            ),
        }
    }

    /// Stops all of it (SIGSTOP), as a machine that hangs.
    pub fn pause(&self) -> usize {
        freeze(self.pid()).len()
    }

    /// Lets all of it go on.
    pub fn resume(&self) {
        resume(&family(self.pid()));
    }

    /// Kills all of it at once, as a machine that loses power. Everything is first stopped, so that
    /// nothing can fork away or react to the death of another part.
    pub fn kill_all(&mut self) -> Kill {
        if self.ended().is_some() {
            let at = SystemTime::now();
            return Kill { at, processes: 0 };
        }
        let pids = freeze(self.pid());
        // Not before: what begins while processes are looked for may still be answered by them.
        let at = SystemTime::now();
        let remnants = Remnants::of(&pids);
        for &pid in &pids {
            send(pid, Signal::SIGKILL);
        }
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, name = self.name, "nothing to wait for");
        }
        wait_gone(&pids, Duration::from_secs(10));
        remnants.remove();
        tracing::debug!(name = self.name, processes = pids.len(), "killed");
        Kill {
            at,
            processes: pids.len(),
        }
    }

    /// Asks it to end (SIGTERM) and waits. Returns whether it did; if not, it still runs.
    pub fn terminate(&mut self, timeout: Duration) -> bool {
        if self.ended().is_some() {
            return true;
        }
        send(self.pid(), Signal::SIGTERM);
        let deadline = Instant::now() + timeout;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

/// The last lines of a text file, or why there are none.
pub fn last_lines(path: &Path, count: usize) -> String {
    let text = match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("({error})"),
    };
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines[from..].join("\n")
}

/// Stops these processes (SIGSTOP) and nothing below them.
pub fn pause(pids: &[Pid]) {
    pids.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
}

/// Lets these processes go on.
pub fn resume(pids: &[Pid]) {
    pids.iter().for_each(|pid| send(*pid, Signal::SIGCONT));
}

/// Kills these processes and nothing below them.
pub fn kill_each(pids: &[Pid]) {
    pids.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
}

fn send(pid: Pid, signal: Signal) {
    if let Err(error) = kill(pid, signal) {
        tracing::trace!(%pid, %error, "gone before the signal");
    }
}

/// Stops a process and all its descendants; looks again until no new one appears.
fn freeze(root: Pid) -> Vec<Pid> {
    let mut stopped: Vec<Pid> = Vec::new();
    loop {
        let fresh: Vec<Pid> = family(root)
            .into_iter()
            .filter(|pid| !stopped.contains(pid))
            .collect();
        if fresh.is_empty() {
            return stopped;
        }
        for &pid in &fresh {
            send(pid, Signal::SIGSTOP);
        }
        stopped.extend(fresh);
    }
}

/// Lets a process and all its descendants run on one processor only, and what they start from now on.
///
/// # Errors
/// There is no such processor, or the process is somebody else's.
pub fn pin(root: Pid, processor: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor).context("no such processor")?;
    allow(root, &set)
}

/// Lets a process and all its descendants run on every processor again.
///
/// # Errors
/// The process is somebody else's.
pub fn unpin(root: Pid) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for processor in 0..CpuSet::count() {
        set.set(processor)?;
    }
    allow(root, &set)
}

fn allow(root: Pid, set: &CpuSet) -> anyhow::Result<()> {
    for pid in family(root) {
        // A process or thread that has just ended needs no processor.
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        let threads = threads.flatten().map(|entry| entry.file_name());
        for thread in threads.filter_map(|name| name.to_str()?.parse().ok()) {
            match sched_setaffinity(Pid::from_raw(thread), set) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).context("cannot choose the processor"),
            }
        }
    }
    Ok(())
}

/// A process and all its descendants, parents first.
pub fn family(root: Pid) -> Vec<Pid> {
    let parents = parents();
    let mut family = vec![root];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        family.extend(
            parents
                .iter()
                .filter(|(_, of)| **of == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    family
}

/// The parent of every process of the machine.
fn parents() -> HashMap<Pid, Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((Pid::from_raw(pid), parent_and_state(pid)?.0)))
        .collect()
}

/// Parent and state letter of a process, from `/proc/<pid>/stat`.
fn parent_and_state(pid: i32) -> Option<(Pid, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, also parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((Pid::from_raw(parent), state))
}

/// Waits until the processes are gone (a zombie counts as gone).
fn wait_gone(pids: &[Pid], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    let alive = |pid: &&Pid| !matches!(parent_and_state(pid.as_raw()), None | Some((_, 'Z' | 'X')));
    while let Some(pid) = pids.iter().find(alive) {
        if Instant::now() > deadline {
            tracing::warn!(%pid, "a killed process is still there");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let process = Process::spawn("shell", command, &dir.path().join("log")).unwrap();
        (dir, process)
    }

    fn wait_for_family(process: &Process, size: usize) -> Vec<Pid> {
        loop {
            let family = family(process.pid());
            if family.len() >= size {
                return family;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_kill_takes_children_in_sessions_of_their_own_too() {
        let (_dir, mut process) = shell("setsid sleep 1000 & (sleep 1000 & wait) & wait");
        let family = wait_for_family(&process, 4);
        let kill = process.kill_all();
        assert!(kill.processes >= 4, "{kill:?}");
        for pid in family {
            let state = parent_and_state(pid.as_raw()).map(|(_, state)| state);
            assert!(
                matches!(state, None | Some('Z' | 'X')),
                "{pid} is {state:?}"
            );
        }
    }

    #[test]
    fn a_process_that_ended_is_reported_with_its_last_words() {
        let (_dir, mut process) = shell("echo no such zone >&2; exit 3");
        while process.ended().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = process.check_running().unwrap_err().to_string();
        assert!(
            error.contains("no such zone") && error.contains('3'),
            "{error}"
        );
    }

    #[test]
    fn process_that_ignores_its_stop_signal_still_runs() {
        let (_dir, mut process) = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
        while !last_lines(process.log(), 1).contains("ready") {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!process.terminate(Duration::from_millis(100)));
        assert!(process.kill_all().processes >= 1);
    }
}
