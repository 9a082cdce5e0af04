//! The directory in which an image is made, and the programs that make it.
//!
//! Invariant: an image has its name only when it is complete. Until then everything is below `NAME.partial`, which is
//! removed when this ends; one that is left by a process that was killed is removed by the next one.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::{ImageError, Result};

/// Lines of a failed program's output that are shown.
const LINES: usize = 20;

pub(super) struct Work {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Work {
    /// Makes the directory for an image that will be at `target`.
    pub(super) fn begin(target: &Path) -> Result<Work> {
        let mut name = target.as_os_str().to_owned();
        name.push(".partial");
        let path = PathBuf::from(name);
        let failed = |e| ImageError::system(format!("cannot make {}", path.display()), e);
        std::fs::create_dir_all(&path).map_err(failed)?;
        let lock = Flock::lock(
            File::open(&path).map_err(failed)?,
            FlockArg::LockExclusiveNonblock,
        )
        .map_err(|(_, error)| match error {
            nix::errno::Errno::EWOULDBLOCK => ImageError::refused(
                format!("another process is making {}", target.display()),
                "Wait until it is ready, or choose another directory.",
            ),
            _ => failed(error.into()),
        })?;
        let work = Work { path, _lock: lock };
        work.empty()
            .map_err(|e| ImageError::system("cannot remove what is left of an earlier try", e))?;
        Ok(work)
    }

    fn empty(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Gives a directory in it its name.
    pub(super) fn finish(self, made: &Path, target: &Path) -> Result<()> {
        let failed = |e| ImageError::system(format!("cannot make {}", target.display()), e);
        std::fs::rename(made, target).map_err(failed)?;
        let parent = target
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        File::open(parent)
            .and_then(|parent| parent.sync_all())
            .map_err(failed)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove what an image was made in");
        }
    }
}

/// Runs a program to its end; `heard` gets each line that it prints.
pub(super) async fn run(mut command: Command, mut heard: impl FnMut(&str)) -> Result<()> {
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let failed = |e| ImageError::system(format!("cannot run {program}"), e);
    let (reader, writer) = io::pipe().map_err(failed)?;
    let copy = writer.try_clone().map_err(failed)?;
    leave_inherited(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(copy)
        .stderr(writer)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    // The pipe ends when the last process that has it does.
    drop(command);
    let pipe = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
    let mut lines = BufReader::new(pipe).split(b'\n');
    let mut last = VecDeque::new();
    while let Some(line) = lines.next_segment().await.map_err(failed)? {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        heard(&line);
        if last.len() == LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().await.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(ImageError::Program {
        program,
        status: status.to_string(),
        output: last.make_contiguous().join("\n"),
    })
}

/// Descriptors that this process was started with, and knows nothing of, are not passed on: mmdebstrap has shells write
/// to its next free one, and they take one digit only.
fn leave_inherited(command: &mut Command) {
    const CLOSE_AT_EXEC: libc::c_uint = 4;
    let leave = || {
        // SAFETY: the system call takes numbers alone.
        let left =
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_AT_EXEC) };
        match left {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec, it makes one system call and touches no memory.
    unsafe { command.pre_exec(leave) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_half_made_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("image");
        let partial = directory.path().join("image.partial");
        // Of a process that was killed.
        std::fs::create_dir_all(partial.join("root/deep")).unwrap();
        std::fs::write(partial.join("file"), "x").unwrap();
        let work = Work::begin(&target).unwrap();
        assert_eq!(std::fs::read_dir(&partial).unwrap().count(), 0);
        let busy = Work::begin(&target).err().unwrap();
        assert!(busy.to_string().contains("another process"), "{busy}");
        std::fs::create_dir(work.path("half")).unwrap();
        drop(work);
        assert!(!partial.exists() && !target.exists());
        let work = Work::begin(&target).unwrap();
        let made = work.path("made");
        std::fs::create_dir(&made).unwrap();
        std::fs::write(made.join("file"), "whole").unwrap();
        work.finish(&made, &target).unwrap();
        assert!(!partial.exists() && target.join("file").exists());
    }

    #[tokio::test]
    async fn a_failed_program_tells_what_it_printed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let mut heard = Vec::new();
        let error = run(command, |line| heard.push(line.to_owned()))
            .await
            .unwrap_err();
        assert_eq!(heard, ["one", "two"]);
        assert!(
            error.to_string().contains("two") && error.to_string().contains('3'),
            "{error}"
        );
    }

    /// mmdebstrap failed under a program that had left seven descriptors open.
    #[tokio::test]
    async fn inherited_descriptors_are_not_passed_on() {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile().unwrap();
        nix::fcntl::fcntl(
            &file,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
        )
        .unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("test ! -e /proc/$$/fd/{}", file.as_raw_fd())]);
        run(command, |_| {}).await.unwrap();
    }
}
