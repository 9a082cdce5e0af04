//! The local directory of an agent: made with the right permissions, and used by one agent at a time.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// Held by the one agent of a directory: an agent kills every server that it finds there.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "kept for its drop")] Flock<fs::File>);

impl Lock {
    /// Makes this process the only agent of the directory, for as long as the lock is kept.
    ///
    /// # Errors
    /// `WouldBlock` if another agent runs; else what the local file system says.
    pub fn take(directory: &Path) -> io::Result<Lock> {
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("agent.lock"))?;
        // Forked children do not keep it: the file is closed at exec.
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e)?;
        Ok(Lock(lock))
    }
}

/// Makes a directory if it is missing. One that was there keeps the permissions that its owner chose, except that
/// nothing private (`mode` 0700) is open to others.
///
/// # Errors
/// What the local file system says.
pub fn make(path: &Path, mode: u32) -> io::Result<()> {
    if !path.is_dir() {
        fs::create_dir_all(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let now = fs::metadata(path)?.permissions().mode() & 0o777;
    if mode == 0o700 && now != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_agent() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        let second = Lock::take(directory.path());
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        Lock::take(directory.path()).unwrap();
    }

    #[test]
    fn private_directories_are_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/private");
        make(&path, 0o700).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        make(&path, 0o700).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
}
