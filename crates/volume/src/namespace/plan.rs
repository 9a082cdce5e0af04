//! Whether an operation is allowed, and the [`Op`] that does it. POSIX's rules live here; applying
//! needs none of them.

use dax::ids::{BlockIndex, FileId, Version};

use super::op::Op;
use super::{Cut, Inode, Namespace, ROOT};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::view::{AttrChange, FileKind, NewInode, Ownership, RenameMode, Timestamp};

/// Longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Most names of one file.
pub const MAX_LINKS: u32 = 65_000;
/// Largest file, in bytes.
pub const MAX_SIZE_BYTES: u64 = 1 << 46;

/// A name in a directory.
pub type Place<'a> = (FileId, &'a [u8]);

/// Refuses names that no directory can hold.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::NameTooLong);
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, b'/' | 0))
    {
        return Err(Error::Invalid("not a file name"));
    }
    Ok(())
}

/// Refuses symbolic links that leave the volume (H11): absolute ones, and relative ones that climb
/// above the root from the directory at `directory_path`.
pub fn check_symlink(directory_path: &str, target: &[u8]) -> Result<()> {
    const LEAVES: &str =
        "a symbolic link out of the volume would point at data that is not replicated";
    if target.is_empty() || target.contains(&0) {
        return Err(Error::Invalid("empty symbolic link"));
    }
    if target[0] == b'/' {
        return Err(Error::NotPermitted(LEAVES));
    }
    let mut depth = directory_path.split('/').filter(|c| !c.is_empty()).count();
    for component in target.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => depth = depth.checked_sub(1).ok_or(Error::NotPermitted(LEAVES))?,
            _ => depth += 1,
        }
    }
    Ok(())
}

impl Namespace {
    /// A new file, directory or symbolic link.
    pub fn plan_create(
        &self,
        (parent, name): Place<'_>,
        id: FileId,
        new: NewInode,
        class: FileClass,
        ownership: Ownership,
        at: Timestamp,
    ) -> Result<Op> {
        check_name(name)?;
        self.check_free(parent, name)?;
        let (kind, target) = match new {
            NewInode::File => (FileKind::File, None),
            NewInode::Directory => (FileKind::Directory, None),
            NewInode::Symlink(target) => {
                let path = self.path_of(parent).ok_or(Error::NotFound)?;
                check_symlink(&path, &target)?;
                (FileKind::Symlink, Some(target))
            }
        };
        Ok(Op::Create {
            id,
            parent,
            name: name.to_vec(),
            kind,
            class,
            mode: ownership.mode,
            uid: ownership.uid,
            gid: ownership.gid,
            target,
            at,
        })
    }

    /// One more name.
    pub fn plan_link(&self, id: FileId, (parent, name): Place<'_>, at: Timestamp) -> Result<Op> {
        check_name(name)?;
        let inode = self.inode(id)?;
        if inode.kind == FileKind::Directory {
            return Err(Error::NotPermitted("a directory has one name"));
        }
        if !inode.is_linked() {
            return Err(Error::NotFound);
        }
        if inode.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        self.check_free(parent, name)?;
        Ok(Op::Link {
            id,
            parent,
            name: name.to_vec(),
            at,
        })
    }

    /// One name less. `retain` keeps what loses its last name for standbys.
    pub fn plan_unlink(
        &self,
        (parent, name): Place<'_>,
        retain: bool,
        at: Timestamp,
    ) -> Result<Op> {
        let id = self.lookup(parent, name)?;
        if self.inode(id)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        Ok(Op::Unlink {
            parent,
            name: name.to_vec(),
            retain,
            at,
        })
    }

    /// One directory less.
    pub fn plan_rmdir(&self, (parent, name): Place<'_>, at: Timestamp) -> Result<Op> {
        let id = self.lookup(parent, name)?;
        if !self.directory(id)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        Ok(Op::RemoveDirectory {
            parent,
            name: name.to_vec(),
            at,
        })
    }

