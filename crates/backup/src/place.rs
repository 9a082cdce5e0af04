//! The data directory that a restore, or a branch, makes on this machine.
//!
//! Invariant: nothing is made outside of it, whatever a manifest says.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid};
use pgdata::layout::{LOG, PostgresLayout, SLOTS};
use volume::layout::Layout;

use crate::error::{Error, Result};

/// The directory that is made.
pub(crate) struct Place {
    pub(crate) root: PathBuf,
    owner: Option<(Uid, Gid)>,
}

impl Place {
    /// One that is not made yet.
    pub(crate) fn new(root: PathBuf, owner: Option<(Uid, Gid)>) -> Place {
        Place { root, owner }
    }

    pub(crate) fn make_root(&self) -> Result<()> {
        let failed = || Error::system(format!("cannot use {}", self.root.display()));
        match fs::read_dir(&self.root) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(Error::Refused(format!(
                        "{} is not empty: give an empty directory, or one that is not there yet",
                        self.root.display()
                    )));
                }
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
                fs::set_permissions(&self.root, mode).map_err(failed())?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new()
                    .mode(0o700)
                    .recursive(true)
                    .create(&self.root);
                made.map_err(failed())?;
            }
            Err(error) => return Err(failed()(error)),
        }
        self.give(&self.root)
    }

    fn give(&self, path: &Path) -> Result<()> {
        let Some((uid, gid)) = self.owner else {
            return Ok(());
        };
        let given = nix::unistd::chown(path, Some(uid), Some(gid)).map_err(std::io::Error::from);
        given.map_err(Error::system(format!(
            "cannot give away {}",
            path.display()
        )))
    }

    /// A path of the image: below the root, whatever the manifest says.
    fn path(&self, path: &str) -> Result<PathBuf> {
        let mut parts = path.split('/');
        match parts.all(|part| !matches!(part, "" | "." | "..")) {
            true => Ok(self.root.join(path)),
            false => Err(Error::damaged(path, "it is no path in a data directory")),
        }
    }

    /// Directories that a server needs, and that no image has.
    pub(crate) fn server_directories(&self, layout: &PostgresLayout) -> Result<()> {
        self.directory(LOG)?;
        self.directory(SLOTS)?;
        let private = layout.private_directories(false);
        private.iter().try_for_each(|path| self.directory(path))
    }

    pub(crate) fn directory(&self, path: &str) -> Result<()> {
        let path = self.path(path)?;
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&path);
        made.map_err(Error::system(format!("cannot make {}", path.display())))?;
        self.give(&path)
    }

    pub(crate) fn create(&self, path: &str, mode: u16) -> Result<fs::File> {
        let path = self.path(path)?;
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(u32::from(mode & 0o600))
            .open(&path)
            .map_err(Error::system(format!("cannot make {}", path.display())))?;
        self.give(&path)?;
        Ok(file)
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.write_with(path, 0o600, bytes)
    }

    pub(crate) fn write_with(&self, path: &str, mode: u16, bytes: &[u8]) -> Result<()> {
        let mut file = self.create(path, mode)?;
        file.write_all(bytes)
            .map_err(Error::system(format!("cannot write {path}")))
    }

    pub(crate) fn append(&self, path: &str, text: &str) -> Result<()> {
        let place = self.path(path)?;
        let opened = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&place);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(Error::system(format!("cannot write {path}")))?;
        self.give(&place)
    }

    /// Everything that was written is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = fs::File::open(&self.root)
            .and_then(|root| nix::unistd::syncfs(&root).map_err(std::io::Error::from));
        synced.map_err(Error::system("cannot sync the disk"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_made_outside_of_the_directory() {
        let place = Place::new(PathBuf::from("/made"), None);
        for path in ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/"] {
            assert!(place.path(path).is_err(), "{path}");
        }
        assert_eq!(place.path("base/1/2").unwrap(), Path::new("/made/base/1/2"));
    }
}
