//! Writing, cutting and zeroing files.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dax::ids::{BlockIndex, BlockKey, FileId, Generation, Version};
use dax::storage::{Prepared, SyncScope};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::core::Core;
use super::locks::Ticket;
use super::read::{LATEST, epoch_of};
use super::{ActiveView, Inner};
use crate::cache::Cached;
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::namespace::op::Op;
use crate::namespace::plan::MAX_SIZE_BYTES;
use crate::namespace::{Cut, Inode, Namespace};
use crate::view::Timestamp;

/// Zeros are written in pieces of at most this many bytes.
const ZERO_PIECE_BYTES: u64 = 1 << 20;

/// The file's lock, as strong as a write needs it.
enum Held<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// How a new size is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// Exactly this size.
    Exact,
    /// At least this size.
    Grow,
}

/// What a write did, for the observer.
struct Written {
    class: FileClass,
    generation: Generation,
    path: Option<String>,
    /// The version of the last block, if any was stored.
    version: Option<Version>,
}

impl ActiveView {
    /// Writes the control file, durably when this returns. Only for the observer: it belongs at the
    /// end of [`control_written`](super::WriteObserver::control_written).
    pub async fn write_control(&self, data: Bytes, now: Timestamp) -> Result<()> {
        let inner = &self.inner;
        let file = {
            let core = inner.core.lock();
            core.namespace.resolve(inner.layout.control_file())?
        };
        let ticket = inner.tickets.take();
        inner.write_file(&ticket, file, 0, data, now).await?;
        drop(ticket);
        inner.sync_file(file).await
    }
}

impl Inner {
    /// True if a file is the one whose writes go to the observer.
    pub(super) fn is_control(&self, namespace: &Namespace, file: FileId, inode: &Inode) -> bool {
        let control = self.layout.control_file();
        let name = control.rsplit('/').next().unwrap_or(control);
        *inode.name == *name.as_bytes()
            && inode.is_linked()
            && namespace.path_of(file).is_some_and(|path| path == control)
    }

    /// What the control file holds once `data` is written at `offset`.
    pub(super) async fn control_after(
        self: &Arc<Self>,
        file: FileId,
        offset: u64,
        data: Bytes,
    ) -> Result<Bytes> {
        let size = self.shared_inode(file)?.size;
        let end = check_end(offset, data.len())?;
        if offset == 0 && end >= size {
            return Ok(data);
        }
        let old = u32::try_from(size).map_err(|_| Error::TooLarge)?;
        let mut whole = BytesMut::from(&self.read_file(file, 0, old).await?[..]);
        if whole.len() < end as usize {
            whole.resize(end as usize, 0);
        }
        whole[offset as usize..end as usize].copy_from_slice(&data);
        Ok(whole.freeze())
    }

    /// Writes all of `data`, as one step of the core lock.
    pub(super) async fn write_file(
        self: &Arc<Self>,
        _ticket: &Ticket<'_>,
        file: FileId,
        offset: u64,
        data: Bytes,
        now: Timestamp,
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = check_end(offset, data.len())?;
        let blocks = offset / self.block_size..end.div_ceil(self.block_size);
        // One block more: the old last block may need its tail zeroed.
        let room = (blocks.end - blocks.start + 1) * self.block_size;
        self.storage.write_room(room as usize).await?;
        let (held, inode) = self.lock_for_write(file, offset, end).await?;
        let tail = self.gap_tail(&inode, file, offset).await?;
        let contents = self.whole_blocks(&inode, file, offset, &data).await?;
        let blocks = self.prepared(&inode, tail.into_iter().chain(contents));
        let written = self.accept(file, blocks, end, now)?;
        drop(held);
        self.report(&written, offset, &data);
        self.flush_if_long();
        if let Some(version) = written.version {
            self.storage.acknowledged(file, version).await?;
        }
        Ok(())
    }

    /// Takes the file's lock: shared for whole blocks, alone where old contents are needed.
    async fn lock_for_write(
        &self,
        file: FileId,
        offset: u64,
        end: u64,
    ) -> Result<(Held<'_>, Arc<Inode>)> {
        let whole = offset.is_multiple_of(self.block_size) && end.is_multiple_of(self.block_size);
        if whole {
            let guard = self.locks.of(file).read().await;
            let inode = self.shared_inode(file)?;
            if !self.leaves_gap(&inode, offset) {
                return Ok((Held::Shared { _guard: guard }, inode));
            }
        }
        let guard = self.locks.of(file).write().await;
        Ok((Held::Alone { _guard: guard }, self.shared_inode(file)?))
    }

    /// True if a write at `offset` begins behind the block that the file ends within.
    fn leaves_gap(&self, inode: &Inode, offset: u64) -> bool {
        !inode.size.is_multiple_of(self.block_size)
            && offset / self.block_size > inode.size / self.block_size
    }

