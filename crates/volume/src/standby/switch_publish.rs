//! Private files that become shared at a takeover: the standby's control file, and directories that
//! the shared ones become exactly (hazard H7).

use dax::ids::{BlockIndex, FileId, Version};

use crate::error::{Error, Result};
use crate::layout::{FileClass, Layout};
use crate::namespace::op::Op;
use crate::namespace::{Cut, Namespace};
use crate::private::PrivateDir;
use crate::view::{Attr, FileKind, Timestamp};

/// A file's contents on their way to shared storage.
pub(crate) struct Published {
    pub file: FileId,
    pub class: FileClass,
    pub data: Vec<u8>,
}

/// Makes the operations and the contents.
pub(crate) struct Publisher<'a, A> {
    pub layout: &'a dyn Layout,
    pub private: &'a PrivateDir,
    /// The namespace with all operations so far applied.
    pub namespace: Namespace,
    pub allocate: A,
    pub cut: Version,
    pub now: Timestamp,
    pub ops: Vec<Op>,
    pub contents: Vec<Published>,
}

impl<A: FnMut() -> FileId> Publisher<'_, A> {
    /// Publishes a private path, if there is something at it that an active shares.
    pub fn publish(&mut self, path: &str) -> Result<()> {
        if self.layout.class(path) == FileClass::Private {
            return Ok(());
        }
        match self.private.lookup(path) {
            Err(Error::NotFound) => Ok(()),
            Err(e) => Err(e),
            Ok(attr) if attr.kind == FileKind::Directory => self.directory(path, &attr),
            Ok(attr) => self.file(path, &attr),
        }
    }

    /// Publishes what a private directory has and the shared one has not.
    pub fn add(&mut self, directory: &str) -> Result<()> {
        for entry in self.private.list(directory)? {
            // Whoever writes it goes on with a name that leads nowhere.
            let is_unfinished = entry.name.ends_with(".tmp");
            if !is_unfinished && self.namespace.resolve(&entry.path).is_err() {
                self.publish(&entry.path)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op) -> Result<()> {
        self.namespace.apply(&op)?;
        self.ops.push(op);
        Ok(())
    }

    fn directory(&mut self, path: &str, attr: &Attr) -> Result<()> {
        let id = match self.namespace.resolve(path) {
            Ok(id) => id,
            Err(_) => self.create(path, attr)?,
        };
        let cleared = self.namespace.clear(id, self.now)?;
        self.ops.extend(cleared);
        for entry in self.private.list(path)? {
            self.publish(&entry.path)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &str, attr: &Attr) -> Result<()> {
        let data = std::fs::read(self.private.place(path)?)?;
        let size = data.len() as u64;
        let id = match self.namespace.resolve(path) {
            Ok(id) => id,
            Err(_) => self.create(path, attr)?,
        };
        let class = self.namespace.inode(id)?.class;
        let at = self.now;
        match class {
            // Hides what the image has; what is written now is newer.
            FileClass::Data => {
                let cut = Cut {
                    first_block: BlockIndex(0),
                    version: self.cut,
                };
                self.apply(Op::Truncate { id, size, cut, at })?;
            }
            _ => self.apply(Op::SetSize { id, size, at })?,
        }
        self.contents.push(Published {
            file: id,
            class,
            data,
        });
        Ok(())
    }

    fn create(&mut self, path: &str, attr: &Attr) -> Result<FileId> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.namespace.resolve(dir)?;
        let id = (self.allocate)();
        self.apply(Op::Create {
            id,
            parent,
            name: name.as_bytes().to_vec(),
            kind: attr.kind,
            class: self.layout.class(path),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            target: None,
            at: self.now,
        })?;
        Ok(id)
    }
}
