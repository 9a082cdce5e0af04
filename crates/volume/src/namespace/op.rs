//! What the journal records: one [`Op`] for each change of the namespace, and their encoding.
//!
//! A journal record is a batch of operations that happen together. It is encoded as one format
//! byte followed by the batch in postcard (varints, no names), so old records stay readable when
//! the enum grows at its end.

use dax::ids::{Epoch, FileId};
use serde::{Deserialize, Serialize};

use super::{Cut, Inode};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::view::{FileKind, Timestamp};

/// The format of records that this build writes.
const FORMAT: u8 = 1;

/// One change of the namespace. New variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A new epoch's writer starts here. Changes nothing; makes its chain differ from whatever a
    /// dead epoch wrote at the same place.
    Opened {
        /// Epoch of the active that opened the volume.
        epoch: Epoch,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Creates an inode with one name.
    Create {
        /// The new inode.
        id: FileId,
        /// Directory that gets the name.
        parent: FileId,
        /// Name in the directory.
        name: Vec<u8>,
        /// Regular file, directory or symbolic link.
        kind: FileKind,
        /// How its blocks are kept.
        class: FileClass,
        /// Permission bits.
        mode: u16,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Target of a symbolic link.
        target: Option<Vec<u8>>,
        /// Time of the operation.
        at: Timestamp,
    },
    /// One more name for an inode.
    Link {
        /// Inode that gets another name.
        id: FileId,
        /// Directory of the name.
        parent: FileId,
        /// Name in the directory.
        name: Vec<u8>,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Removes a name. An inode that loses its last one becomes an orphan, or a retained log
    /// segment under this name.
    Unlink {
        /// Directory of the name.
        parent: FileId,
        /// Name that is removed.
        name: Vec<u8>,
        /// Keep it for standbys until `Forget` (removed log segments).
        retain: bool,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// Directory that it is in.
        parent: FileId,
        /// Name that is removed.
        name: Vec<u8>,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Moves a name; what the new name led to loses it.
    Rename {
        /// Directory of the old name.
        from: FileId,
        /// The old name.
        from_name: Vec<u8>,
        /// Directory of the new name.
        to: FileId,
        /// The new name.
        to_name: Vec<u8>,
        /// How the blocks are kept from now on.
        class: FileClass,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Swaps what two names lead to.
    Exchange {
        /// Directory of the one name.
        from: FileId,
        /// The one name.
        from_name: Vec<u8>,
        /// Directory of the other name.
        to: FileId,
        /// The other name.
        to_name: Vec<u8>,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Sets attributes; `None` leaves one as it is.
    SetAttr {
        /// Inode whose attributes change.
        id: FileId,
        /// Permission bits.
        mode: Option<u16>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
        /// Last change of the contents.
        mtime: Option<Timestamp>,
        /// Time of the operation.
        at: Timestamp,
    },
    /// A file grew (nothing is cut off).
    SetSize {
        /// Inode whose size changes.
        id: FileId,
        /// Bytes.
        size: u64,
        /// Time of the operation.
        at: Timestamp,
    },
    /// A file was cut, or blocks beyond its end were (then the size stays).
    Truncate {
        /// File that is truncated.
        id: FileId,
        /// Bytes that it has now.
        size: u64,
        /// From which block, and at which version.
        cut: Cut,
        /// Time of the operation.
        at: Timestamp,
    },
    /// Removes an orphan or a retained log segment for good; its blocks may be given back.
    Forget {
        /// Inode without a name, whose blocks may be removed.
        id: FileId,
    },
    /// The blocks of these former inodes were given back.
    Reclaimed {
        /// The former inodes.
        ids: Vec<FileId>,
    },
    /// Raw: an inode becomes exactly this (a takeover's switch, snapshots). A directory keeps its
    /// names, a new one has none.
    PutInode {
        /// The inode's id.
        id: FileId,
        /// What it is from now on.
        inode: Inode,
    },
    /// Raw: a name leads to this inode. Link counts are the writer's business.
    PutName {
        /// Directory that has the name.
        parent: FileId,
        /// Name in the directory.
        name: Vec<u8>,
        /// Inode that the name leads to.
        id: FileId,
    },
    /// Raw: a name is no more. Link counts are the writer's business.
    DropName {
        /// Directory that has the name.
        parent: FileId,
        /// Name that is removed.
        name: Vec<u8>,
    },
    /// Raw: an inode is no more; its blocks may be given back. Its names must be dropped as well.
    DropInode {
        /// Inode that is removed.
        id: FileId,
    },
    /// Raw: a removed log segment that is kept under its old name (snapshots).
    PutRetained {
        /// Directory that had the name.
        parent: FileId,
        /// Name that the inode had.
        name: Vec<u8>,
        /// Inode that is retained.
        id: FileId,
    },
    /// Raw: these ids had blocks that are not given back yet (snapshots, old snapshot files).
    Bury {
        /// The ids.
        ids: Vec<FileId>,
    },
}

impl Op {
    /// True if it changes nothing that anybody could see in a directory tree.
    pub fn is_housekeeping(&self) -> bool {
        matches!(
            self,
            Op::Opened { .. } | Op::Forget { .. } | Op::Reclaimed { .. } | Op::Bury { .. }
        )
    }

    /// The inodes whose fsync must make this operation durable.
    pub fn touched(&self) -> [Option<FileId>; 3] {
        match *self {
            Op::Create { id, parent, .. } | Op::Link { id, parent, .. } => {
                [Some(id), Some(parent), None]
            }
            Op::Unlink { parent, .. } | Op::RemoveDirectory { parent, .. } => {
                [Some(parent), None, None]
            }
            Op::Rename { from, to, .. } | Op::Exchange { from, to, .. } => {
                [Some(from), Some(to), None]
            }
            Op::SetAttr { id, .. }
            | Op::SetSize { id, .. }
            | Op::Truncate { id, .. }
            | Op::PutInode { id, .. } => [Some(id), None, None],
            Op::PutName { id, parent, .. } | Op::PutRetained { id, parent, .. } => {
                [Some(id), Some(parent), None]
            }
            Op::DropName { parent, .. } => [Some(parent), None, None],
            Op::Opened { .. }
            | Op::Forget { .. }
            | Op::Reclaimed { .. }
            | Op::DropInode { .. }
            | Op::Bury { .. } => [None; 3],
        }
    }
}

/// Encodes one record's batch.
pub fn encode(batch: &[Op]) -> Vec<u8> {
    let out = vec![FORMAT];
    postcard::to_extend(batch, out).expect("writing to memory cannot fail")
}

/// Decodes one record's batch.
///
/// # Errors
/// `Damaged` if the bytes are no batch that this build can read.
pub fn decode(bytes: &[u8]) -> Result<Vec<Op>> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => postcard::from_bytes(rest)
            .map_err(|e| Error::Damaged(format!("journal record does not decode: {e}"))),
        Some((format, _)) => Err(Error::Damaged(format!(
            "journal record of format {format}; this build reads {FORMAT}"
        ))),
        None => Err(Error::Damaged("empty journal record".into())),
    }
}
