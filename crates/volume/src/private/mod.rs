//! Private files: a directory tree on this node's local disk, with the same relative paths as in
//! the volume.
//!
//! Disposable: wiped when a view is prepared, never shared, never synced. Inode numbers have bit 63
//! set and stay with a file through renames, and as long as it is open after its last name is gone.
//! Both views route to it by the [`Layout`]'s class of a path.

mod files;
mod table;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use self::table::Table;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::view::{FileKind, Ino, Ownership};

/// Set in the inode numbers of private files.
pub const PRIVATE_BIT: u64 = 1 << 63;

/// True if an inode number stands for a private file.
pub fn is_private(ino: Ino) -> bool {
    ino.0 & PRIVATE_BIT != 0
}

/// The private tree of one node. Paths are relative to the volume's root, as in [`Layout`].
pub struct PrivateDir {
    tree: PathBuf,
    table: Mutex<Table>,
}

/// One name of a private directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateEntry {
    /// Name in its directory.
    pub name: String,
    /// The path from the root.
    pub path: String,
    /// Number of the inode in the mount.
    pub ino: Ino,
    /// Regular file, directory or symbolic link.
    pub kind: FileKind,
}

impl PrivateDir {
    /// Wipes `<place>/tree` and makes the directories that must exist, with this owner and mode.
    /// Nothing else below `place` is touched.
    pub fn prepare(
        place: &Path,
        layout: &dyn Layout,
        standby: bool,
        ownership: Ownership,
    ) -> Result<PrivateDir> {
        let tree = place.join("tree");
        match fs::remove_dir_all(&tree) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => fs::create_dir_all(&tree)?,
        }
        let private = PrivateDir {
            tree,
            table: Mutex::new(Table::new()),
        };
        for path in layout.private_directories(standby) {
            let at = private.place(&path)?;
            fs::create_dir_all(&at)?;
            own(&at, ownership)?;
        }
        Ok(private)
    }

    /// The path of a private file; of one without names, none.
    pub fn path(&self, ino: Ino) -> Option<String> {
        self.table.lock().path(ino)
    }

    /// Where a path is on the local disk. For tools that read private files directly.
    pub fn place(&self, path: &str) -> Result<PathBuf> {
        let strange = |c: &str| c == "." || c == "..";
        if path.split('/').any(strange) {
            return Err(Error::Invalid("not a path below the root"));
        }
        Ok(match path {
            "" => self.tree.clone(),
            _ => self.tree.join(path),
        })
    }

    /// The names of the directory at `path`; none if it does not exist. The caller drops those that
    /// are not private (directories that only lead to private ones).
    pub fn list(&self, path: &str) -> Result<Vec<PrivateEntry>> {
        let entries = match fs::read_dir(self.place(path)?) {
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Vec::new());
            }
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = match path {
                "" => name.clone(),
                _ => format!("{path}/{name}"),
            };
            let kind = kind_of(entry.file_type()?);
            let ino = self.table.lock().ino(&path);
            found.push(PrivateEntry {
                name,
                path,
                ino,
                kind,
            });
        }
        Ok(found)
    }
}

fn kind_of(kind: fs::FileType) -> FileKind {
    if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else {
        FileKind::File
    }
}

/// Sets mode and, as root, owner.
fn own(at: &Path, ownership: Ownership) -> Result<()> {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::lchown(at, Some(ownership.uid), Some(ownership.gid))?;
    }
    if !at.is_symlink() {
        fs::set_permissions(
            at,
            fs::Permissions::from_mode(u32::from(ownership.mode & 0o7777)),
        )?;
    }
    Ok(())
}

/// The file system's own answer as ours.
fn answer<T>(result: io::Result<T>) -> Result<T> {
    result.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::NotFound,
        io::ErrorKind::AlreadyExists => Error::Exists,
        io::ErrorKind::NotADirectory => Error::NotDirectory,
        io::ErrorKind::IsADirectory => Error::IsDirectory,
        io::ErrorKind::DirectoryNotEmpty => Error::NotEmpty,
        _ => Error::Local(e),
    })
}
