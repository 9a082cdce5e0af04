//! How each [`Op`] changes the namespace. Total and deterministic: an operation that does not fit
//! the state fails and changes nothing (a damaged journal), it never panics.

use std::sync::Arc;

use dax::ids::FileId;

use super::op::Op;
use super::{Directory, Inode, Name, Namespace};
use crate::error::{Error, Result};
use crate::view::{FileKind, Timestamp};

impl Namespace {
    /// Applies one operation. Returns the ids that left the namespace by it.
    ///
    /// # Errors
    /// `Damaged` if it does not fit the state; the state is unchanged then.
    pub fn apply(&mut self, op: &Op) -> Result<Vec<FileId>> {
        match op {
            Op::Opened { .. } => Ok(Vec::new()),
            Op::Create { .. } => self.apply_create(op).map(none),
            Op::Link {
                id,
                parent,
                name,
                at,
            } => self.apply_link(*id, *parent, name, *at).map(none),
            Op::Unlink {
                parent,
                name,
                retain,
                at,
            } => self.apply_unlink(*parent, name, *retain, *at),
            Op::RemoveDirectory { parent, name, at } => self.apply_rmdir(*parent, name, *at),
            Op::Rename { .. } => self.apply_rename(op),
            Op::Exchange {
                from,
                from_name,
                to,
                to_name,
                at,
            } => self
                .apply_exchange((*from, from_name), (*to, to_name), *at)
                .map(none),
            Op::SetAttr { .. } | Op::SetSize { .. } | Op::Truncate { .. } => {
                self.apply_attributes(op).map(none)
            }
            Op::Forget { id } => self.apply_forget(*id),
            Op::Reclaimed { ids } => {
                ids.iter().for_each(|id| {
                    self.removed.remove(id);
                });
                Ok(Vec::new())
            }
            Op::Bury { ids } => {
                self.removed.extend(ids.iter().copied());
                Ok(ids.clone())
            }
            Op::PutInode { id, inode } => {
                self.put_inode(*id, inode.clone());
                Ok(Vec::new())
            }
            Op::PutName { parent, name, id } => self.put_name(*parent, name, *id).map(none),
            Op::DropName { parent, name } => self.drop_name(*parent, name).map(none),
            Op::DropInode { id } => {
                self.need(*id)?;
                Ok(self.bury(*id))
            }
            Op::PutRetained { parent, name, id } => {
                self.need(*id)?;
                self.orphans.remove(id);
                self.retained
                    .entry(*parent)
                    .or_default()
                    .insert(Name::from(&name[..]), *id);
                Ok(Vec::new())
            }
        }
    }

    fn need(&self, id: FileId) -> Result<&Arc<Inode>> {
        self.inodes.get(&id).ok_or_else(|| damaged("inode", id))
    }

