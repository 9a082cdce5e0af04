//! Bytes as a file of their own: whole blocks of one version, written once and read whole. What a seal
//! refers to is kept so.

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Storage, SyncScope};

use crate::error::{Error, Result};
use crate::journal::tail::read_blocks;

/// Writes bytes durably into the new file `file`.
pub(crate) async fn store(storage: &Arc<dyn Storage>, file: FileId, bytes: &[u8]) -> Result<()> {
    let block_size = storage.settings().block_size_bytes as usize;
    for (block, chunk) in (0..).zip(bytes.chunks(block_size)) {
        let mut data = chunk.to_vec();
        data.resize(block_size, 0);
        storage.write_room(block_size).await?;
        storage.write(
            BlockKey::new(file, block),
            Generation::SINGLE,
            Bytes::from(data),
        )?;
    }
    storage.csync(SyncScope::File(file)).await?;
    Ok(())
}

/// Reads `len` bytes back.
///
/// # Errors
/// `Damaged` if a block is not there (any more).
pub(crate) async fn load(storage: &Arc<dyn Storage>, file: FileId, len: u64) -> Result<Vec<u8>> {
    let block_size = u64::from(storage.settings().block_size_bytes);
    let mut bytes = Vec::new();
    for block in read_blocks(storage, file, 0..len.div_ceil(block_size), false).await? {
        let block = block.ok_or_else(|| {
            let at = bytes.len() as u64 / block_size;
            Error::Damaged(format!("block {at} of {file} is missing"))
        })?;
        bytes.extend_from_slice(&block.data);
    }
    bytes.truncate(len as usize);
    Ok(bytes)
}
