//! The namespace: directories, names, inodes, sizes and truncation marks of a volume.
//!
//! A pure state machine on persistent maps: cloning is O(1), which makes every seal's namespace a
//! value to keep. It changes only by [`Namespace::apply`], which is total and deterministic, so
//! everybody who applies the same journal holds the same state. Whether an operation is allowed is
//! decided before, by the planning functions ([`plan`]), which turn it into [`op::Op`]s.
//!
//! Invariants: every name leads to an inode; every directory has a list of names; an inode without
//! names is an orphan (open somewhere) or a retained log segment until [`op::Op::Forget`]; ids that left
//! the namespace stay in `removed` until their blocks were given back, so that a crash leaks none.

mod apply;
mod inode;
#[cfg(test)]
mod model_test;
pub mod op;
pub mod plan;
mod removal;

use std::sync::Arc;

use dax::ids::FileId;
use imbl::{OrdMap, OrdSet};

pub use self::inode::{Cut, Inode, Name};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::view::{FileKind, Ownership, Timestamp};

/// The root directory.
pub const ROOT: FileId = FileId(1);
/// The file that holds the journal.
pub const JOURNAL: FileId = FileId(2);

/// The names of one directory, in order.
pub type Directory = OrdMap<Name, FileId>;

/// The whole namespace. See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub(crate) inodes: OrdMap<FileId, Arc<Inode>>,
    pub(crate) directories: OrdMap<FileId, Directory>,
    pub(crate) retained: OrdMap<FileId, Directory>,
    pub(crate) orphans: OrdSet<FileId>,
    pub(crate) removed: OrdSet<FileId>,
}

/// What changed between two namespaces for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    /// Only the newer has it.
    Added(T),
    /// Both have it, different.
    Changed {
        /// In the older.
        old: T,
        /// In the newer.
        new: T,
    },
    /// Only the older has it.
    Removed(T),
}

impl Namespace {
    /// A namespace without anything, not even a root (what snapshots are loaded into).
    pub fn empty() -> Namespace {
        Namespace {
            inodes: OrdMap::new(),
            directories: OrdMap::new(),
            retained: OrdMap::new(),
            orphans: OrdSet::new(),
            removed: OrdSet::new(),
        }
    }

    /// A namespace with a root directory.
    pub fn new(root: Ownership, class: FileClass, now: Timestamp) -> Namespace {
        let mut namespace = Namespace::empty();
        let inode = Inode {
            kind: FileKind::Directory,
            class,
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
            nlink: 2,
            size: 0,
            mtime: now,
            ctime: now,
            cuts: Vec::new(),
            target: None,
            parent: ROOT,
            name: Name::from(&b""[..]),
        };
        namespace.inodes.insert(ROOT, Arc::new(inode));
        namespace.directories.insert(ROOT, Directory::new());
        namespace
    }

    /// The inode of an id.
    pub fn get(&self, file: FileId) -> Option<&Inode> {
        self.inodes.get(&file).map(|inode| &**inode)
    }

    /// The same, shared.
    pub fn get_shared(&self, file: FileId) -> Option<Arc<Inode>> {
        self.inodes.get(&file).cloned()
    }

    /// The inode of an id, which must exist.
    pub fn inode(&self, file: FileId) -> Result<&Inode> {
        self.get(file).ok_or(Error::NotFound)
    }

    /// The names of a directory.
    pub fn directory(&self, file: FileId) -> Result<&Directory> {
        match self.directories.get(&file) {
            Some(directory) => Ok(directory),
            None => self.inode(file).and(Err(Error::NotDirectory)),
        }
    }

    /// Removed log segments of a directory that a standby may still need, by name.
    pub fn retained(&self, directory: FileId) -> Option<&Directory> {
        self.retained.get(&directory)
    }

    /// All retained log segments: directory, name, id.
    pub fn all_retained(&self) -> impl Iterator<Item = (FileId, &Name, FileId)> {
        let directories = self.retained.iter();
        directories.flat_map(|(dir, names)| names.iter().map(move |(name, id)| (*dir, name, *id)))
    }

    /// The id that a name leads to.
    pub fn lookup(&self, parent: FileId, name: &[u8]) -> Result<FileId> {
        let found = self.directory(parent)?.get(name);
        found.copied().ok_or(Error::NotFound)
    }

