//! What a killed PostgreSQL leaves in the machine: shared memory, and the mount of its agent.
//!
//! Invariant: only shared memory that a killed process had mapped, and only FUSE mounts below a
//! directory of ours, are ever removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, umount2};
use nix::unistd::Pid;

/// Shared memory that outlives the processes using it.
#[derive(Debug, Default)]
pub struct Remnants {
    segments: BTreeSet<u64>,
    files: BTreeSet<PathBuf>,
}

impl Remnants {
    /// What these processes have mapped.
    pub fn of(pids: &[Pid]) -> Remnants {
        let mut remnants = Remnants::default();
        for pid in pids {
            if let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) {
                maps.lines().for_each(|line| remnants.note(line));
            }
        }
        remnants
    }

    /// One line of `/proc/<pid>/maps`; a System V segment shows its id as the inode.
    fn note(&mut self, line: &str) {
        let mut fields = line.split_whitespace().skip(4);
        let (Some(inode), Some(path)) = (fields.next(), fields.next()) else {
            return;
        };
        if path.starts_with("/SYSV") {
            self.segments.extend(inode.parse::<u64>());
        } else if path.starts_with("/dev/shm/PostgreSQL.") {
            self.files.insert(PathBuf::from(path));
        }
    }

    /// Removes it. Call when the processes are gone.
    pub fn remove(&self) {
        for file in &self.files {
            if let Err(error) = std::fs::remove_file(file) {
                tracing::debug!(%error, file = %file.display(), "shared memory was gone already");
            }
        }
        for segment in &self.segments {
            quietly(Command::new("ipcrm").args(["-m", &segment.to_string()]));
        }
    }
}

/// Takes away every FUSE mount below `dir`, dead or alive. Returns how many there were.
pub fn detach_mounts(dir: &Path) -> usize {
    let mut mounts = fuse_mounts_below(dir);
    // The latest on top first.
    mounts.reverse();
    for mount in &mounts {
        if umount2(mount, MntFlags::MNT_DETACH).is_err() {
            quietly(Command::new("fusermount3").args(["-u", "-z"]).arg(mount));
        }
    }
    mounts.len()
}

/// The FUSE mounts below a directory, oldest first.
pub fn fuse_mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| {
            let path = line.split(' ').nth(4)?;
            let (_, kind) = line.split_once(" - ")?;
            let path = PathBuf::from(path.replace("\\040", " "));
            (kind.starts_with("fuse") && path.starts_with(dir)).then_some(path)
        })
        .collect()
}

fn quietly(command: &mut Command) {
    let result = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if let Err(error) = result {
        tracing::debug!(%error, program = %command.get_program().display(), "cannot clean up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_found_in_a_process_map() {
        let mut remnants = Remnants::default();
        for line in [
            "7f0-7f1 rw-s 00000000 00:01 32769   /SYSV0012a4f1 (deleted)",
            "7f2-7f3 rw-s 00000000 00:19 77      /dev/shm/PostgreSQL.1234",
            "7f2-7f3 rw-s 00000000 00:19 78      /dev/shm/somebody-else",
            "7f4-7f5 rw-p 00000000 00:00 0 ",
        ] {
            remnants.note(line);
        }
        assert_eq!(remnants.segments, BTreeSet::from([32769]));
        assert_eq!(
            remnants.files,
            BTreeSet::from([PathBuf::from("/dev/shm/PostgreSQL.1234")])
        );
    }
}
