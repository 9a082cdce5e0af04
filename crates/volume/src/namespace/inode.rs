//! What the namespace knows of one file, directory or symbolic link.

use std::sync::Arc;

use dax::ids::{BlockIndex, FileId, Version};
use serde::{Deserialize, Serialize};

use crate::layout::FileClass;
use crate::view::{Attr, FileKind, Ino, Timestamp};

/// One name of a directory, without `/`; shared between the versions of a namespace.
pub type Name = Arc<[u8]>;

/// A truncation mark: stored blocks from `first_block` on that are older than `version` read as
/// zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The first block that was cut off.
    pub first_block: BlockIndex,
    /// Given by the storage at the moment of the cut.
    pub version: Version,
}

/// One inode. Its names are in the directories; `home` is one of them, for building paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    /// Regular file, directory or symbolic link.
    pub kind: FileKind,
    /// How its blocks are kept. Never `Private`.
    pub class: FileClass,
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead here; 2 and one for each subdirectory for directories. 0: an orphan, or
    /// a retained log segment.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Last change of the contents, as far as journalled.
    pub mtime: Timestamp,
    /// Last change of contents or attributes, as far as journalled.
    pub ctime: Timestamp,
    /// Truncation marks, ascending in both block and version.
    pub cuts: Vec<Cut>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The directory of one of its names (the last one it got).
    pub parent: FileId,
    /// That name.
    #[serde(with = "name_bytes")]
    pub name: Name,
}

/// A name as plain bytes.
mod name_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Name;

    pub(super) fn serialize<S: Serializer>(name: &Name, to: S) -> Result<S::Ok, S::Error> {
        (**name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
        Vec::<u8>::deserialize(from).map(Name::from)
    }
}

impl Inode {
    /// True if a stored block of this version was cut off and reads as zeros.
    pub fn is_cut(&self, block: BlockIndex, version: Version) -> bool {
        let covering = self.cuts.iter().rev().find(|c| c.first_block <= block);
        covering.is_some_and(|c| version < c.version)
    }

    /// True if a truncation mark covers the block, whatever its version.
    pub fn has_cut_over(&self, block: BlockIndex) -> bool {
        self.cuts.iter().any(|cut| cut.first_block <= block)
    }

    /// Adds a truncation mark; it replaces the marks at or beyond its block.
    pub fn add_cut(&mut self, cut: Cut) {
        self.cuts.retain(|c| c.first_block < cut.first_block);
        self.cuts.push(cut);
    }

    /// True if it has a place in some directory.
    pub fn is_linked(&self) -> bool {
        self.nlink > 0
    }

    /// Its attributes under the inode number `ino`.
    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            size: self.size,
            allocated_bytes: self.size.next_multiple_of(512),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            atime: self.mtime,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;

    use super::*;

    fn version(seq: u64) -> Version {
        Version {
            epoch: Epoch(1),
            seq,
        }
    }

    fn cut(block: u64, seq: u64) -> Cut {
        Cut {
            first_block: BlockIndex(block),
            version: version(seq),
        }
    }

    #[test]
    fn a_later_cut_replaces_those_at_or_beyond_it_and_leaves_those_before() {
        let mut inode = crate::namespace::testing::file();
        inode.add_cut(cut(4, 10));
        inode.add_cut(cut(8, 20));
        assert!(inode.is_cut(BlockIndex(8), version(19)));
        assert!(inode.is_cut(BlockIndex(5), version(9)));
        assert!(!inode.is_cut(BlockIndex(5), version(11)));
        inode.add_cut(cut(6, 30));
        assert_eq!(inode.cuts, vec![cut(4, 10), cut(6, 30)]);
        assert!(inode.is_cut(BlockIndex(9), version(29)));
        assert!(!inode.is_cut(BlockIndex(3), version(1)));
    }
}
