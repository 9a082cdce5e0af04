//! Names and attributes: routing between shared and private by path, and the namespace's changes.

use dax::ids::FileId;

use super::Inner;
use super::core::Core;
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::namespace::plan::MAX_NAME_BYTES;
use crate::namespace::{Namespace, ROOT};
use crate::private::is_private;
use crate::view::{
    Attr, AttrChange, DirEntry, FileKind, Ino, NewInode, Ownership, RenameMode, Timestamp,
};

/// Where a name leads.
pub(super) enum Route {
    /// To a private path.
    Private(String),
    /// To a name in a shared directory; the class is the path's.
    Shared {
        parent: FileId,
        path: String,
        class: FileClass,
    },
}

impl Inner {
    /// Where `name` in `parent` leads, whether it exists or not.
    fn route(&self, namespace: &Namespace, parent: Ino, name: &[u8]) -> Result<Route> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong);
        }
        if is_private(parent) {
            let parent = self.private.path(parent).ok_or(Error::NotFound)?;
            let name =
                std::str::from_utf8(name).map_err(|_| Error::Invalid("private names are UTF-8"))?;
            return Ok(Route::Private(format!("{parent}/{name}")));
        }
        let parent = self.file_of(parent);
        namespace.directory(parent)?;
        let path = namespace.path_in(parent, name).ok_or(Error::NotFound)?;
        Ok(match self.layout.class(&path) {
            FileClass::Private => Route::Private(path),
            class => Route::Shared {
                parent,
                path,
                class,
            },
        })
    }

    /// True if a name, if it existed, would be one of a private file.
    pub(super) fn leads_to_private(&self, parent: Ino, name: &[u8]) -> bool {
        let core = self.core.lock();
        let route = self.route(&core.namespace, parent, name);
        matches!(route, Ok(Route::Private(_)))
    }

    fn attr_of_file(&self, core: &Core, file: FileId) -> Result<Attr> {
        Ok(self.attr_of(core, file, core.namespace.inode(file)?))
    }

    pub(super) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let core = self.core.lock();
        match self.route(&core.namespace, parent, name)? {
            Route::Private(path) => {
                drop(core);
                self.private.lookup(&path)
            }
            Route::Shared { parent, .. } => {
                let file = core.namespace.lookup(parent, name)?;
                self.attr_of_file(&core, file)
            }
        }
    }

    pub(super) fn attr(&self, ino: Ino) -> Result<Attr> {
        if is_private(ino) {
            return self.private.attr(ino);
        }
        let core = self.core.lock();
        self.attr_of_file(&core, self.file_of(ino))
    }

    /// Attributes other than the size.
    pub(super) fn change_attr(
        &self,
        file: FileId,
        change: AttrChange,
        now: Timestamp,
    ) -> Result<Attr> {
        let mut core = self.core.lock();
        if let Some(op) = core.namespace.plan_set_attr(file, change, now)? {
            self.check_authority()?;
            if change.mtime.is_some() {
                core.mtimes.remove(&file);
            }
            self.commit(&mut core, op, None)?;
        }
        self.attr_of_file(&core, file)
    }

    pub(super) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_private(ino) {
            return self.private.read_link(ino);
        }
        let core = self.core.lock();
        let inode = core.namespace.inode(self.file_of(ino))?;
        inode
            .target
            .clone()
            .ok_or(Error::Invalid("not a symbolic link"))
    }

    pub(super) fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> Result<Attr> {
        let mut core = self.core.lock();
        match self.route(&core.namespace, parent, name)? {
            Route::Private(path) => {
                drop(core);
                self.private.create(&path, new, ownership)
            }
            Route::Shared {
                parent,
                path,
                class,
            } => {
                self.check_authority()?;
                let refused = || self.layout.refuses_directory(&path);
                if new == NewInode::Directory
                    && let Some(why) = refused()
                {
                    return Err(Error::NotPermitted(why));
                }
                let id = core.allocate(self.epoch);
                let place = (parent, name);
                let op = core
                    .namespace
                    .plan_create(place, id, new, class, ownership, now)?;
                self.commit(&mut core, op, None)?;
                self.attr_of_file(&core, id)
            }
        }
    }

    pub(super) fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        let mut core = self.core.lock();
        match (is_private(ino), self.route(&core.namespace, parent, name)?) {
            (true, Route::Private(path)) => {
                drop(core);
                self.private.link(ino, &path)
            }
            (false, Route::Shared { parent, class, .. }) => {
                self.check_authority()?;
                let file = self.file_of(ino);
                let has = core.namespace.inode(file)?.class;
                if (has == FileClass::Data) != (class == FileClass::Data) {
                    return Err(Error::CrossDevice);
                }
                let op = core.namespace.plan_link(file, (parent, name), now)?;
                self.commit(&mut core, op, None)?;
                self.attr_of_file(&core, file)
            }
            _ => Err(Error::CrossDevice),
        }
    }

    pub(super) fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let mut core = self.core.lock();
        match self.route(&core.namespace, parent, name)? {
            Route::Private(path) => {
                drop(core);
                self.private.unlink(&path)
            }
            Route::Shared {
                parent,
                path,
                class,
            } => {
                self.check_authority()?;
                let file = core.namespace.lookup(parent, name)?;
                let inode = core.namespace.inode(file)?;
                let segment = class == FileClass::Log && self.layout.log_range(&path).is_some();
                let retain = segment && inode.nlink == 1 && inode.size > 0;
                let op = core.namespace.plan_unlink((parent, name), retain, now)?;
                self.commit(&mut core, op, Some(file))?;
                self.forget_if_unused(&mut core, file)
            }
        }
    }

    pub(super) fn rmdir(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let mut core = self.core.lock();
        match self.route(&core.namespace, parent, name)? {
            Route::Private(path) => {
                drop(core);
                self.private.rmdir(&path)
            }
            Route::Shared { parent, path, .. } => {
                self.check_authority()?;
                let op = core.namespace.plan_rmdir((parent, name), now)?;
                if self
                    .private
                    .list(&path)?
                    .iter()
                    .any(|e| self.shows_private(&e.path))
                {
                    return Err(Error::NotEmpty);
                }
                self.commit(&mut core, op, None)?;
                self.private.forget_directory(&path)
            }
        }
    }

    pub(super) fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let mut core = self.core.lock();
        let old = self.route(&core.namespace, from.0, from.1)?;
        let new = self.route(&core.namespace, to.0, to.1)?;
        match (old, new) {
            (Route::Private(old), Route::Private(new)) => {
                drop(core);
                self.private.rename(&old, &new, mode)
            }
            (
                Route::Shared {
                    parent: old,
                    path: old_path,
                    class: old_class,
                },
                Route::Shared {
                    parent: new,
                    path: new_path,
                    class: new_class,
                },
            ) => {
                self.check_authority()?;
                let classes = (new_class, old_class);
                let (from, to) = ((old, from.1), (new, to.1));
                let Some(op) = core.namespace.plan_rename(from, to, mode, classes, now)? else {
                    return Ok(());
                };
                let moved = core.namespace.lookup(from.0, from.1)?;
                let target = core.namespace.lookup(to.0, to.1).ok();
                let directory = core.namespace.inode(moved)?.kind == FileKind::Directory;
                self.commit(&mut core, op, Some(moved))?;
                if directory {
                    self.move_scaffold(&old_path, &new_path, mode)?;
                }
                match target {
                    Some(target) => self.forget_if_unused(&mut core, target),
                    None => Ok(()),
                }
            }
            _ => Err(Error::CrossDevice),
        }
    }

    /// A shared directory moved: the private files below it move with it.
    fn move_scaffold(&self, old: &str, new: &str, mode: RenameMode) -> Result<()> {
        match self.private.rename(old, new, mode) {
            Err(Error::NotFound) => Ok(()),
            other => other,
        }
    }

    /// True if a path of the private tree is shown, or only leads to something that is.
    fn shows_private(&self, path: &str) -> bool {
        self.layout.class(path) == FileClass::Private
    }

    pub(super) fn read_dir(&self, ino: Ino) -> Result<Vec<DirEntry>> {
        if is_private(ino) {
            let path = self.private.path(ino).ok_or(Error::NotFound)?;
            if self.private.attr(ino)?.kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            let entries = self.private.list(&path)?.into_iter();
            return Ok(entries
                .map(|e| DirEntry {
                    ino: e.ino,
                    kind: e.kind,
                    name: e.name.into_bytes(),
                })
                .collect());
        }
        let namespace = self.core.lock().namespace.clone();
        let directory = self.file_of(ino);
        let path = namespace.path_of(directory).ok_or(Error::NotFound)?;
        let mut entries = Vec::new();
        for (name, file) in namespace.directory(directory)? {
            let shared = match namespace.path_in(directory, name) {
                Some(path) => self.layout.class(&path) != FileClass::Private,
                None => true,
            };
            if shared && let Some(inode) = namespace.get(*file) {
                let ino = self.ino_of(*file);
                entries.push(DirEntry {
                    ino,
                    kind: inode.kind,
                    name: name.to_vec(),
                });
            }
        }
        for entry in self.private.list(&path)? {
            if self.shows_private(&entry.path) {
                let name = entry.name.into_bytes();
                entries.push(DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name,
                });
            }
        }
        Ok(entries)
    }

    pub(super) fn parent(&self, ino: Ino) -> Result<Ino> {
        let core = self.core.lock();
        if !is_private(ino) {
            let inode = core.namespace.inode(self.file_of(ino))?;
            return Ok(self.ino_of(inode.parent));
        }
        let path = self.private.path(ino).ok_or(Error::NotFound)?;
        let Some((parent, _)) = path.rsplit_once('/') else {
            return Ok(self.ino_of(ROOT));
        };
        match self.layout.class(parent) {
            FileClass::Private => Ok(self.private.lookup(parent)?.ino),
            _ => Ok(self.ino_of(core.namespace.resolve(parent)?)),
        }
    }

    /// Counts a handle; says what kind of file it is of.
    pub(super) fn open_file(&self, file: FileId) -> Result<FileClass> {
        let mut core = self.core.lock();
        let class = core.namespace.inode(file)?.class;
        *core.opens.entry(file).or_insert(0) += 1;
        Ok(class)
    }

    pub(super) fn release_file(&self, file: FileId) {
        let mut core = self.core.lock();
        let Some(count) = core.opens.get_mut(&file) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        core.opens.remove(&file);
        if let Err(e) = self.forget_if_unused(&mut core, file) {
            tracing::warn!(error = %e, %file, "could not forget a removed file");
        }
    }

    /// Starts a flush of the journal when much waits for one.
    pub(super) fn wants_flush(&self) -> bool {
        const LONG_BYTES: u64 = 1 << 20;
        self.journal.backlog_bytes() > LONG_BYTES
    }
}
