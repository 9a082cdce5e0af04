//! Removing names with all that hangs on them (pure).

use dax::ids::FileId;

use super::Namespace;
use super::op::Op;
use crate::error::Result;
use crate::view::{FileKind, Timestamp};

impl Namespace {
    /// Removes a name of a file, and the file with its last one. Returns the operations, which are applied.
    pub(crate) fn unlink(&mut self, parent: FileId, name: &[u8], at: Timestamp) -> Result<Vec<Op>> {
        let id = self.lookup(parent, name)?;
        let mut ops = vec![self.plan_unlink((parent, name), false, at)?];
        self.apply(&ops[0])?;
        if !self.inode(id)?.is_linked() {
            let forget = Op::Forget { id };
            self.apply(&forget)?;
            ops.push(forget);
        }
        Ok(ops)
    }

    /// Removes everything in a directory. Returns the operations, which are applied.
    pub(crate) fn clear(&mut self, dir: FileId, at: Timestamp) -> Result<Vec<Op>> {
        let mut ops = Vec::new();
        for (name, id) in self.directory(dir)?.clone() {
            ops.extend(match self.inode(id)?.kind {
                FileKind::Directory => self.remove_tree(dir, &name, at)?,
                _ => self.unlink(dir, &name, at)?,
            });
        }
        Ok(ops)
    }

    /// Removes a directory with everything in it. Returns the operations, which are applied.
    pub(crate) fn remove_tree(
        &mut self,
        parent: FileId,
        name: &[u8],
        at: Timestamp,
    ) -> Result<Vec<Op>> {
        let mut ops = self.clear(self.lookup(parent, name)?, at)?;
        let remove = self.plan_rmdir((parent, name), at)?;
        self.apply(&remove)?;
        ops.push(remove);
        Ok(ops)
    }
}
