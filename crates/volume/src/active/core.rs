//! What the core lock guards: the namespace, the open generation, and who has what open.

use std::collections::{HashMap, HashSet};

use dax::ids::{Epoch, FileId, Generation};

use super::Inner;
use crate::error::Result;
use crate::journal::JournalPos;
use crate::layout::FileClass;
use crate::lists::Writes;
use crate::namespace::op::Op;
use crate::namespace::{Inode, Namespace};
use crate::seal::Seal;
use crate::view::{Attr, Timestamp};

/// The state behind the core lock.
pub(super) struct Core {
    pub namespace: Namespace,
    /// Data writes belong to this generation.
    pub open: Generation,
    pub next_file: u64,
    /// Open handles of shared files.
    pub opens: HashMap<FileId, u64>,
    /// Contents changed at this time, not journalled before the next cut.
    pub mtimes: HashMap<FileId, Timestamp>,
    pub seals: Vec<Seal>,
    /// For ids among the removed files: every namespace taken after this journal position is without them.
    pub buried: HashMap<FileId, JournalPos>,
    /// Those of them that were segments of the log: no image needs them, although it names them.
    pub forgotten_log: HashSet<FileId>,
    /// Data blocks written since the last seal.
    pub writes: Writes,
}

impl Core {
    pub fn new(
        namespace: Namespace,
        open: Generation,
        next_file: u64,
        opens: HashMap<FileId, u64>,
        seals: Vec<Seal>,
        buried: Vec<(FileId, JournalPos)>,
        writes: Writes,
    ) -> Core {
        let before = |at: JournalPos| JournalPos(at.0.saturating_sub(1));
        Core {
            namespace,
            open,
            next_file,
            opens,
            mtimes: HashMap::new(),
            seals,
            buried: buried
                .into_iter()
                .map(|(id, at)| (id, before(at)))
                .collect(),
            forgotten_log: HashSet::new(),
            writes,
        }
    }

    pub fn allocate(&mut self, epoch: Epoch) -> FileId {
        let id = FileId::new(epoch, self.next_file);
        self.next_file += 1;
        id
    }

    /// The generation that a write of a file of this class belongs to.
    pub fn generation(&self, class: FileClass) -> Generation {
        match class {
            FileClass::Data => self.open,
            _ => Generation::SINGLE,
        }
    }

    pub fn is_open(&self, file: FileId) -> bool {
        self.opens.contains_key(&file)
    }
}

impl Inner {
    /// Applies one operation and puts it into the journal. `also`: see the journal's `append`.
    pub(super) fn commit(&self, core: &mut Core, op: Op, also: Option<FileId>) -> Result<()> {
        let buried = core.namespace.apply(&op)?;
        let before = self.journal.framed_end();
        core.buried
            .extend(buried.into_iter().map(|id| (id, before)));
        self.journal.append(op, also);
        Ok(())
    }

    /// Fails once a higher epoch is known. Operations that only change names touch no storage
    /// before their fsync; this keeps a fenced view from answering them.
    pub(super) fn check_authority(&self) -> Result<()> {
        self.storage.next_version()?;
        Ok(())
    }

    pub(super) fn attr_of(&self, core: &Core, file: FileId, inode: &Inode) -> Attr {
        let mut attr = inode.attr(self.ino_of(file));
        if let Some(mtime) = core.mtimes.get(&file) {
            attr.mtime = *mtime;
            attr.atime = *mtime;
            attr.ctime = attr.ctime.max(*mtime);
        }
        attr
    }

    /// Forgets a file that has neither names nor open handles.
    pub(super) fn forget_if_unused(&self, core: &mut Core, file: FileId) -> Result<()> {
        if core.is_open(file) || !core.namespace.is_orphan(file) {
            return Ok(());
        }
        core.mtimes.remove(&file);
        if let Some(write_back) = &self.write_back {
            write_back
                .blocks
                .discard_from(file, dax::ids::BlockIndex(0));
        }
        self.commit(core, Op::Forget { id: file }, None)
    }

    /// Forgets what a dead epoch left open and unlinked.
    pub(super) fn forget_orphans(&self) -> Result<()> {
        let mut core = self.core.lock();
        let orphans: Vec<FileId> = core.namespace.orphans().collect();
        orphans
            .into_iter()
            .try_for_each(|file| self.forget_if_unused(&mut core, file))
    }
}
