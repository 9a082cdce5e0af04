//! Reading blocks of an image: a lineage of generations, with truncation marks applied.

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, Epoch, Generation};
use dax::storage::{Block, Lineage, Storage};

use crate::error::Result;
use crate::layout::FileClass;
use crate::namespace::Inode;

/// The generation right below another; `None` below [`Generation::SINGLE`].
pub fn below(generation: Generation) -> Option<Generation> {
    if generation.number > 0 {
        return Some(Generation {
            number: generation.number - 1,
            ..generation
        });
    }
    let epoch = Epoch(generation.epoch.0.checked_sub(1)?);
    Some(Generation {
        epoch,
        number: u32::MAX,
    })
}

/// The version of a versioned block that belongs to an image: the newest one whose generation the
/// lineage contains. Truncation marks are the caller's business.
pub async fn read_version(
    storage: &Arc<dyn Storage>,
    lineage: &Lineage,
    key: BlockKey,
) -> Result<Option<Block>> {
    let mut up_to = Some(lineage.end());
    while let Some(limit) = up_to {
        let Some(block) = storage.read(key, limit).await? else {
            return Ok(None);
        };
        if lineage.contains(block.generation) {
            return Ok(Some(block));
        }
        up_to = below(block.generation).and_then(|g| lineage.floor(g));
    }
    Ok(None)
}

/// A block of a file in an image, as the file's inode there says; `None` reads as zeros. Bytes past
/// the inode's size are not cleared.
///
/// Files of other classes than `Data` keep one version, which is what this returns for them.
pub async fn read_block(
    storage: &Arc<dyn Storage>,
    lineage: &Lineage,
    inode: &Inode,
    key: BlockKey,
) -> Result<Option<Block>> {
    let block = match inode.class {
        FileClass::Data => read_version(storage, lineage, key).await?,
        _ => storage.read(key, Generation::SINGLE).await?,
    };
    Ok(block.filter(|b| !inode.is_cut(key.block, b.version)))
}

/// What a block of a dead epoch's log or live file becomes in a new epoch, where a truncation mark
/// covers it.
///
/// ReadPromote (DAX 5) rewrites a block under a new version, which lies above every older
/// truncation mark: a block that was cut off would come back. Such blocks are settled instead: read
/// by quorum, judged by the version they have, and written anew as what they are.
pub(crate) fn settled(inode: &Inode, block: BlockIndex, found: Block) -> Bytes {
    match inode.is_cut(block, found.version) {
        true => Bytes::from(vec![0; found.data.len()]),
        false => found.data,
    }
}
