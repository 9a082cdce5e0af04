//! Reading files of the volume without a mount, and writing private ones of a node, each as a whole.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Lineage, Storage};
use futures_util::{StreamExt, TryStreamExt, stream};
use volume::image;
use volume::namespace::Namespace;
use volume::private::PrivateDir;

use super::context::Context;
use super::error::{AgentError, Result};

/// Blocks of a file that are read at once.
const READS_AT_ONCE: usize = 32;

/// A whole file that has one version, as it is now.
pub(super) async fn read_live(
    storage: &Arc<dyn Storage>,
    live: &Namespace,
    file: FileId,
) -> Result<Vec<u8>> {
    read_file(storage, &Lineage::up_to(Generation::MAX), live, file).await
}

/// A whole file of an image, as its inode there says.
pub(super) async fn read_file(
    storage: &Arc<dyn Storage>,
    lineage: &Lineage,
    namespace: &Namespace,
    file: FileId,
) -> Result<Vec<u8>> {
    let inode = namespace.file(file)?;
    let block_size = u64::from(storage.settings().block_size_bytes);
    let read = |block| async move {
        image::read_block(storage, lineage, inode, BlockKey::new(file, block)).await
    };
    let blocks = stream::iter(0..inode.size.div_ceil(block_size)).map(read);
    let mut blocks = blocks.buffered(READS_AT_ONCE);
    let mut bytes = Vec::with_capacity(inode.size as usize);
    while let Some(block) = blocks.try_next().await? {
        match block {
            Some(block) => bytes.extend_from_slice(&block.data),
            None => bytes.resize(bytes.len() + block_size as usize, 0),
        }
    }
    bytes.truncate(inode.size as usize);
    Ok(bytes)
}

/// Writes a private file, and makes its directory.
pub(super) fn put(context: &Context, private: &PrivateDir, path: &str, bytes: &[u8]) -> Result<()> {
    let place = private.place(path)?;
    let owner = context.run_as.as_ref().map(|r| r.owner());
    let made = place.parent().map_or(Ok(()), |parent| {
        let fresh = !parent.exists();
        std::fs::create_dir_all(parent)?;
        if fresh {
            give(parent, 0o700, owner)
        } else {
            Ok(())
        }
    });
    made.and_then(|()| std::fs::write(&place, bytes))
        .and_then(|()| give(&place, 0o600, owner))
        .map_err(|e| AgentError::system(format!("cannot write {}", place.display()), e))
}

fn give(
    place: &Path,
    mode: u32,
    owner: Option<(nix::unistd::Uid, nix::unistd::Gid)>,
) -> std::io::Result<()> {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode))?;
    if let Some((uid, gid)) = owner {
        nix::unistd::chown(place, Some(uid), Some(gid))?;
    }
    Ok(())
}
