//! Changes of names and attributes on a standby, with POSIX results (pure).
//!
//! Data and configuration change in the overlay. In the log's directories names and contents are
//! always the shared ones: a change of a shared name there is accepted and has no effect, and what
//! is created beside them is a private stub (H8). Callers route private names to the local disk
//! before they come here; these functions take names that are shared.

use std::sync::Arc;

use imbl::OrdMap;

use super::hidden::hider_of;
use super::overlay::{Attrs, Created, InodeItem, NameItem, OwnCut, Stamped, is_created};
use super::state::{Found, State};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::namespace::Name;
use crate::view::{Attr, AttrChange, FileKind, Ino, NewInode, Ownership, RenameMode, Timestamp};

/// One name in one directory.
pub(crate) type At<'a> = (Ino, &'a [u8]);

impl State {
    /// The inode at a shared name. `CrossDevice` if the name is private.
    pub fn expect(&self, at: At<'_>) -> Result<Ino> {
        match self.find(at.0, at.1)? {
            Found::Inode(ino) => Ok(ino),
            Found::Nothing => Err(Error::NotFound),
            Found::Private(_) => Err(Error::CrossDevice),
        }
    }

    fn class_at(&self, at: At<'_>) -> Result<FileClass> {
        Ok(self.layout.standby_class(&self.path_in(at.0, at.1)?))
    }

