//! What a promoted standby brings along: its overlay's blocks, written back in the background as
//! writes of the new epoch, what it knew and cached of its base, and the inode numbers that its kernel
//! already knows.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, Version};
use dax::storage::Lineage;

use crate::cache::{BlockCache, Cached};
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
    /// Up to `max` blocks; they stay here until they are forgotten.
    fn some(&self, max: usize) -> Result<Vec<(BlockKey, Bytes)>>;
    /// True if the block is (still) here.
    fn contains(&self, key: BlockKey) -> bool;
    /// How many are left.
    fn len(&self) -> usize;
    /// True if none is left.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the standby knew of its base. The new epoch's image goes on from the base and from nothing that
/// the dead epoch wrote after it, so this holds for every block that the new epoch did not write.
pub trait InheritedBase: Send + Sync + 'static {
    /// The block, if it is in the cache.
    fn cached(&self, key: BlockKey) -> Option<Cached>;
    /// The first generation for which the block's version is known, and the version; that is
    /// [`Version::ZERO`] if there is no such block.
    fn expected(&self, key: BlockKey) -> Option<(Generation, Version)>;
    /// Forgets a block that is written.
    fn forget(&self, key: BlockKey);
}

/// Names and blocks that a new active takes over from the standby that it was.
pub struct Inherited {
    /// Blocks to write back.
    pub blocks: Arc<dyn InheritedBlocks>,
    /// What is known of the other blocks, if anything.
    pub base: Option<Arc<dyn InheritedBase>>,
    /// The cache that the active goes on with.
    pub cache: Option<Arc<BlockCache>>,
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
