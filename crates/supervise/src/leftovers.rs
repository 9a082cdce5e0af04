//! Servers that a killed agent left behind, found and killed before another one starts.
//!
//! Invariant: a process is killed only if it is certainly ours: the one in our pid file with the same start
//! time *and* our directory on its command line, a child of that one, or one with the program's name whose
//! working directory is our data directory (every process of PostgreSQL changes there, and MariaDB does). A
//! pid that was given to somebody else matches none of these.
//!
//! The process group is no help: each child of PostgreSQL's postmaster makes a session of its own.
//!
//! The pid file may be in a directory that the server's user owns, while the agent is root. So it is made anew each time, no
//! link is followed, and nothing else is read: whoever owns the directory may have put anything there.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{ChildError, Result};

/// The kernel keeps so many bytes of a program's name.
const NAME_BYTES: usize = 15;
/// A pid file is shorter.
const NOTE_BYTES_MAX: u64 = 64;

/// Whose processes are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The file name of its program.
    pub program: String,
    /// Its data directory, which its command line names and its processes may work in.
    pub data: PathBuf,
}

const DIES_WITHIN: Duration = Duration::from_secs(10);

fn pid_file(run: &Path) -> PathBuf {
    run.join("child.pid")
}

/// Notes the server that was started: its pid and when the kernel says it began.
pub(crate) fn note(run: &Path, pid: Pid) -> io::Result<()> {
    let began = began(pid).ok_or(io::ErrorKind::NotFound)?;
    forget(run);
    let file = pid_file(run);
    // A new file, or none: what is put there meanwhile is neither followed nor cut.
    let mut file = OpenOptions::new().write(true).create_new(true).open(file)?;
    file.write_all(format!("{pid} {began}\n").as_bytes())
}

/// Forgets it, after it ended.
pub(crate) fn forget(run: &Path) {
    // A file that stays is checked against the process before anything is done.
    let _ = fs::remove_file(pid_file(run));
}

/// Kills what is left of a server; returns how many processes were killed. Blocks until they are gone. Never
/// touches the data directory itself, which may be a mount whose server is dead; call it
/// before such a mount is removed (the working directories are told by their path).
///
/// # Errors
/// [`ChildError::Timeout`] if a process does not die (it hangs in the kernel).
pub fn clean(run: &Path, server: &Server) -> Result<usize> {
    let noted = noted(run).filter(|(pid, at)| began(*pid) == Some(*at) && runs_on(*pid, server));
    let killed = kill_tree(noted.map(|(pid, _)| pid), server)?;
    forget(run);
    Ok(killed)
}

fn noted(run: &Path) -> Option<(Pid, u64)> {
    // Nobody is waited for who might write into a pipe.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(pid_file(run));
    let mut text = String::new();
    file.ok()?
        .take(NOTE_BYTES_MAX)
        .read_to_string(&mut text)
        .ok()?;
    let (pid, began) = text.trim().split_once(' ')?;
    Some((Pid::from_raw(pid.parse().ok()?), began.parse().ok()?))
}

/// Stops the processes of a server as they are (SIGSTOP), or lets them go on (SIGCONT). Blocks until all have been told,
/// those too that were started meanwhile; one that hangs in the kernel stops when it leaves there.
pub fn signal_all(server: &Server, wanted: Signal) {
    let mut told = BTreeSet::new();
    loop {
        let found = members(None, server);
        let news: Vec<Pid> = found.difference(&told).copied().collect();
        if news.is_empty() {
            return;
        }
        for pid in news {
            signal(pid, wanted);
            told.insert(pid);
        }
    }
}

/// Kills `first`, its descendants and whoever else of the server works in its data directory, and waits for
/// their end.
pub(crate) fn kill_tree(first: Option<Pid>, server: &Server) -> Result<usize> {
    if let Some(pid) = first {
        // Stopped, it starts no more children while they are collected.
        signal(pid, Signal::SIGSTOP);
    }
    let deadline = Instant::now() + DIES_WITHIN;
    let mut killed = BTreeSet::new();
    loop {
        let found = members(first, server);
        if found.is_empty() {
            return Ok(killed.len());
        }
        if Instant::now() > deadline {
            return Err(ChildError::Timeout {
                what: "die of SIGKILL",
                after: DIES_WITHIN,
                detail: format!(": processes {found:?} hang in the kernel"),
            });
        }
        for pid in found {
            signal(pid, Signal::SIGKILL);
            killed.insert(pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(pid: Pid, signal: Signal) {
    match kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => tracing::warn!(%pid, %signal, %error, "cannot signal a left-over process"),
    }
}

/// Living processes that belong to a server on `data`.
fn members(first: Option<Pid>, server: &Server) -> BTreeSet<Pid> {
    let processes: Vec<Process> = all().collect();
    let directory = real_path(&server.data);
    let mut found: BTreeSet<Pid> = processes
        .iter()
        .filter(|p| Some(p.pid) == first || works_in(p, server, &directory))
        .map(|p| p.pid)
        .collect();
    // Children of children: as long as the set grows.
    loop {
        let more: Vec<Pid> = processes
            .iter()
            .filter(|p| found.contains(&p.parent) && !found.contains(&p.pid))
            .map(|p| p.pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// The path with its parent's symbolic links resolved, without looking at `data` itself.
fn real_path(data: &Path) -> PathBuf {
    let resolved = data.parent().and_then(|p| p.canonicalize().ok());
    match (resolved, data.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => data.to_owned(),
    }
}

fn works_in(process: &Process, server: &Server, directory: &Path) -> bool {
    let name = server.program.as_bytes();
    process.command.as_bytes() == &name[..name.len().min(NAME_BYTES)]
        && fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|cwd| cwd == directory)
}

/// True if `pid` is the server's program with its data directory on the command line.
fn runs_on(pid: Pid, server: &Server) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return false;
    };
    let arguments: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let name = server.program.as_bytes();
    let is_it = |argument: &&[u8]| argument.rsplit(|b| *b == b'/').next() == Some(name);
    let data = server.data.as_os_str().as_encoded_bytes();
    arguments.first().is_some_and(is_it)
        && arguments.iter().any(|argument| argument.ends_with(data))
}

struct Process {
    pid: Pid,
    parent: Pid,
    command: String,
}

/// Every process that is not a zombie.
fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let (command, fields) = stat(Pid::from_raw(pid))?;
        if matches!(fields.first()?.as_str(), "Z" | "X") {
            return None;
        }
        Some(Process {
            pid: Pid::from_raw(pid),
            parent: Pid::from_raw(fields.get(1)?.parse().ok()?),
            command,
        })
    })
}

