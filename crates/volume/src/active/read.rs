//! Reading files of the latest image.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dax::error::{Error as DaxError, ErrorKind};
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version};
use dax::storage::SyncScope;
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::Inner;
use crate::cache::{Cached, Ticket};
use crate::error::{Error, Result};
use crate::image::{self, read_version};
use crate::layout::FileClass;
use crate::namespace::Inode;

/// The image that the active's cache holds blocks of.
pub(super) const LATEST: Generation = Generation::MAX;

/// Old log is read so many blocks at a time.
const LOG_AHEAD_BLOCKS: u64 = 64;

impl Inner {
    /// Reads up to `len` bytes; shorter only at the end of the file.
    pub(super) async fn read_file(
        self: &Arc<Self>,
        file: FileId,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        // A first read in a new epoch may rewrite a block; a cut must not fall in between.
        let _still = match epoch_of(file) < self.epoch {
            true => Some(self.locks.of(file).read().await),
            false => None,
        };
        let inode = self.shared_inode(file)?;
        let end = inode.size.min(offset.saturating_add(u64::from(len)));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let first = offset / self.block_size;
        let blocks = first..end.div_ceil(self.block_size);
        let skip = (offset - first * self.block_size) as usize;
        let len = (end - offset) as usize;
        if blocks.end - blocks.start == 1 {
            let block = self.read_block(&inode, BlockKey::new(file, first)).await?;
            return Ok(match block {
                Some(data) => data.slice(skip..skip + len),
                None => Bytes::from(vec![0; len]),
            });
        }
        let found = self.read_many(&inode, file, blocks).await?;
        let mut out = BytesMut::with_capacity(found.len() * self.block_size as usize);
        for block in found {
            match block {
                Some(data) => out.extend_from_slice(&data),
                None => out.resize(out.len() + self.block_size as usize, 0),
            }
        }
        Ok(out.freeze().slice(skip..skip + len))
    }

    /// The inode of a regular file as it is now.
    pub(super) fn shared_inode(&self, file: FileId) -> Result<Arc<Inode>> {
        let core = self.core.lock();
        core.namespace.file(file)?;
        core.namespace.get_shared(file).ok_or(Error::NotFound)
    }

    /// Blocks in order, those not at hand all at once.
    async fn read_many(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        file: FileId,
        blocks: std::ops::Range<u64>,
    ) -> Result<Vec<Option<Bytes>>> {
        let mut found = vec![None; (blocks.end - blocks.start) as usize];
        let mut reads = JoinSet::new();
        for (index, block) in blocks.enumerate() {
            let key = BlockKey::new(file, block);
            if let Some(at_hand) = self.block_at_hand(inode, key)? {
                found[index] = at_hand;
                continue;
            }
            let (inner, inode) = (self.clone(), inode.clone());
            reads.spawn(async move { (index, inner.read_block(&inode, key).await) });
        }
        while let Some(done) = reads.join_next().await {
            let (index, block) =
                done.map_err(|e| Error::Damaged(format!("a read did not end: {e}")))?;
            found[index] = block?;
        }
        Ok(found)
    }

    /// A block that needs no storage: inherited, or cached (`Some(None)`: it reads as zeros).
    fn block_at_hand(&self, inode: &Inode, key: BlockKey) -> Result<Option<Option<Bytes>>> {
        if let Some(write_back) = &self.write_back
            && let Some(data) = write_back.blocks.get(key)?
        {
            return Ok(Some(Some(data)));
        }
        let cached = self.cache.get(key, LATEST);
        Ok(cached.map(|c| (!inode.is_cut(key.block, c.version)).then_some(c.data)))
    }

    /// One whole block; `None` reads as zeros. Bytes past the file's size are whatever they are.
    pub(super) async fn read_block(&self, inode: &Inode, key: BlockKey) -> Result<Option<Bytes>> {
        if let Some(at_hand) = self.block_at_hand(inode, key)? {
            return Ok(at_hand);
        }
        let ticket = self.cache.ticket(key);
        let block = match inode.class {
            FileClass::Data => self.read_data(key).await?,
            // A dead epoch may have left versions of which no quorum holds one: choose (DAX 5).
            _ if epoch_of(key.file) < self.epoch => {
                if inode.has_cut_over(key.block) {
                    return self.settle(inode, key).await;
                }
                match inode.class {
                    FileClass::Log => self.read_log_ahead(inode, key).await?,
                    _ => self.storage.read_promote(key).await?.map(Cached::from),
                }
            }
            FileClass::Log => self.read_log_ahead(inode, key).await?,
            _ => self
                .storage
                .read(key, Generation::SINGLE)
                .await?
                .map(Cached::from),
        };
        let Some(block) = block else {
            return Ok(None);
        };
        self.cache.fill(key, LATEST, ticket, block.clone());
        Ok((!inode.is_cut(key.block, block.version)).then_some(block.data))
    }