    fn change(&mut self, id: FileId, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            change(Arc::make_mut(inode));
        }
    }

    fn need_directory(&self, id: FileId) -> Result<&Directory> {
        self.directories
            .get(&id)
            .ok_or_else(|| damaged("directory", id))
    }

    fn need_name(&self, parent: FileId, name: &[u8]) -> Result<FileId> {
        let found = self.need_directory(parent)?.get(name).copied();
        found.ok_or_else(|| {
            let name = String::from_utf8_lossy(name).into_owned();
            Error::Damaged(format!(
                "journal needs the name {name:?} in {parent}, which is not there"
            ))
        })
    }

    fn need_no_name(&self, parent: FileId, name: &[u8]) -> Result<()> {
        if self.need_directory(parent)?.contains_key(name) {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(Error::Damaged(format!(
                "journal makes {name:?} in {parent} a second time"
            )));
        }
        Ok(())
    }

    fn insert_name(&mut self, parent: FileId, name: Name, id: FileId) {
        if let Some(names) = self.directories.get_mut(&parent) {
            names.insert(name, id);
        }
    }

    fn remove_name(&mut self, parent: FileId, name: &[u8]) {
        if let Some(names) = self.directories.get_mut(&parent) {
            names.remove(name);
        }
    }

    fn stamp_directory(&mut self, id: FileId, at: Timestamp) {
        self.change(id, |inode| {
            inode.mtime = at;
            inode.ctime = at;
        });
    }

    fn apply_create(&mut self, op: &Op) -> Result<()> {
        let Op::Create {
            id,
            parent,
            name,
            kind,
            class,
            mode,
            uid,
            gid,
            target,
            at,
        } = op
        else {
            return Ok(());
        };
        self.need_no_name(*parent, name)?;
        if self.inodes.contains_key(id) || self.removed.contains(id) {
            return Err(Error::Damaged(format!(
                "journal makes the inode {id} a second time"
            )));
        }
        let is_directory = *kind == FileKind::Directory;
        let name = Name::from(&name[..]);
        let inode = Inode {
            kind: *kind,
            class: *class,
            mode: *mode,
            uid: *uid,
            gid: *gid,
            nlink: if is_directory { 2 } else { 1 },
            size: target.as_ref().map_or(0, |t| t.len() as u64),
            mtime: *at,
            ctime: *at,
            cuts: Vec::new(),
            target: target.clone(),
            parent: *parent,
            name: name.clone(),
        };
        self.inodes.insert(*id, Arc::new(inode));
        if is_directory {
            self.directories.insert(*id, Directory::new());
            self.change(*parent, |inode| inode.nlink += 1);
        }
        self.insert_name(*parent, name, *id);
        self.stamp_directory(*parent, *at);
        Ok(())
    }

    fn apply_link(&mut self, id: FileId, parent: FileId, name: &[u8], at: Timestamp) -> Result<()> {
        self.need(id)?;
        self.need_no_name(parent, name)?;
        let name = Name::from(name);
        self.insert_name(parent, name.clone(), id);
        self.orphans.remove(&id);
        self.change(id, |inode| {
            inode.nlink += 1;
            inode.ctime = at;
            inode.parent = parent;
            inode.name = name;
        });
        self.stamp_directory(parent, at);
        Ok(())
    }

    /// Takes one name's worth of links from a file; the last one makes it an orphan, or retained.
    fn lose_link(
        &mut self,
        id: FileId,
        (parent, name): (FileId, &[u8]),
        retain: bool,
        at: Timestamp,
    ) -> Vec<FileId> {
        self.change(id, |inode| {
            inode.nlink = inode.nlink.saturating_sub(1);
            inode.ctime = at;
        });
        let inode = self.get(id);
        let (is_home, linked) = inode.map_or((false, false), |inode| {
            (
                inode.parent == parent && *inode.name == *name,
                inode.is_linked(),
            )
        });
        if linked {
            if is_home {
                self.find_home(id);
            }
            return Vec::new();
        }
        if !retain {
            self.orphans.insert(id);
            return Vec::new();
        }
        let names = self.retained.entry(parent).or_default();
        match names.insert(Name::from(name), id) {
            Some(older) => self.bury(older),
            None => Vec::new(),
        }
    }

    /// A file with several names lost the one its path was built from: take the first other one.
    fn find_home(&mut self, id: FileId) {
        let home = self.directories.iter().find_map(|(dir, names)| {
            let (name, _) = names.iter().find(|(_, to)| **to == id)?;
            Some((*dir, name.clone()))
        });
        if let Some((dir, name)) = home {
            self.change(id, |inode| {
                inode.parent = dir;
                inode.name = name;
            });
        }
    }

    fn apply_unlink(
        &mut self,
        parent: FileId,
        name: &[u8],
        retain: bool,
        at: Timestamp,
    ) -> Result<Vec<FileId>> {
        let id = self.need_name(parent, name)?;
        if self.directories.contains_key(&id) {
            return Err(Error::Damaged(format!(
                "journal unlinks the directory {id}"
            )));
        }
        self.remove_name(parent, name);
        let buried = self.lose_link(id, (parent, name), retain, at);
        self.stamp_directory(parent, at);
        Ok(buried)
    }

    fn apply_rmdir(&mut self, parent: FileId, name: &[u8], at: Timestamp) -> Result<Vec<FileId>> {
        let id = self.need_name(parent, name)?;
        if !self.need_directory(id)?.is_empty() {
            return Err(Error::Damaged(format!(
                "journal removes the directory {id}, which is not empty"
            )));
        }
        self.remove_name(parent, name);
        let buried = self.drop_directory(id, parent);
        self.stamp_directory(parent, at);
        Ok(buried)
    }

    fn drop_directory(&mut self, id: FileId, parent: FileId) -> Vec<FileId> {
        let retained = self.retained.remove(&id).unwrap_or_default();
        let mut buried: Vec<FileId> = retained.values().copied().collect();
        for id in &buried {
            self.inodes.remove(id);
            self.removed.insert(*id);
        }
        self.change(parent, |inode| inode.nlink = inode.nlink.saturating_sub(1));
        buried.extend(self.bury(id));
        buried
    }

    fn apply_rename(&mut self, op: &Op) -> Result<Vec<FileId>> {
        let Op::Rename {
            from,
            from_name,
            to,
            to_name,
            class,
            at,
        } = op
        else {
            return Ok(Vec::new());
        };
        let id = self.need_name(*from, from_name)?;
        let replaced = self.need_directory(*to)?.get(&to_name[..]).copied();
        if replaced == Some(id) {
            return Ok(Vec::new());
        }
        if let Some(old) = replaced
            && self
                .directories
                .get(&old)
                .is_some_and(|names| !names.is_empty())
        {
            return Err(Error::Damaged(format!(
                "journal replaces the directory {old}, which is not empty"
            )));
        }
        self.remove_name(*from, from_name);
        let mut buried = Vec::new();
        if let Some(old) = replaced {
            self.remove_name(*to, to_name);
            if self.directories.contains_key(&old) {
                buried = self.drop_directory(old, *to);
            } else {
                buried = self.lose_link(old, (*to, to_name), false, *at);
            }
        }
        self.insert_name(*to, Name::from(&to_name[..]), id);
        self.change(id, |inode| inode.class = *class);
        self.moved(id, *from, *to, to_name, *at);
        Ok(buried)
    }

    /// An inode got a new home.
    fn moved(&mut self, id: FileId, from: FileId, to: FileId, name: &[u8], at: Timestamp) {
        self.change(id, |inode| {
            inode.parent = to;
            inode.name = Name::from(name);
            inode.ctime = at;
        });
        if from != to && self.directories.contains_key(&id) {
            self.change(from, |inode| inode.nlink = inode.nlink.saturating_sub(1));
            self.change(to, |inode| inode.nlink += 1);
        }
        self.stamp_directory(from, at);
        self.stamp_directory(to, at);
    }

    fn apply_exchange(
        &mut self,
        (from, from_name): (FileId, &[u8]),
        (to, to_name): (FileId, &[u8]),
        at: Timestamp,
    ) -> Result<()> {
        let one = self.need_name(from, from_name)?;
        let other = self.need_name(to, to_name)?;
        self.insert_name(from, Name::from(from_name), other);
        self.insert_name(to, Name::from(to_name), one);
        self.moved(one, from, to, to_name, at);
        self.moved(other, to, from, from_name, at);
        Ok(())
    }

    fn apply_attributes(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::SetAttr {
                id,
                mode,
                uid,
                gid,
                mtime,
                at,
            } => {
                self.need(*id)?;
                self.change(*id, |inode| {
                    inode.mode = mode.unwrap_or(inode.mode);
                    inode.uid = uid.unwrap_or(inode.uid);
                    inode.gid = gid.unwrap_or(inode.gid);
                    inode.mtime = mtime.unwrap_or(inode.mtime);
                    inode.ctime = *at;
                });
            }
            Op::SetSize { id, size, at } => {
                self.need(*id)?;
                self.change(*id, |inode| {
                    inode.size = *size;
                    inode.mtime = *at;
                    inode.ctime = *at;
                });
            }
            Op::Truncate { id, size, cut, at } => {
                self.need(*id)?;
                self.change(*id, |inode| {
                    inode.size = *size;
                    inode.add_cut(*cut);
                    inode.mtime = *at;
                    inode.ctime = *at;
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_forget(&mut self, id: FileId) -> Result<Vec<FileId>> {
        let inode = self.need(id)?.clone();
        if inode.is_linked() {
            return Err(Error::Damaged(format!(
                "journal forgets {id}, which still has names"
            )));
        }
        if let Some(names) = self.retained.get_mut(&inode.parent)
            && names.get(&inode.name) == Some(&id)
        {
            names.remove(&inode.name);
            if names.is_empty() {
                self.retained.remove(&inode.parent);
            }
        }
        Ok(self.bury(id))
    }

    fn bury(&mut self, id: FileId) -> Vec<FileId> {
        self.inodes.remove(&id);
        self.directories.remove(&id);
        self.orphans.remove(&id);
        self.removed.insert(id);
        vec![id]
    }

    fn put_inode(&mut self, id: FileId, inode: Inode) {
        if inode.kind == FileKind::Directory {
            self.directories.entry(id).or_default();
        }
        let orphan = !inode.is_linked() && !self.is_retained(id, &inode);
        if orphan {
            self.orphans.insert(id);
        } else {
            self.orphans.remove(&id);
        }
        // A takeover may bring a file back that the dead active had removed.
        self.removed.remove(&id);
        self.inodes.insert(id, Arc::new(inode));
    }

    fn is_retained(&self, id: FileId, inode: &Inode) -> bool {
        let names = self.retained.get(&inode.parent);
        names.is_some_and(|names| names.get(&inode.name) == Some(&id))
    }

    fn put_name(&mut self, parent: FileId, name: &[u8], id: FileId) -> Result<()> {
        self.need(id)?;
        self.need_directory(parent)?;
        self.insert_name(parent, Name::from(name), id);
        Ok(())
    }

    fn drop_name(&mut self, parent: FileId, name: &[u8]) -> Result<()> {
        self.need_name(parent, name)?;
        self.remove_name(parent, name);
        Ok(())
    }
}

/// Nothing left the namespace.
fn none((): ()) -> Vec<FileId> {
    Vec::new()
}

fn damaged(what: &str, id: FileId) -> Error {
    Error::Damaged(format!("journal needs the {what} {id}, which is not there"))
}
