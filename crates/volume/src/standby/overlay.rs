//! The overlay: what the standby's PostgreSQL changed, kept privately on top of the base (rule 1).
//!
//! Plain data on persistent maps, so a state that somebody still reads costs nothing to keep. Every
//! item carries a **stamp**: the replay limit shown when it was made, an upper bound of the log that it
//! can reflect. Never a page's own LSN (H1). A move of the base drops items by their stamps alone
//! (rule 3; [`super::rebase`]).

use std::sync::Arc;

use dax::ids::FileId;
use imbl::OrdMap;

use super::blocks::BlockRef;
use crate::layout::FileClass;
use crate::lsn::Lsn;
use crate::namespace::Name;
use crate::private::PRIVATE_BIT;
pub(crate) use crate::private::is_private;
use crate::view::{FileKind, Ino, Timestamp};

/// Bit 62: an inode that redo created and that has no shared id yet.
const CREATED: u64 = 1 << 62;

/// True if redo created this inode.
pub fn is_created(ino: Ino) -> bool {
    ino.0 & (PRIVATE_BIT | CREATED) == CREATED
}

/// A value and the bound of the log that it can reflect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamped<T> {
    pub value: T,
    pub stamp: Lsn,
}

/// What a name leads to in the view, over what the base says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameItem {
    /// `None` is a whiteout.
    pub target: Option<Ino>,
    /// The shared inode that this item hides, if there is one.
    pub hides: Option<FileId>,
    pub stamp: Lsn,
}

/// A private truncation: blocks of the base from `first_block` on read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnCut {
    pub first_block: u64,
    pub stamp: Lsn,
}

/// What an overlay block holds.
#[derive(Clone)]
pub(crate) enum Content {
    /// Nothing but zeros; takes no memory.
    Zeros,
    Stored(BlockRef),
}

/// One block over the base's.
#[derive(Clone)]
pub(crate) struct BlockItem {
    pub content: Content,
    pub stamp: Lsn,
}

/// Attributes other than the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attrs {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// An inode that redo created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Created {
    pub kind: FileKind,
    pub class: FileClass,
    pub target: Option<Vec<u8>>,
    pub stamp: Lsn,
    /// The shared inode that it adopted; until then its whole content is private (rule 4).
    pub adopted: Option<FileId>,
}

/// What the overlay says of one inode; what it does not say is the base's.
#[derive(Clone, Default)]
pub(crate) struct InodeItem {
    /// `None` for inodes of the base.
    pub created: Option<Created>,
    /// Where it is, if it was created or moved here.
    pub home: Option<(Ino, Name)>,
    pub nlink: Option<u32>,
    pub size: Option<Stamped<u64>>,
    pub attrs: Option<Stamped<Attrs>>,
    /// Ascending in both block and stamp.
    pub cuts: Vec<OwnCut>,
    /// True if own redo made it with its last cut, or wrote to it after that: then it is no file that
    /// waits for its unlinking (N8).
    pub in_use_since_cut: bool,
    pub blocks: OrdMap<u64, BlockItem>,
}

impl InodeItem {
    /// The shared inode behind a created one, or `None` for "the inode itself" and for "nothing".
    pub fn adopted(&self) -> Option<FileId> {
        self.created.as_ref().and_then(|c| c.adopted)
    }

    /// True if the inode is as the base has it.
    pub fn says_nothing(&self) -> bool {
        self.created.is_none()
            && self.home.is_none()
            && self.nlink.is_none()
            && self.size.is_none()
            && self.attrs.is_none()
            && self.cuts.is_empty()
            && self.blocks.is_empty()
    }

    /// True if own truncation hides this block of the base.
    pub fn hides_block(&self, block: u64) -> bool {
        self.cuts.first().is_some_and(|c| c.first_block <= block)
    }

    /// Cuts from `first_block` on: drops overlay blocks there and hides the base's.
    pub fn cut(&mut self, first_block: u64, stamp: Lsn) {
        let beyond: Vec<u64> = self.blocks.range(first_block..).map(|(b, _)| *b).collect();
        for block in beyond {
            self.blocks.remove(&block);
        }
        self.cuts.retain(|c| c.first_block < first_block);
        self.cuts.push(OwnCut { first_block, stamp });
        self.in_use_since_cut = false;
    }
}

#[derive(Clone, Default)]
pub(crate) struct Overlay {
    /// By directory, then name.
    pub names: OrdMap<Ino, OrdMap<Name, NameItem>>,
    pub inodes: OrdMap<Ino, Arc<InodeItem>>,
    /// View inodes that adopted a shared one, by that.
    pub adopted: OrdMap<FileId, Ino>,
    /// Created inodes so far.
    created: u64,
}

impl Overlay {
    /// A new inode number.
    pub fn next_ino(&mut self) -> Ino {
        self.created += 1;
        Ino(CREATED | self.created)
    }

    /// What the overlay says of a name.
    pub fn name(&self, dir: Ino, name: &[u8]) -> Option<&NameItem> {
        self.names.get(&dir)?.get(name)
    }

    /// Says something of a name.
    pub fn put_name(&mut self, dir: Ino, name: Name, item: NameItem) {
        self.names.entry(dir).or_default().insert(name, item);
    }

    /// Says nothing of a name any more.
    pub fn remove_name(&mut self, dir: Ino, name: &[u8]) {
        if let Some(names) = self.names.get_mut(&dir) {
            names.remove(name);
            if names.is_empty() {
                self.names.remove(&dir);
            }
        }
    }

    /// The item of an inode, made if there is none.
    pub fn item_mut(&mut self, ino: Ino) -> &mut InodeItem {
        Arc::make_mut(self.inodes.entry(ino).or_default())
    }

    /// Names, inodes and blocks.
    pub fn items(&self) -> u64 {
        let names: usize = self.names.values().map(OrdMap::len).sum();
        let blocks: usize = self.inodes.values().map(|i| i.blocks.len()).sum();
        (names + self.inodes.len() + blocks) as u64
    }
}