/// When the kernel says the process began, in clock ticks since boot.
fn began(pid: Pid) -> Option<u64> {
    // proc(5): field 22 of stat; the fields here begin with the third.
    stat(pid)?.1.get(19)?.parse().ok()
}

/// The command's name, and the fields of `/proc/<pid>/stat` after it.
fn stat(pid: Pid) -> Option<(String, Vec<String>)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, parentheses too.
    let (head, tail) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields = tail.split_whitespace().map(str::to_owned).collect();
    Some((name.to_owned(), fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Server {
        Server {
            program: "postgres".to_owned(),
            data: "/nonexistent/data".into(),
        }
    }

    #[test]
    fn a_reused_pid_is_not_killed() {
        let run = tempfile::tempdir().unwrap();
        let mut sleeper = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(sleeper.id()).unwrap());
        // The right pid and start time, but another program: as after a wrap of the pid counter.
        note(run.path(), pid).unwrap();
        assert_eq!(clean(run.path(), &nowhere()).unwrap(), 0);
        assert!(sleeper.try_wait().unwrap().is_none());
        assert!(noted(run.path()).is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn an_empty_or_damaged_pid_file_is_harmless() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(clean(run.path(), &nowhere()).unwrap(), 0);
        fs::write(pid_file(run.path()), "1\n").unwrap();
        assert_eq!(clean(run.path(), &nowhere()).unwrap(), 0);
    }

    // hazard: SEC-2
    #[test]
    fn file_in_the_place_of_the_pid_file_is_left_alone() {
        let run = tempfile::tempdir().unwrap();
        let elsewhere = run.path().join("elsewhere");
        fs::write(&elsewhere, "shadow").unwrap();
        std::os::unix::fs::symlink(&elsewhere, pid_file(run.path())).unwrap();
        note(run.path(), Pid::this()).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "shadow");
        assert_eq!(noted(run.path()).unwrap().0, Pid::this());

        // What is noted elsewhere is not ours, and nobody writes into a pipe.
        fs::rename(pid_file(run.path()), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, pid_file(run.path())).unwrap();
        assert!(noted(run.path()).is_none());
        forget(run.path());
        let owner = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&pid_file(run.path()), owner).unwrap();
        assert!(noted(run.path()).is_none());
        note(run.path(), Pid::this()).unwrap();
        assert!(noted(run.path()).is_some());

        // A directory cannot be removed so, and stays.
        forget(run.path());
        fs::create_dir(pid_file(run.path())).unwrap();
        assert!(note(run.path(), Pid::this()).is_err());
        assert!(noted(run.path()).is_none());
    }

    #[test]
    fn a_server_stops_and_goes_on_with_all_its_children() {
        let data = tempfile::tempdir().unwrap();
        let server = Server {
            program: "sh".to_owned(),
            data: data.path().canonicalize().unwrap(),
        };
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .current_dir(&server.data)
            .spawn()
            .unwrap();
        let states = || {
            let all = members(None, &server).into_iter();
            all.map(|pid| stat(pid).unwrap().1[0].clone())
                .collect::<Vec<_>>()
        };
        let deadline = Instant::now() + DIES_WITHIN;
        let wait_for = |wanted: &str| {
            while states() != [wanted, wanted] {
                assert!(Instant::now() < deadline, "{:?}, not {wanted}", states());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for("S");
        signal_all(&server, Signal::SIGSTOP);
        wait_for("T");
        signal_all(&server, Signal::SIGCONT);
        wait_for("S");
        kill_tree(None, &server).unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn own_process_is_described() {
        let (_, fields) = stat(Pid::this()).unwrap();
        assert_eq!(fields[1].parse::<i32>().unwrap(), Pid::parent().as_raw());
        assert!(began(Pid::this()).unwrap() > 0);
    }
}