    /// A rename or exchange. `class` is that of the new path, `from_class` that of the old one
    /// after an exchange. `None`: nothing to do.
    pub fn plan_rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        classes: (FileClass, FileClass),
        at: Timestamp,
    ) -> Result<Option<Op>> {
        check_name(to.1)?;
        let id = self.lookup(from.0, from.1)?;
        let target = self.directory(to.0)?.get(to.1).copied();
        let inode = self.inode(id)?;
        self.check_not_inside(id, to.0)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (_, Some(target)) if target == id => return Ok(None),
            (RenameMode::Exchange, Some(target)) => {
                self.check_not_inside(target, from.0)?;
                let other = self.inode(target)?;
                if inode.class != classes.0 || other.class != classes.1 {
                    return Err(Error::CrossDevice);
                }
                return Ok(Some(Op::Exchange {
                    from: from.0,
                    from_name: from.1.to_vec(),
                    to: to.0,
                    to_name: to.1.to_vec(),
                    at,
                }));
            }
            (_, Some(target)) => self.check_replace(inode, target)?,
            (_, None) => {}
        }
        Ok(Some(Op::Rename {
            from: from.0,
            from_name: from.1.to_vec(),
            to: to.0,
            to_name: to.1.to_vec(),
            class: self.class_after(id, inode, classes.0)?,
            at,
        }))
    }

    /// Attributes other than the size. `None`: nothing to do.
    pub fn plan_set_attr(
        &self,
        id: FileId,
        change: AttrChange,
        at: Timestamp,
    ) -> Result<Option<Op>> {
        self.inode(id)?;
        let AttrChange {
            mode,
            uid,
            gid,
            mtime,
            size: _,
        } = change;
        if mode.is_none() && uid.is_none() && gid.is_none() && mtime.is_none() {
            return Ok(None);
        }
        Ok(Some(Op::SetAttr {
            id,
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            mtime,
            at,
        }))
    }

    /// A larger size. `None`: the file is that large already.
    pub fn plan_grow(&self, id: FileId, size: u64, at: Timestamp) -> Result<Option<Op>> {
        let inode = self.file(id)?;
        check_size(size)?;
        Ok((size > inode.size).then_some(Op::SetSize { id, size, at }))
    }

    /// A new size, smaller or larger. `version` marks the cut. `None`: nothing to do.
    pub fn plan_resize(
        &self,
        id: FileId,
        size: u64,
        block_size_bytes: u64,
        version: Version,
        at: Timestamp,
    ) -> Result<Option<Op>> {
        let inode = self.file(id)?;
        check_size(size)?;
        if size >= inode.size {
            return self.plan_grow(id, size, at);
        }
        let first_block = BlockIndex(size.div_ceil(block_size_bytes));
        Ok(Some(Op::Truncate {
            id,
            size,
            cut: Cut {
                first_block,
                version,
            },
            at,
        }))
    }

    /// The inode of a regular file.
    pub fn file(&self, id: FileId) -> Result<&Inode> {
        let inode = self.inode(id)?;
        match inode.kind {
            FileKind::File => Ok(inode),
            FileKind::Directory => Err(Error::IsDirectory),
            FileKind::Symlink => Err(Error::Invalid("a symbolic link has no contents")),
        }
    }

    fn check_free(&self, parent: FileId, name: &[u8]) -> Result<()> {
        match self.directory(parent)?.contains_key(name) {
            true => Err(Error::Exists),
            false => Ok(()),
        }
    }

    /// A directory must not move below itself.
    fn check_not_inside(&self, id: FileId, directory: FileId) -> Result<()> {
        let mut at = directory;
        while at != ROOT {
            if at == id {
                return Err(Error::Invalid("a directory cannot move into itself"));
            }
            at = self.inode(at)?.parent;
        }
        Ok(())
    }

    fn check_replace(&self, inode: &Inode, target: FileId) -> Result<()> {
        let replaced = self.inode(target)?;
        match (
            inode.kind == FileKind::Directory,
            replaced.kind == FileKind::Directory,
        ) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !self.directory(target)?.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    /// The class after a move to a path of class `class`. Blocks that were written one way cannot
    /// be read the other, so only an empty file changes between versioned and single blocks.
    fn class_after(&self, id: FileId, inode: &Inode, class: FileClass) -> Result<FileClass> {
        if inode.class == class || (inode.class == FileClass::Data) == (class == FileClass::Data) {
            return Ok(class);
        }
        let empty = match self.directories.get(&id) {
            Some(names) => names.is_empty(),
            None => inode.size == 0 || inode.kind == FileKind::Symlink,
        };
        if empty {
            Ok(class)
        } else {
            Err(Error::CrossDevice)
        }
    }
}

fn check_size(size: u64) -> Result<()> {
    if size > MAX_SIZE_BYTES {
        return Err(Error::TooLarge);
    }
    Ok(())
}