    /// The old last block with its tail zeroed, where a write leaves a gap behind it.
    async fn gap_tail(
        &self,
        inode: &Inode,
        file: FileId,
        offset: u64,
    ) -> Result<Option<(BlockKey, Bytes)>> {
        match self.leaves_gap(inode, offset) {
            true => self.zeroed_tail(inode, file, inode.size).await,
            false => Ok(None),
        }
    }

    /// The block that `size` is within, with zeros from there on; `None` if it holds them already.
    async fn zeroed_tail(
        &self,
        inode: &Inode,
        file: FileId,
        size: u64,
    ) -> Result<Option<(BlockKey, Bytes)>> {
        let keep = (size % self.block_size) as usize;
        if keep == 0 {
            return Ok(None);
        }
        let key = BlockKey::new(file, size / self.block_size);
        let Some(old) = self.read_block(inode, key).await? else {
            return Ok(None);
        };
        if old[keep..].iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let mut new = BytesMut::from(&old[..]);
        new[keep..].fill(0);
        Ok(Some((key, new.freeze())))
    }

    /// Cuts `data` into whole blocks, filled up with what the file holds there.
    async fn whole_blocks(
        &self,
        inode: &Inode,
        file: FileId,
        offset: u64,
        data: &Bytes,
    ) -> Result<Vec<(BlockKey, Bytes)>> {
        let size = self.block_size;
        let end = offset + data.len() as u64;
        let mut blocks = Vec::new();
        for block in offset / size..end.div_ceil(size) {
            let key = BlockKey::new(file, block);
            let start = block * size;
            let from = offset.max(start);
            let to = end.min(start + size);
            let piece = data.slice((from - offset) as usize..(to - offset) as usize);
            if piece.len() as u64 == size {
                blocks.push((key, piece));
                continue;
            }
            let mut whole = self.old_contents(inode, key).await?;
            whole[(from - start) as usize..(to - start) as usize].copy_from_slice(&piece);
            blocks.push((key, whole.freeze()));
        }
        Ok(blocks)
    }

    /// A block as the file shows it, with zeros past the end of the file.
    async fn old_contents(&self, inode: &Inode, key: BlockKey) -> Result<BytesMut> {
        let size = self.block_size as usize;
        let start = key.block.0 * self.block_size;
        let shown = inode.size.saturating_sub(start).min(self.block_size) as usize;
        let mut whole = BytesMut::zeroed(size);
        if shown > 0
            && let Some(old) = self.read_block(inode, key).await?
        {
            whole[..shown].copy_from_slice(&old[..shown]);
        }
        Ok(whole)
    }

    /// Packs blocks before the core lock is taken, which every write needs. Should the generation change meanwhile, they are
    /// packed again.
    fn prepared(
        &self,
        inode: &Inode,
        blocks: impl Iterator<Item = (BlockKey, Bytes)>,
    ) -> Vec<(BlockKey, Prepared)> {
        let generation = match inode.class {
            FileClass::Data => self.core.lock().generation(inode.class),
            _ => Generation::SINGLE,
        };
        let prepare = |(key, data): (BlockKey, Bytes)| {
            // These are mostly not written at all.
            let block = match data.iter().all(|byte| *byte == 0) {
                true => Prepared::plain(data),
                false => self.storage.prepare(key, generation, data),
            };
            (key, block)
        };
        blocks.map(prepare).collect()
    }

    /// The one step: hands blocks to the storage and grows the file.
    fn accept(
        &self,
        file: FileId,
        blocks: Vec<(BlockKey, Prepared)>,
        end: u64,
        now: Timestamp,
    ) -> Result<Written> {
        let mut core = self.core.lock();
        self.guard_growth(&mut core, file, end, now)?;
        let inode = core.namespace.file(file)?;
        let (class, old_size) = (inode.class, inode.size);
        let generation = core.generation(class);
        let mut version = None;
        for (key, block) in blocks {
            // Behind the end everything reads as zeros already (truncation marks): a database that
            // extends a file by zeros, or fills a new log segment up with them, costs nothing.
            let behind_end = key.block.0 * self.block_size >= old_size;
            if behind_end && block.data.iter().all(|byte| *byte == 0) {
                self.forget_base(key);
                self.discard_inherited(key);
                continue;
            }
            version = Some(self.put_block(&mut core, key, generation, class, block)?);
        }
        match core.namespace.plan_grow(file, end, now)? {
            Some(op) => self.commit(&mut core, op, None)?,
            None => {
                core.mtimes.insert(file, now);
            }
        }
        let path = match class {
            FileClass::Log | FileClass::Data => core.namespace.path_of(file),
            _ => None,
        };
        Ok(Written {
            class,
            generation,
            path,
            version,
        })
    }

