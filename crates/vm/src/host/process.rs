//! QEMU as a child process, with the library that it loads.
//!
//! Invariant: QEMU does not outlive this process, and one that does all the same is killed before another one is
//! started for the same machine (`supervise`).

use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::sys::signal::Signal;
use supervise::leftovers::{self, Server};
use supervise::{Child, Exit, Launch};

use super::spec::{Network, Spec};
use super::tracking::PRELOAD;
use super::{HostError, Result};

/// Sets variables for the program that it becomes.
const ENV: &str = "/usr/bin/env";
/// Names of sockets have at most so many bytes, with the zero at the end.
const SOCKET_NAME_BYTES: usize = 108;
/// Lines of what QEMU printed that an error shows.
const LINES: usize = 5;

/// QEMU. Dropping it kills it, without waiting.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

fn server(spec: &Spec) -> Server {
    let program = spec.qemu.file_name().unwrap_or_default();
    Server {
        program: program.to_string_lossy().into_owned(),
        data: spec.run.clone(),
    }
}

/// Makes the directories of a machine, after killing what is left of an earlier one.
pub(super) fn prepare(spec: &Spec) -> Result<()> {
    check_names(spec)?;
    make(&spec.run, 0o711)?;
    leftovers::clean(&spec.run, &server(spec))?;
    empty(&spec.memory_dir)?;
    empty(&spec.qemu_dir())?;
    for directory in [&spec.memory_dir, &spec.qemu_dir()] {
        make(directory, 0o700)?;
        give(spec, directory)?;
    }
    // Whoever may write to a socket may connect to it.
    give(spec, &spec.disk)?;
    if let Network::Stream(socket) = &spec.network {
        give(spec, socket)?;
    }
    // QEMU's user writes to it, but may not make it where it is.
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&spec.console)
        .map_err(|e| HostError::system(format!("cannot open {}", spec.console.display()), e))?;
    give(spec, &spec.console)?;
    let library = spec.preload_file();
    std::fs::write(&library, PRELOAD)
        .and_then(|()| std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o755)))
        .map_err(|e| HostError::system(format!("cannot write {}", library.display()), e))
}

fn check_names(spec: &Spec) -> Result<()> {
    let socket = spec.incoming_socket();
    if socket.as_os_str().len() >= SOCKET_NAME_BYTES {
        let what = format!("{} is too long a name for a socket", socket.display());
        return Err(HostError::unfit(what, "Choose a shorter directory."));
    }
    // The dynamic linker takes these for the end of a name.
    let run = spec.run.display().to_string();
    if run.contains([' ', ':']) {
        let what = format!("the directory {run:?} has a space or a colon in its name");
        return Err(HostError::unfit(what, "Choose another directory."));
    }
    Ok(())
}

fn make(directory: &Path, mode: u32) -> Result<()> {
    supervise::directory::make(directory, mode)
        .map_err(|e| HostError::system(format!("cannot make {}", directory.display()), e))
}

fn empty(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let what = format!("cannot remove {}", directory.display());
            Err(HostError::system(what, error))
        }
        _ => Ok(()),
    }
}

/// Makes QEMU's user the owner.
pub(super) fn give(spec: &Spec, path: &Path) -> Result<()> {
    let Some(user) = &spec.run_as else {
        return Ok(());
    };
    let (uid, gid) = user.owner();
    nix::unistd::chown(path, Some(uid), Some(gid))
        .map_err(|e| HostError::system(format!("cannot give {} away", path.display()), e))
}

impl Process {
    pub(super) fn start(spec: &Spec, waiting: bool) -> Result<Process> {
        let mut arguments = vec![
            format!("LD_PRELOAD={}", spec.preload_file().display()),
            format!("UNDERSTUDY_VM_MEMORY={}", spec.memory_file().display()),
            format!("UNDERSTUDY_VM_NOTE={}", spec.note_file().display()),
            spec.qemu.display().to_string(),
        ];
        arguments.extend(spec.arguments(waiting));
        let launch = Launch {
            program: ENV.into(),
            arguments,
            server: server(spec),
            run: spec.run.clone(),
            log: spec.log.clone(),
            run_as: spec.run_as.clone(),
            on_death: Signal::SIGKILL,
            without: "QEMU_",
            before: Box::new(|| Ok(())),
        };
        let child = wait(Child::start(launch))??;
        Ok(Process { child })
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// How it ended, if it did.
    pub(super) fn ended(&self) -> Option<HostError> {
        self.child.exit().map(|exit| HostError::Ended {
            report: report(&exit),
        })
    }

    /// Ends it at once; returns when nothing is left of it.
    pub(super) fn kill(&self) -> Result<()> {
        wait(self.child.kill())??;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub(super) fn cleaned(&self) -> Result<()> {
        wait(self.child.cleaned())??;
        Ok(())
    }
}

fn report(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".to_owned(),
    };
    let last = &exit.log[exit.log.len().saturating_sub(LINES)..];
    if last.is_empty() {
        return how;
    }
    format!("{how}; it printed: {}", last.join(" / "))
}

/// Runs a future of `supervise` to its end, on a thread of its own: the caller may be one of an async runtime.
fn wait<F>(future: F) -> Result<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let failed = |e| HostError::system("cannot wait for QEMU", e);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(failed)?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || runtime.block_on(future));
        waiting
            .join()
            .map_err(|_| failed(std::io::ErrorKind::Other.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::spec::tests::spec;
    use super::*;

    #[test]
    fn names_that_cannot_work_are_refused_before_anything_is_made() {
        for name in ["with space", "with:colon", &"long".repeat(30)] {
            let spec = spec(&Path::new("/tmp/nothing").join(name));
            let error = check_names(&spec).unwrap_err();
            assert!(error.is_of_this_host() && error.hint().is_some(), "{name}");
        }
    }

    #[test]
    fn a_report_has_the_end_of_what_was_printed() {
        let exit = Exit {
            code: Some(1),
            signal: None,
            log: (0..9).map(|n| format!("line {n}")).collect(),
        };
        let report = report(&exit);
        assert!(report.starts_with("exit code 1"), "{report}");
        assert!(
            report.contains("line 8") && !report.contains("line 3"),
            "{report}"
        );
    }
}
