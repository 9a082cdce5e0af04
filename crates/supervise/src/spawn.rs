//! Starting programs: as which user, in which session, with which environment.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{Pid, getppid, setgid, setgroups, setsid, setuid};

use super::RunAs;

/// A command without the caller's variables that begin so, which would change what the program does, and without
/// the service manager's socket: that a server is ready, or stops, is not for it to say (Debian's are built to).
pub fn command(program: &Path, without: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(without) || name == "NOTIFY_SOCKET" {
            command.env_remove(name);
        }
    }
    // Directories of the caller may not be accessible to another user.
    command.current_dir("/");
    command
}

/// Makes the child run as `run_as`, and get `on_death` when the thread that spawns it ends.
pub fn prepare(command: &mut Command, run_as: Option<RunAs>, on_death: Option<Signal>) {
    let agent = Pid::this();
    let become_child = move || -> io::Result<()> {
        // A session of its own: a terminal's Ctrl-C for the agent must not reach the server.
        setsid()?;
        // A server that is told to read its files again before it listens for that would die of it. It reads them
        // after it has begun to listen.
        // SAFETY: no handler is installed.
        unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }?;
        if let Some(user) = &run_as {
            setgroups(&user.groups)?;
            setgid(user.gid)?;
            setuid(user.uid)?;
        }
        if let Some(signal) = on_death {
            // After setuid, which clears it.
            set_pdeathsig(signal)?;
            // The agent may have died between the fork and the line above.
            if getppid() != agent {
                return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and makes system calls only: it allocates
    // nothing, takes no lock and touches memory that was prepared before the fork.
    unsafe {
        command.pre_exec(become_child);
    }
}
