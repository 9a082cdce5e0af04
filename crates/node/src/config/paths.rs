//! The node's local directory: what lives where, and with which permissions.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use coordination::address::UNIX_PATH_MAX;
use nix::unistd::{Gid, Uid};
use supervise::Lock;
use supervise::directory::make;

/// Places below a node's `data` directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    data: PathBuf,
}

impl Paths {
    /// Places below `data`.
    pub fn new(data: impl Into<PathBuf>) -> Paths {
        Paths { data: data.into() }
    }

    /// The directory itself.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where the volume is mounted: PostgreSQL's data directory.
    pub fn mount(&self) -> PathBuf {
        self.data.join("pgdata")
    }

    /// Private files (rule 6): never shared, never mounted by anybody else.
    pub fn private(&self) -> PathBuf {
        self.data.join("private")
    }

    /// Where a new database is made before it is copied into the volume.
    pub(crate) fn initdb(&self) -> PathBuf {
        self.data.join("initdb")
    }

    /// Overlay blocks that did not fit into memory.
    pub fn spill(&self) -> PathBuf {
        self.data.join("spill")
    }

    /// PostgreSQL's Unix socket, and the note of its pid. Mode 0700: whoever can enter may connect as superuser.
    /// PostgreSQL's user owns it, and can put links into it: nothing that the agent makes there may follow them.
    pub fn run(&self) -> PathBuf {
        self.data.join("run")
    }

    /// The socket that the standby is fed through. Not in [`run`](Paths::run): the agent gives the socket to PostgreSQL's
    /// user by name, so that user must not be able to put something else there.
    pub fn feed(&self) -> PathBuf {
        self.data.join("feed")
    }

    /// The server log.
    pub fn log(&self) -> PathBuf {
        self.data.join("postgresql.log")
    }

    /// Makes this process the only agent of the directory, for as long as the lock is kept: an
    /// agent kills every server that it finds on its directory.
    ///
    /// # Errors
    /// `WouldBlock` if another agent runs; else what the local file system says.
    pub fn lock(&self) -> io::Result<Lock> {
        Lock::take(&self.data)
    }

    /// PostgreSQL's Unix socket for `port`.
    pub fn socket(&self, port: u16) -> PathBuf {
        self.run().join(format!(".s.PGSQL.{port}"))
    }

    /// Checks that the path of a socket is one that the kernel takes.
    ///
    /// # Errors
    /// A text that says by how much it is too long.
    pub fn check_socket(&self) -> Result<(), String> {
        let socket = self.socket(u16::MAX);
        let length = socket.as_os_str().len();
        match length.checked_sub(UNIX_PATH_MAX) {
            None | Some(0) => Ok(()),
            Some(over) => Err(format!(
                "too long by {over} bytes for the Unix socket {}",
                socket.display()
            )),
        }
    }

    /// Creates what is missing; `owner` is who PostgreSQL runs as, if that is somebody else.
    ///
    /// The mount point is left alone when it exists: it may be mounted.
    ///
    /// # Errors
    /// What the local file system says.
    pub fn create(&self, owner: Option<(Uid, Gid)>) -> io::Result<()> {
        // PostgreSQL must be able to pass through to its data directory.
        make(&self.data, 0o755)?;
        make(&self.private(), 0o700)?;
        make(&self.spill(), 0o700)?;
        make(&self.run(), 0o700)?;
        // PostgreSQL must be able to pass here as well; the socket in it has its own permissions.
        make(&self.feed(), 0o711)?;
        give(&self.run(), owner)?;
        match fs::create_dir(self.mount()) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Ok(()) => fs::set_permissions(self.mount(), fs::Permissions::from_mode(0o700)),
            Err(e) => Err(e),
        }
    }

    /// Creates the directory of a new database, for whom PostgreSQL runs as.
    pub(crate) fn make_initdb(&self, owner: Option<(Uid, Gid)>) -> io::Result<()> {
        make(&self.initdb(), 0o700)?;
        give(&self.initdb(), owner)
    }
}

fn give(directory: &Path, owner: Option<(Uid, Gid)>) -> io::Result<()> {
    owner.map_or(Ok(()), |(user, group)| {
        Ok(nix::unistd::chown(directory, Some(user), Some(group))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_places_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("deep/node-a"));
        paths.create(None).unwrap();
        fs::set_permissions(paths.run(), fs::Permissions::from_mode(0o755)).unwrap();
        paths.create(None).unwrap();
        let mode = |p: PathBuf| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(paths.run()), 0o700);
        assert_eq!(mode(paths.private()), 0o700);
        assert_eq!(mode(paths.feed()), 0o711);
        assert_eq!(mode(paths.mount()), 0o700);
        assert_eq!(mode(paths.data().to_owned()), 0o755);
    }

    /// What root makes, gives away or opens by name is in no directory of another user.
    // hazard: SEC-3
    #[test]
    fn postgresql_owns_one_directory() {
        let me = Uid::effective();
        if !me.is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let owner = (Uid::from_raw(65_534), Gid::from_raw(65_534));
        paths.create(Some(owner)).unwrap();
        let owner = |p: PathBuf| std::os::unix::fs::MetadataExt::uid(&fs::metadata(p).unwrap());
        assert_eq!(owner(paths.run()), 65_534);
        assert!(!paths.feed().starts_with(paths.run()));
        for place in [paths.feed(), paths.private(), paths.spill(), paths.mount()] {
            assert_eq!(owner(place), 0);
        }
    }

    #[test]
    fn a_directory_has_one_agent() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let first = paths.lock().unwrap();
        assert_eq!(paths.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        paths.lock().unwrap();
    }
}