    pub(super) fn put_block(
        &self,
        core: &mut Core,
        key: BlockKey,
        generation: Generation,
        class: FileClass,
        block: Prepared,
    ) -> Result<Version> {
        self.forget_base(key);
        let data = block.data.clone();
        let version = self.storage.write_prepared(key, generation, block)?;
        if class == FileClass::Data {
            core.writes.note(key, version);
        }
        let block = Cached {
            version,
            generation,
            data,
        };
        self.cache.write(key, LATEST, block);
        // Last: whoever does not find it there any more finds the new one, and if the storage refuses
        // that, what was inherited still shows.
        self.discard_inherited(key);
        Ok(version)
    }

    /// What was known of the inherited base's version says nothing of the block any more.
    fn forget_base(&self, key: BlockKey) {
        if let Some(base) = &self.inherited_base {
            base.forget(key);
        }
    }

    fn discard_inherited(&self, key: BlockKey) {
        if let Some(write_back) = &self.write_back {
            write_back.blocks.discard(key);
        }
    }

    /// A dead epoch may have stored blocks of a log or live file behind the end that its journal
    /// came to say: before such a file grows, everything behind its end is cut off.
    fn guard_growth(&self, core: &mut Core, id: FileId, end: u64, at: Timestamp) -> Result<()> {
        let inode = core.namespace.file(id)?;
        let size = inode.size;
        if inode.class == FileClass::Data || epoch_of(id) >= self.epoch || end <= size {
            return Ok(());
        }
        let first_block = BlockIndex(size.div_ceil(self.block_size));
        let ours = |cut: &Cut| cut.version.epoch == self.epoch && cut.first_block <= first_block;
        if inode.cuts.iter().any(ours) {
            return Ok(());
        }
        let version = self.storage.next_version()?;
        let cut = Cut {
            first_block,
            version,
        };
        self.commit(core, Op::Truncate { id, size, cut, at }, None)
    }

    fn report(&self, written: &Written, offset: u64, data: &Bytes) {
        let Some(path) = &written.path else {
            return;
        };
        match written.class {
            FileClass::Log => self.observer.log_written(path, offset, data),
            _ => self
                .observer
                .data_written(path, offset, data, written.generation),
        }
    }

    /// Cuts or extends a file.
    pub(super) async fn resize(
        &self,
        _ticket: &Ticket<'_>,
        file: FileId,
        size: u64,
        mode: Resize,
        now: Timestamp,
    ) -> Result<()> {
        if size > MAX_SIZE_BYTES {
            return Err(Error::TooLarge);
        }
        self.storage.write_room(self.block_size as usize).await?;
        let _alone = self.locks.of(file).write().await;
        let inode = self.shared_inode(file)?;
        if mode == Resize::Grow && size <= inode.size {
            return Ok(());
        }
        let boundary = self.zeroed_tail(&inode, file, size.min(inode.size)).await?;
        let mut core = self.core.lock();
        self.guard_growth(&mut core, file, size, now)?;
        let version = self.storage.next_version()?;
        let Some(op) = core
            .namespace
            .plan_resize(file, size, self.block_size, version, now)?
        else {
            return Ok(());
        };
        let class = core.namespace.file(file)?.class;
        let generation = core.generation(class);
        if let (Op::Truncate { cut, .. }, Some(write_back)) = (&op, &self.write_back) {
            write_back.blocks.discard_from(file, cut.first_block);
        }
        if let Some((key, data)) = boundary {
            let block = Prepared::plain(data);
            self.put_block(&mut core, key, generation, class, block)?;
        }
        core.mtimes.remove(&file);
        self.commit(&mut core, op, None)
    }

    /// Makes a range read as zeros by writing them.
    pub(super) async fn zero(
        self: &Arc<Self>,
        ticket: &Ticket<'_>,
        file: FileId,
        range: Range<u64>,
        keep_size: bool,
        now: Timestamp,
    ) -> Result<()> {
        let size = self.shared_inode(file)?.size;
        let mut at = range.start;
        let end = if keep_size {
            range.end.min(size)
        } else {
            range.end
        };
        while at < end {
            let piece = (end - at).min(ZERO_PIECE_BYTES - at % ZERO_PIECE_BYTES);
            let zeros = Bytes::from(vec![0; piece as usize]);
            self.write_file(ticket, file, at, zeros, now).await?;
            at += piece;
        }
        Ok(())
    }

    /// Returns when a file's contents and everything that the journal has to say of it are durable.
    pub(super) async fn sync_file(&self, file: FileId) -> Result<()> {
        let target = self.journal.target(file);
        let blocks = async { Ok(self.storage.csync(SyncScope::File(file)).await?) };
        let names = async {
            match target {
                Some(at) => self.journal.flush_to(at).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(blocks, names)?;
        Ok(())
    }
}

fn check_end(offset: u64, len: usize) -> Result<u64> {
    let end = offset.checked_add(len as u64);
    end.filter(|end| *end <= MAX_SIZE_BYTES)
        .ok_or(Error::TooLarge)
}
