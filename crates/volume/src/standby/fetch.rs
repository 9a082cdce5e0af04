//! Reading blocks of a state: overlay, cache, storage, many at once.
//!
//! Invariants: what is cached never changes its bytes. Blocks of an image are cached under the
//! image's generation; blocks of the log only when all of them is below the horizon, because the
//! active still appends to the last one (rule 5). Configuration is not cached: it is small, and its
//! writer may change it in place. A version that an image has, every image that continues it has as
//! well, unless a cut hides it: so that a block has one need not be asked again at every move.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dax::ids::{BlockKey, Generation, Version};
use dax::storage::Storage;
use quick_cache::sync::Cache;
use tokio::task::JoinSet;

use super::state::{BlockSource, State};
use crate::cache::{BlockCache, Cached};
use crate::error::{Error, Result};
use crate::image;
use crate::layout::FileClass;
use crate::namespace::Namespace;
use crate::seal::Base;
use crate::view::Ino;

/// The largest block that a volume can have.
const MAX_BLOCK_BYTES: usize = 65536;
static ZEROS: [u8; MAX_BLOCK_BYTES] = [0; MAX_BLOCK_BYTES];

/// How many blocks are remembered to have a version; some tens of bytes each.
const SEEN_BLOCKS: usize = 1 << 18;

/// Reads what states say where it is.
#[derive(Clone)]
pub(crate) struct Fetcher {
    pub storage: Arc<dyn Storage>,
    cache: Arc<BlockCache>,
    /// Versions that the current base, or one that it continues, has.
    seen: Arc<Cache<BlockKey, Version>>,
}

/// One block of zeros.
pub(crate) fn zeros(block_bytes: u32) -> Bytes {
    Bytes::from_static(&ZEROS[..block_bytes as usize])
}

/// Whether a block holds nothing but zeros.
pub(crate) fn is_zero(block: &[u8]) -> bool {
    block == &ZEROS[..block.len()]
}

impl Fetcher {
    /// For one view: all the bases that it will have continue each other.
    pub fn new(storage: Arc<dyn Storage>, cache: Arc<BlockCache>) -> Fetcher {
        let seen = Arc::new(Cache::new(SEEN_BLOCKS));
        Fetcher {
            storage,
            cache,
            seen,
        }
    }

    /// A whole block of a file.
    pub async fn block(&self, state: &State, ino: Ino, block: u64) -> Result<Bytes> {
        match state.block(ino, block) {
            BlockSource::Zeros => Ok(zeros(state.block_bytes)),
            BlockSource::Overlay(content) => Ok(content.read().await?),
            BlockSource::Base { key, base } => self.of_image(&base, key, state.block_bytes).await,
            BlockSource::Single { key, shown } => {
                self.single(&state.live, key, shown, state.block_bytes)
                    .await
            }
        }
    }

    /// A range of bytes of a file, all of it inside the file's size.
    pub async fn range(&self, state: &Arc<State>, ino: Ino, bytes: Range<u64>) -> Result<Bytes> {
        let size = u64::from(state.block_bytes);
        let blocks = bytes.start / size..bytes.end.div_ceil(size);
        let first = blocks.start * size;
        let cut = (bytes.start - first) as usize..(bytes.end - first) as usize;
        if blocks.end - blocks.start == 1 {
            return Ok(self.block(state, ino, blocks.start).await?.slice(cut));
        }
        let mut out = BytesMut::with_capacity(((blocks.end - blocks.start) * size) as usize);
        for block in self.blocks(state, ino, blocks).await? {
            out.extend_from_slice(&block);
        }
        Ok(out.freeze().slice(cut))
    }

    /// Consecutive blocks, read in parallel.
    async fn blocks(&self, state: &Arc<State>, ino: Ino, blocks: Range<u64>) -> Result<Vec<Bytes>> {
        let mut found = vec![Bytes::new(); (blocks.end - blocks.start) as usize];
        let mut reads = JoinSet::new();
        for (at, block) in blocks.enumerate() {
            match self.at_hand(state, ino, block) {
                Some(bytes) => found[at] = bytes,
                None => {
                    let (fetcher, state) = (self.clone(), Arc::clone(state));
                    reads.spawn(async move { (at, fetcher.block(&state, ino, block).await) });
                }
            }
        }
        while let Some(done) = reads.join_next().await {
            let (at, read) = done.map_err(|e| Error::Local(std::io::Error::other(e)))?;
            found[at] = read?;
        }
        Ok(found)
    }

