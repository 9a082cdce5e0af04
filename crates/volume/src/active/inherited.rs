//! What a promoted standby brings along: its overlay's blocks, carried over in the background as
//! writes of the new epoch, and the inode numbers that its kernel already knows.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId};
use dax::storage::Lineage;

use crate::cache::Cached;
use crate::error::Result;
use crate::view::Ino;

/// Blocks of the standby's overlay, under the shared ids their files have after the switch. They
/// are newer than anything the base holds.
pub trait InheritedBlocks: Send + Sync + 'static {
    /// The block, if it is (still) here.
    fn get(&self, key: BlockKey) -> Result<Option<Bytes>>;
    /// Forgets a block that was written anew.
    fn discard(&self, key: BlockKey);
    /// Forgets the blocks of a file from one on (it was cut).
    fn discard_from(&self, file: FileId, first: BlockIndex);
    /// Takes up to `max` blocks out.
    fn take_some(&self, max: usize) -> Result<Vec<(BlockKey, Bytes)>>;
    /// How many are left.
    fn len(&self) -> usize;
    /// Whether none is left.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// See the module.
pub struct Inherited {
    /// Blocks to carry over.
    pub blocks: Arc<dyn InheritedBlocks>,
    /// Inode numbers that stood for files made by redo, and the files they are now.
    pub aliases: HashMap<Ino, FileId>,
    /// Blocks of the log's last segment that were read before, wholly below what was announced as durable. The
    /// database copies that segment when it is promoted.
    pub log: Vec<(BlockKey, Cached)>,
    /// Open handles of shared files.
    pub open_counts: HashMap<FileId, u64>,
    /// The image that the view showed, up to its base; the new epoch's generations follow it.
    pub lineage: Lineage,
}