    /// Creates a file, a directory or a symbolic link.
    pub fn create(
        &mut self,
        at: At<'_>,
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> Result<Attr> {
        match self.find(at.0, at.1)? {
            Found::Inode(_) => return Err(Error::Exists),
            Found::Private(_) => return Err(Error::CrossDevice),
            Found::Nothing => {}
        }
        let class = self.class_at(at)?;
        self.remove_orphan_init(at);
        let ino = self.overlay.next_ino();
        let item = self.new_item(at, class, new, ownership, now);
        self.overlay.inodes.insert(ino, Arc::new(item));
        self.lead(at, Some(ino), class);
        self.attr(ino)
    }

    /// Redo makes no other fork of an unlogged relation than its init fork. So where it makes one that an init fork of the
    /// base hides, that is of another relation of the number, whose creation was lost with the end of a dead active's
    /// log: with it in place, PostgreSQL would empty the new one when it is promoted.
    fn remove_orphan_init(&mut self, (dir, name): At<'_>) {
        let by = hider_of(&*self.layout, name);
        let Some(by) = by.as_deref().map(str::as_bytes) else {
            return;
        };
        let is_of_base = self.overlay.name(dir, by).is_none() && self.base_name(dir, by).is_some();
        if is_of_base {
            self.lead((dir, by), None, FileClass::Data);
        }
    }

    fn new_item(
        &self,
        at: At<'_>,
        class: FileClass,
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> InodeItem {
        let stamp = self.stamp();
        let (kind, target) = match new {
            NewInode::File => (FileKind::File, None),
            NewInode::Directory => (FileKind::Directory, None),
            NewInode::Symlink(target) => (FileKind::Symlink, Some(target)),
        };
        let size = target.as_ref().map_or(0, |t| t.len() as u64);
        let attrs = Attrs {
            mode: ownership.mode,
            uid: ownership.uid,
            gid: ownership.gid,
            mtime: now,
            ctime: now,
        };
        InodeItem {
            created: Some(Created {
                kind,
                class,
                target,
                stamp,
                adopted: None,
            }),
            home: Some((at.0, Name::from(at.1))),
            nlink: Some(if kind == FileKind::Directory { 2 } else { 1 }),
            size: Some(Stamped { value: size, stamp }),
            attrs: Some(Stamped {
                value: attrs,
                stamp,
            }),
            // A private create hides the base's blocks of the inode it will adopt (rule 4).
            cuts: vec![OwnCut {
                first_block: 0,
                stamp,
            }],
            in_use_since_cut: true,
            ..InodeItem::default()
        }
    }

    /// Makes a name lead somewhere, or nowhere.
    fn lead(&mut self, at: At<'_>, target: Option<Ino>, class: FileClass) {
        let hides = match class {
            FileClass::Data => self.base_name(at.0, at.1),
            _ => self
                .directory_id(at.0)
                .and_then(|dir| self.live.lookup(dir, at.1).ok()),
        };
        let earlier = self.overlay.name(at.0, at.1).and_then(|i| i.hides);
        // What later bases must not bring back is known by a whiteout only. Log and configuration
        // have no bases, so there nothing hidden means nothing to say.
        if target.is_none() && hides.is_none() && class != FileClass::Data {
            return self.overlay.remove_name(at.0, at.1);
        }
        let item = NameItem {
            target,
            hides: hides.or(earlier),
            stamp: self.stamp(),
        };
        self.overlay.put_name(at.0, Name::from(at.1), item);
    }

    /// Gives an inode one more name.
    pub fn link(&mut self, ino: Ino, at: At<'_>, now: Timestamp) -> Result<Attr> {
        if self.kind(ino)? == FileKind::Directory {
            return Err(Error::NotPermitted("a directory has one name"));
        }
        match self.find(at.0, at.1)? {
            Found::Inode(_) => return Err(Error::Exists),
            Found::Private(_) => return Err(Error::CrossDevice),
            Found::Nothing => {}
        }
        let class = self.class_at(at)?;
        if class != self.class(ino)? {
            return Err(Error::CrossDevice);
        }
        if class == FileClass::Log && !is_created(ino) {
            return self.attr(ino);
        }
        let nlink = self.attr(ino)?.nlink + 1;
        self.touch(ino, now)?;
        let item = self.overlay.item_mut(ino);
        item.nlink = Some(nlink);
        item.home = Some((at.0, Name::from(at.1)));
        self.lead(at, Some(ino), class);
        self.attr(ino)
    }

    /// Removes a name of a file or symbolic link; returns the inode that lost it, if one did.
    pub fn unlink(&mut self, at: At<'_>, now: Timestamp) -> Result<Option<Ino>> {
        let ino = self.expect(at)?;
        if self.kind(ino)? == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        let class = self.class_at(at)?;
        if class == FileClass::Log && !is_created(ino) {
            return Ok(None);
        }
        self.drop_link(ino, now)?;
        self.lead(at, None, class);
        Ok(Some(ino))
    }

    fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let nlink = match self.kind(ino)? {
            FileKind::Directory => 0,
            _ => self.attr(ino)?.nlink.saturating_sub(1),
        };
        self.touch(ino, now)?;
        self.overlay.item_mut(ino).nlink = Some(nlink);
        Ok(())
    }

    /// Forgets what the overlay holds for an inode without names. Call when it is not open. Of a
    /// shared inode it stays known that it is gone.
    pub fn reap(&mut self, ino: Ino) {
        let Some(item) = self.item(ino).filter(|i| i.nlink == Some(0)) else {
            return;
        };
        if item.created.as_ref().is_some_and(|c| c.adopted.is_none()) {
            self.overlay.inodes.remove(&ino);
            self.overlay.names.remove(&ino);
        } else {
            self.overlay.item_mut(ino).blocks = OrdMap::new();
        }
    }

    /// Removes a directory that shows no names here; the caller has looked at private names.
    pub fn rmdir(&mut self, at: At<'_>, now: Timestamp) -> Result<Ino> {
        let ino = self.expect(at)?;
        self.expect_directory(ino)?;
        if !self.list(ino)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let class = self.class_at(at)?;
        if class == FileClass::Log && !is_created(ino) {
            return Ok(ino);
        }
        self.drop_link(ino, now)?;
        self.lead(at, None, class);
        Ok(ino)
    }

    /// Renames in one step; returns the inode that lost its name at the destination, if one did.
    pub fn rename(
        &mut self,
        from: At<'_>,
        to: At<'_>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<Option<Ino>> {
        let ino = self.expect(from)?;
        let there = match self.find(to.0, to.1)? {
            Found::Private(_) => return Err(Error::CrossDevice),
            Found::Inode(there) => Some(there),
            Found::Nothing => None,
        };
        let (from_class, to_class) = (self.class_at(from)?, self.class_at(to)?);
        if from_class == FileClass::Log || to_class == FileClass::Log {
            return self.rename_log((from, from_class), (to, to_class), (ino, there), mode);
        }
        if from_class != to_class && !is_created(ino) {
            return Err(Error::CrossDevice);
        }
        self.check_rename(ino, there, to, mode)?;
        if there == Some(ino) {
            return Ok(None);
        }
        let lost = match (mode, there) {
            (RenameMode::Exchange, Some(there)) => {
                self.place(there, from, from_class, now)?;
                None
            }
            (_, lost) => {
                self.lead(from, None, from_class);
                lost
            }
        };
        if let Some(lost) = lost {
            self.drop_link(lost, now)?;
        }
        self.place(ino, to, to_class, now)?;
        Ok(lost)
    }

    fn place(&mut self, ino: Ino, at: At<'_>, class: FileClass, now: Timestamp) -> Result<()> {
        self.touch(ino, now)?;
        let item = self.overlay.item_mut(ino);
        item.home = Some((at.0, Name::from(at.1)));
        if let Some(created) = item.created.as_mut() {
            created.class = class;
        }
        self.lead(at, Some(ino), class);
        Ok(())
    }

    fn check_rename(
        &self,
        ino: Ino,
        there: Option<Ino>,
        to: At<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let directory = self.kind(ino)? == FileKind::Directory;
        if directory && self.is_inside(to.0, ino)? {
            return Err(Error::Invalid("a directory cannot move into itself"));
        }
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => Err(Error::Exists),
            (RenameMode::Exchange, None) => Err(Error::NotFound),
            (RenameMode::Replace, Some(there)) if there != ino => {
                match (directory, self.kind(there)? == FileKind::Directory) {
                    (true, false) => Err(Error::NotDirectory),
                    (false, true) => Err(Error::IsDirectory),
                    (true, true) if !self.list(there)?.is_empty() => Err(Error::NotEmpty),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn is_inside(&self, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            at = self.parent(at)?;
        }
    }

    /// A rename in the log's directories: a shared file stays where it is, and a stub that meets a
    /// shared file gives way to it.
    fn rename_log(
        &mut self,
        (from, from_class): (At<'_>, FileClass),
        (to, to_class): (At<'_>, FileClass),
        (ino, there): (Ino, Option<Ino>),
        mode: RenameMode,
    ) -> Result<Option<Ino>> {
        if from_class != to_class {
            return Err(Error::CrossDevice);
        }
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, _) => return Err(Error::NotSupported),
            _ => {}
        }
        if !is_created(ino) || there == Some(ino) {
            return Ok(None);
        }
        self.lead(from, None, from_class);
        match there {
            Some(shared) if !is_created(shared) => {
                self.overlay.item_mut(ino).nlink = Some(0);
                Ok(Some(ino))
            }
            stub => {
                if let Some(stub) = stub {
                    self.overlay.item_mut(stub).nlink = Some(0);
                }
                self.overlay.item_mut(ino).home = Some((to.0, Name::from(to.1)));
                let item = NameItem {
                    target: Some(ino),
                    hides: None,
                    stamp: self.stamp(),
                };
                self.overlay.put_name(to.0, Name::from(to.1), item);
                Ok(stub)
            }
        }
    }

    /// Changes attributes other than the size.
    pub fn set_attr(&mut self, ino: Ino, change: AttrChange, now: Timestamp) -> Result<Attr> {
        if !self.is_ignored(ino)? {
            let attr = self.attr(ino)?;
            let value = Attrs {
                mode: change.mode.unwrap_or(attr.mode),
                uid: change.uid.unwrap_or(attr.uid),
                gid: change.gid.unwrap_or(attr.gid),
                mtime: change.mtime.unwrap_or(attr.mtime),
                ctime: now,
            };
            let stamp = self.stamp();
            self.overlay.item_mut(ino).attrs = Some(Stamped { value, stamp });
        }
        self.attr(ino)
    }

    /// True if changes of an inode are accepted without effect: a shared file of the log, or a stub
    /// at a segment's name, whose contents can only come from the shared log.
    pub fn is_ignored(&self, ino: Ino) -> Result<bool> {
        if self.class(ino)? != FileClass::Log || self.kind(ino)? != FileKind::File {
            return Ok(false);
        }
        if self.shared(ino).is_some() {
            return Ok(true);
        }
        Ok(self.layout.log_range(&self.path(ino)?).is_some())
    }

    fn touch(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        self.set_attr(ino, AttrChange::default(), now).map(drop)
    }
}