    /// Whether a block needs no waiting.
    pub fn is_at_hand(&self, state: &State, ino: Ino, block: u64) -> bool {
        self.at_hand(state, ino, block).is_some()
    }

    /// A block that needs no waiting.
    fn at_hand(&self, state: &State, ino: Ino, block: u64) -> Option<Bytes> {
        match state.block(ino, block) {
            BlockSource::Zeros => Some(zeros(state.block_bytes)),
            BlockSource::Overlay(content) => content.in_memory(),
            BlockSource::Base { key, base } => {
                let cached = self.cache.get(key, base.seal.generation)?;
                Some(visible(&base.namespace, key, cached, state.block_bytes))
            }
            BlockSource::Single { key, shown } if shown == state.block_bytes => {
                let cached = self.cache.get(key, Generation::SINGLE)?;
                Some(visible(&state.live, key, cached, state.block_bytes))
            }
            BlockSource::Single { .. } => None,
        }
    }

    /// A block as of a base.
    async fn of_image(&self, base: &Base, key: BlockKey, block_bytes: u32) -> Result<Bytes> {
        let block = self.stored(base, key).await?;
        Ok(block.map_or_else(
            || zeros(block_bytes),
            |block| visible(&base.namespace, key, block, block_bytes),
        ))
    }

    /// Whether a base has a version of a block that its own cuts do not hide, if that is known.
    pub fn is_seen(&self, base: &Base, key: BlockKey) -> bool {
        let inode = base.namespace.get(key.file);
        let version = self.seen.get(&key);
        version.is_some_and(|v| inode.is_some_and(|i| !i.is_cut(key.block, v)))
    }

    /// Whether a base has a version of a block that its own cuts do not hide.
    pub async fn has_version(&self, base: &Base, key: BlockKey) -> Result<bool> {
        let inode = base.namespace.get(key.file);
        let block = self.stored(base, key).await?;
        Ok(block.is_some_and(|b| inode.is_some_and(|i| !i.is_cut(key.block, b.version))))
    }

    async fn stored(&self, base: &Base, key: BlockKey) -> Result<Option<Cached>> {
        let image = base.seal.generation;
        if let Some(cached) = self.cache.get(key, image) {
            return Ok(Some(cached));
        }
        let ticket = self.cache.ticket(key);
        let Some(block) = image::read_version(&self.storage, &base.seal.lineage, key).await? else {
            return Ok(None);
        };
        let block = Cached {
            version: block.version,
            data: block.data,
        };
        self.seen.insert(key, block.version);
        self.cache.fill(key, image, ticket, block.clone());
        Ok(Some(block))
    }

    /// A block that has one version; bytes from `shown` on read as zeros.
    async fn single(
        &self,
        live: &Namespace,
        key: BlockKey,
        shown: u32,
        block_bytes: u32,
    ) -> Result<Bytes> {
        let final_bytes = shown == block_bytes
            && live
                .get(key.file)
                .is_some_and(|i| i.class == FileClass::Log);
        let cached = self.cache.get(key, Generation::SINGLE);
        if let Some(cached) = cached.filter(|_| final_bytes) {
            return Ok(visible(live, key, cached, block_bytes));
        }
        let ticket = self.cache.ticket(key);
        let Some(block) = self.storage.read(key, Generation::SINGLE).await? else {
            return Ok(zeros(block_bytes));
        };
        let block = Cached {
            version: block.version,
            data: block.data,
        };
        if final_bytes {
            self.cache
                .fill(key, Generation::SINGLE, ticket, block.clone());
        }
        let data = visible(live, key, block, block_bytes);
        Ok(clipped(data, shown as usize))
    }
}

/// A stored block, or zeros if its file was cut after it was stored.
fn visible(namespace: &Namespace, key: BlockKey, block: Cached, block_bytes: u32) -> Bytes {
    match namespace.get(key.file) {
        Some(inode) if inode.is_cut(key.block, block.version) => zeros(block_bytes),
        _ => block.data,
    }
}

/// The block with zeros from `shown` on.
fn clipped(block: Bytes, shown: usize) -> Bytes {
    if shown >= block.len() {
        return block;
    }
    let mut out = BytesMut::zeroed(block.len());
    out[..shown].copy_from_slice(&block[..shown]);
    out.freeze()
}