    /// A block of the latest image. What a standby knew of it before it was promoted spares a quorum, and the
    /// second round for what the dead epoch wrote after the image's base.
    async fn read_data(&self, key: BlockKey) -> Result<Option<Cached>> {
        if let Some(base) = &self.inherited_base {
            if let Some(cached) = base.cached(key) {
                return Ok(Some(cached));
            }
            match base.expected(key) {
                Some((_, Version::ZERO)) => return Ok(None),
                Some((since, version)) => {
                    let found = self.storage.read_expected(key, since, version).await?;
                    if let Some(found) = found {
                        return Ok(Some(Cached::from(found)));
                    }
                }
                None => {}
            }
        }
        let found = read_version(&self.storage, &self.lineage, key).await?;
        if found.is_none() {
            self.still_owns().await?;
        }
        Ok(found.map(Cached::from))
    }

    /// A block that is not there reads as zeros, and one that a successor has given back is not there: so an active
    /// that slept while somebody took over must not say so.
    async fn still_owns(&self) -> Result<()> {
        let accepted = self.storage.accepted_epoch().await?;
        if accepted.epoch > self.epoch {
            let why = format!("{} owns epoch {}", accepted.owner, accepted.epoch);
            return Err(DaxError::new(ErrorKind::Fenced, why).into());
        }
        Ok(())
    }

    fn is_segment(&self, file: FileId) -> bool {
        let path = self.core.lock().namespace.path_of(file);
        path.is_some_and(|path| self.layout.log_range(&path).is_some())
    }

    /// Keeps blocks of old log that a standby has read.
    pub(super) fn remember_log(&self, blocks: Vec<(BlockKey, Cached)>) {
        for (key, block) in blocks {
            let ticket = self.cache.ticket(key);
            self.cache.fill(key, LATEST, ticket, block);
        }
    }

    /// Reads a log block, and those behind it into the cache: whoever reads log that is not there any
    /// more reads it in order (crash recovery, a promotion that copies the segment that it ends in). One
    /// at a time: many may be asked for at once that one such read brings.
    async fn read_log_ahead(&self, inode: &Inode, key: BlockKey) -> Result<Option<Cached>> {
        let is_ours = epoch_of(key.file) >= self.epoch;
        let mut ahead = self.log_ahead.lock().await;
        if let Some(cached) = self.cache.get(key, LATEST) {
            return Ok(Some(cached));
        }
        let is_done = ahead.0 == key.file && ahead.1.contains(&key.block.0);
        if is_done {
            // Nobody has it, or it has left the cache again.
            let found = match is_ours {
                true => self.storage.read(key, Generation::SINGLE).await?,
                false => self.storage.read_promote(key).await?,
            };
            return Ok(found.map(Cached::from));
        }
        let end = inode.size.div_ceil(self.block_size);
        let last = (key.block.0 + LOG_AHEAD_BLOCKS)
            .min(end)
            .max(key.block.0 + 1);
        // What a dead epoch wrote under a truncation mark is settled by who wants it.
        let is_read = |block: &u64| is_ours || !inode.has_cut_over(BlockIndex(*block));
        let blocks = (key.block.0..last).filter(is_read);
        let fixed = is_ours || self.log_fixed && self.is_segment(key.file);
        let reads = blocks.map(|block| async move {
            let key = BlockKey::new(key.file, block);
            let ticket = self.cache.ticket(key);
            let found = match fixed {
                true => self.storage.read(key, Generation::SINGLE).await?,
                false => self.storage.read_promote(key).await?,
            };
            let found = found.map(Cached::from);
            if let Some(found) = &found {
                self.cache.fill(key, LATEST, ticket, found.clone());
            }
            Ok::<_, Error>((block == key.block.0).then_some(found).flatten())
        });
        let found = try_join_all(reads).await?;
        *ahead = (key.file, key.block.0..last);
        Ok(found.into_iter().next().flatten())
    }

    /// Reads a block under a truncation mark, and fixes what it is in this epoch (see
    /// [`image::settled`]). What is returned is of this epoch, or was written in it before.
    async fn settle(&self, inode: &Inode, key: BlockKey) -> Result<Option<Bytes>> {
        let mut is_first = true;
        loop {
            let ticket = self.cache.ticket(key);
            let Some(found) = self.storage.read(key, Generation::SINGLE).await? else {
                return Ok(None);
            };
            if found.version.epoch == self.epoch {
                // Perhaps who settled it is not done yet.
                if !is_first {
                    self.storage.csync(SyncScope::File(key.file)).await?;
                }
                let cut = inode.is_cut(key.block, found.version);
                return Ok((!cut).then_some(found.data));
            }
            self.storage.write_room(self.block_size as usize).await?;
            let data = image::settled(inode, key.block, found);
            if self.settle_as(key, ticket, &data)? {
                self.storage.csync(SyncScope::File(key.file)).await?;
                return Ok(Some(data));
            }
            is_first = false;
        }
    }

    /// Writes what a block is, unless somebody has written since the ticket: that block, or another one of as
    /// many that share a counter.
    fn settle_as(&self, key: BlockKey, ticket: Ticket, data: &Bytes) -> Result<bool> {
        let _core = self.core.lock();
        let is_current = self.cache.is_current(key, ticket);
        if is_current {
            self.storage.write(key, Generation::SINGLE, data.clone())?;
            self.cache.remove(key, LATEST);
        }
        Ok(is_current)
    }
}

/// The epoch that made a file.
pub(super) fn epoch_of(file: FileId) -> Epoch {
    Epoch((file.0 >> FileId::COUNTER_BITS) as u32)
}