    /// Names of a directory that start with `prefix`, in order.
    pub fn names_with_prefix<'a>(
        &'a self,
        directory: FileId,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a Name, FileId)> {
        let names = self.directories.get(&directory);
        names
            .into_iter()
            .flat_map(move |names| {
                names.range::<_, [u8]>((
                    std::ops::Bound::Included(prefix),
                    std::ops::Bound::Unbounded,
                ))
            })
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, id)| (name, *id))
    }

    /// The id at a path relative to the root (`""` is the root), without following links.
    pub fn resolve(&self, path: &str) -> Result<FileId> {
        let components = path.split('/').filter(|c| !c.is_empty());
        components
            .into_iter()
            .try_fold(ROOT, |dir, name| self.lookup(dir, name.as_bytes()))
    }

    /// The path of an inode relative to the root, by its home name; for an orphan the path it had.
    /// `None` if the id is unknown or a directory above it is gone.
    pub fn path_of(&self, file: FileId) -> Option<String> {
        if file == ROOT {
            return Some(String::new());
        }
        let mut parts = Vec::new();
        let mut at = file;
        while at != ROOT {
            let inode = self.get(at)?;
            parts.push(String::from_utf8_lossy(&inode.name));
            at = inode.parent;
        }
        parts.reverse();
        Some(parts.join("/"))
    }

    /// The path that a name in a directory has.
    pub fn path_in(&self, parent: FileId, name: &[u8]) -> Option<String> {
        let mut path = self.path_of(parent)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&String::from_utf8_lossy(name));
        Some(path)
    }

    /// Every inode, by id.
    pub fn inodes(&self) -> impl Iterator<Item = (FileId, &Inode)> {
        self.inodes.iter().map(|(id, inode)| (*id, &**inode))
    }

    /// Every directory's names, by id.
    pub fn directories(&self) -> impl Iterator<Item = (FileId, &Directory)> {
        self.directories.iter().map(|(id, names)| (*id, names))
    }

    /// Inodes without names, not retained: open on the active, or left by a crash.
    pub fn orphans(&self) -> impl Iterator<Item = FileId> {
        self.orphans.iter().copied()
    }

    /// True if an inode is without names and not retained.
    pub fn is_orphan(&self, file: FileId) -> bool {
        self.orphans.contains(&file)
    }

    /// Ids that left the namespace and whose blocks were not given back yet.
    pub fn removed(&self) -> impl Iterator<Item = FileId> {
        self.removed.iter().copied()
    }

    /// How many inodes there are.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// True if there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Inodes that differ from an older namespace; cheap where the two share structure.
    pub fn changed_inodes<'a>(
        &'a self,
        older: &'a Namespace,
    ) -> impl Iterator<Item = (FileId, Change<&'a Inode>)> {
        older.inodes.diff(&self.inodes).map(|item| match item {
            imbl::ordmap::DiffItem::Add(id, new) => (*id, Change::Added(&**new)),
            imbl::ordmap::DiffItem::Remove(id, old) => (*id, Change::Removed(&**old)),
            imbl::ordmap::DiffItem::Update { old, new } => {
                let (old_inode, new_inode) = (&**old.1, &**new.1);
                (
                    *new.0,
                    Change::Changed {
                        old: old_inode,
                        new: new_inode,
                    },
                )
            }
        })
    }

    /// Directories whose names differ from an older namespace.
    pub fn changed_directories<'a>(
        &'a self,
        older: &'a Namespace,
    ) -> impl Iterator<Item = (FileId, Change<&'a Directory>)> {
        older
            .directories
            .diff(&self.directories)
            .map(|item| match item {
                imbl::ordmap::DiffItem::Add(id, new) => (*id, Change::Added(new)),
                imbl::ordmap::DiffItem::Remove(id, old) => (*id, Change::Removed(old)),
                imbl::ordmap::DiffItem::Update { old, new } => (
                    *new.0,
                    Change::Changed {
                        old: old.1,
                        new: new.1,
                    },
                ),
            })
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// An empty data file with one name.
    pub(crate) fn file() -> Inode {
        Inode {
            kind: FileKind::File,
            class: FileClass::Data,
            mode: 0o600,
            uid: 1,
            gid: 1,
            nlink: 1,
            size: 0,
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            cuts: Vec::new(),
            target: None,
            parent: ROOT,
            name: Name::from(&b"f"[..]),
        }
    }
}
