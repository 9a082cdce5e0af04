//! Reading blocks of a state: overlay, cache, storage, many at once.
//!
//! Invariants: what is cached never changes its bytes. Blocks of an image are cached as long as
//! [`Known`] says that no later base has another version; blocks of the log only when all of them is
//! below the replay limit, because the active still appends to the last one (rule 5); of that one, what was
//! below the replay limit when it was read last is kept, because the feed and redo ask for the same bytes one
//! after the other. What the active sent of its log ([`RecentLog`]) is not read at all. What redo has read of the log
//! leaves, but for the segment that the log ends in. Configuration is not cached: it is small, and its writer may
//! change it in place. A block of an image whose version is known is read from one replica, which must have exactly
//! that version (CAC-DB 4.5.2); all else by quorum. What the storage says is passed on, or kept, only once
//! the claim on it is known to have stood ([`super::standing`]).

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use dax::error::ErrorKind;
use dax::ids::{BlockKey, FileId, Generation, Version};
use dax::storage::{Block, Storage};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::ahead::Ahead;
use super::known::{Expected, Known};
use super::standing::ClaimWatch;
use super::state::{BlockSource, State};
use crate::cache::{BlockCache, Cached};
use crate::error::{Error, Result};
use crate::image;
use crate::layout::FileClass;
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::recent_log::RecentLog;
use crate::seal::Base;
use crate::view::Ino;

/// The largest block that a volume can have.
const MAX_BLOCK_BYTES: usize = 65536;
static ZEROS: [u8; MAX_BLOCK_BYTES] = [0; MAX_BLOCK_BYTES];

/// Where a block would be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residence {
    /// In the mount's cache of blocks of the base.
    Cache,
    /// Elsewhere in this node's memory: in the overlay, or known to be zeros.
    Memory,
    /// In the zones, or on the local disk.
    Storage,
}

/// Reads what states say where it is.
#[derive(Clone)]
pub(crate) struct Fetcher {
    pub storage: Arc<dyn Storage>,
    pub(super) claim: Option<ClaimWatch>,
    pub(super) cache: Arc<BlockCache>,
    /// What is known of the current base.
    pub known: Arc<Known>,
    pub(super) ahead: Arc<Ahead>,
    tail: Arc<Mutex<Option<Tail>>>,
    /// The segment of the log that redo read last.
    redo_in: Arc<Mutex<Option<FileId>>>,
    /// What the present active sends of its log.
    recent: Arc<Mutex<Option<Arc<RecentLog>>>>,
}

/// A block that the replay limit is in, as it was read last.
struct Tail {
    key: BlockKey,
    /// The replay limit was at least here when it was read: these bytes do not change any more.
    shown: u32,
    block: Cached,
}

/// One block of zeros.
pub(crate) fn zeros(block_bytes: u32) -> Bytes {
    Bytes::from_static(&ZEROS[..block_bytes as usize])
}

/// True if a block holds nothing but zeros.
pub(crate) fn is_zero(block: &[u8]) -> bool {
    block == &ZEROS[..block.len()]
}

impl Fetcher {
    /// For one view, on its first base: all the bases that it will have continue each other.
    pub fn new(
        storage: Arc<dyn Storage>,
        cache: Arc<BlockCache>,
        base: &Base,
        claim: Option<ClaimWatch>,
    ) -> Fetcher {
        let known = Known::new(base.seal.generation, Arc::clone(&cache));
        Fetcher {
            storage,
            claim,
            cache,
            known: Arc::new(known),
            ahead: Arc::new(Ahead::new()),
            tail: Arc::default(),
            redo_in: Arc::default(),
            recent: Arc::default(),
        }
    }

    /// Reads the log from `recent` from now on, as far as it is there.
    pub fn read_recent(&self, recent: Option<Arc<RecentLog>>) {
        *self.recent.lock() = recent;
    }

    /// A whole block of a file.
    pub async fn block(&self, state: &State, ino: Ino, block: u64) -> Result<Bytes> {
        match state.block(ino, block) {
            BlockSource::Zeros => Ok(zeros(state.block_bytes)),
            BlockSource::Overlay(content) => Ok(content.read().await?),
            BlockSource::Base { key, base } => self.of_image(&base, key, state.block_bytes).await,
            BlockSource::Single { key, shown, at } => {
                match self.single_at_hand(state, key, shown, at) {
                    Some(data) => Ok(data),
                    None => {
                        let single = self.single(&state.live, key, shown, state.block_bytes);
                        single.await
                    }
                }
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

    /// Where a block would be read.
    pub fn residence(&self, state: &State, ino: Ino, block: u64) -> Residence {
        match state.block(ino, block) {
            // To look is not to read: it is not counted.
            BlockSource::Base { key, base } if self.is_cached(&base, key) => Residence::Cache,
            BlockSource::Base { .. } => Residence::Storage,
            _ if self.at_hand(state, ino, block).is_some() => Residence::Memory,
            _ => Residence::Storage,
        }
    }

    /// A block that needs no waiting.
    fn at_hand(&self, state: &State, ino: Ino, block: u64) -> Option<Bytes> {
        match state.block(ino, block) {
            BlockSource::Zeros => Some(zeros(state.block_bytes)),
            BlockSource::Overlay(content) => content.in_memory(),
            BlockSource::Base { key, base } => {
                let cached = self.known.cached(&base, key)?;
                self.was_read(key);
                Some(visible(&base.namespace, key, cached, state.block_bytes))
            }
            BlockSource::Single { key, shown, at } => self.single_at_hand(state, key, shown, at),
        }
    }

    /// A block as of a base.
    async fn of_image(&self, base: &Base, key: BlockKey, block_bytes: u32) -> Result<Bytes> {
        let block = self.stored(base, key).await?;
        self.was_read(key);
        Ok(block.map_or_else(
            || zeros(block_bytes),
            |block| visible(&base.namespace, key, block, block_bytes),
        ))
    }

    /// What a coming base has of a block, asked of a quorum. It is not learned: the base may not come.
    pub async fn look_ahead(&self, base: &Base, key: BlockKey) -> Result<Expected> {
        let found = image::read_version(&self.storage, &base.seal.lineage, key).await?;
        self.vouch(found.is_some()).await?;
        Ok(Expected::found(found.map(Cached::from).as_ref()))
    }

    /// Makes sure of what the storage just said, before anybody hears of it or it is kept: this standby may have
    /// slept, and it not be kept for it any more ([`super::standing`]).
    pub(super) async fn vouch(&self, found: bool) -> Result<()> {
        match &self.claim {
            Some(claim) => claim.vouch(&self.storage, found).await,
            None => Ok(()),
        }
    }

    async fn stored(&self, base: &Base, key: BlockKey) -> Result<Option<Cached>> {
        if let Some(cached) = self.known.cached(base, key) {
            return Ok(Some(cached));
        }
        if self.ahead.wait(key, base.seal.generation).await
            && let Some(cached) = self.known.cached(base, key)
        {
            return Ok(Some(cached));
        }
        self.read_stored(base, key).await
    }

    /// What redo has read it changes, so the next that is asked for is another one, PostgreSQL's or the overlay's.
    fn was_read(&self, key: BlockKey) {
        if self.ahead.read(key) {
            self.known.give_up(key);
        }
    }

    /// Redo has read a part of a segment of the log, which makes room for what it will read. What it keeps is the
    /// segment that the log ends in: a promotion copies that one, and who asks for the log anew begins with its start.
    pub fn log_was_read(
        &self,
        state: &State,
        file: FileId,
        segment: &Range<Lsn>,
        bytes: Range<u64>,
    ) {
        let give_up = |file, blocks: Range<u64>| {
            for block in blocks {
                self.cache
                    .give_up(BlockKey::new(file, block), Generation::SINGLE);
            }
        };
        let size = u64::from(state.block_bytes);
        let before = self.redo_in.lock().replace(file);
        if let Some(left) = before.filter(|before| *before != file) {
            give_up(
                left,
                0..segment.end.bytes_since(segment.start).div_ceil(size),
            );
        }
        if state.replay_limit >= segment.end {
            give_up(file, bytes.start / size..bytes.end / size);
        }
    }

    /// True if a block of a base is at hand.
    pub(super) fn is_cached(&self, base: &Base, key: BlockKey) -> bool {
        self.known.has(base, key)
    }

    /// The blocks of images that are at hand, in no order.
    pub(super) fn cached_blocks(&self) -> impl Iterator<Item = BlockKey> + '_ {
        let keys = self.cache.keys();
        keys.filter(|(_, image)| *image != Generation::SINGLE)
            .map(|(key, _)| key)
    }

    /// Blocks of files of one version that are at hand: of the log, wholly below what was shown.
    pub(super) fn cached_log(&self) -> impl Iterator<Item = (BlockKey, Cached)> + '_ {
        let keys = self.cache.keys();
        keys.filter(|(_, image)| *image == Generation::SINGLE)
            .filter_map(|(key, image)| Some((key, self.cache.get(key, image)?)))
    }

    /// How many blocks are at hand.
    pub(super) fn cached_count(&self) -> u64 {
        self.cache.count()
    }

    /// Reads a block of a base from the storage into the cache.
    pub(super) async fn read_stored(&self, base: &Base, key: BlockKey) -> Result<Option<Cached>> {
        let ticket = self.known.ticket(base, key);
        let found = match self.known.expect(base, key) {
            Some(expected) if expected.is_absent() => return Ok(None),
            Some(expected) => Some(self.expected(key, expected).await?),
            None => {
                let found = image::read_version(&self.storage, &base.seal.lineage, key).await?;
                self.vouch(found.is_some()).await?;
                found
            }
        };
        let found = found.map(Cached::from);
        if let Some(ticket) = ticket {
            self.known.learn(ticket, key, found.as_ref());
        }
        Ok(found)
    }

    /// A block whose version is known.
    async fn expected(&self, key: BlockKey, expected: Expected) -> Result<Block> {
        let Expected { since, version } = expected;
        let found = match self.storage.read_expected(key, since, version).await {
            // What was given back looks as damaged as that.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.vouch(false).await?;
                return Err(error.into());
            }
            found => found?,
        };
        self.vouch(found.is_some()).await?;
        found.ok_or_else(|| Error::Damaged(format!("{key} has lost its version {version}")))
    }

    /// A block that has one version, if all of it was read before, or if it was sent.
    fn single_at_hand(
        &self,
        state: &State,
        key: BlockKey,
        shown: u32,
        at: Option<Lsn>,
    ) -> Option<Bytes> {
        let cached = (shown == state.block_bytes).then(|| self.cache.get(key, Generation::SINGLE));
        match cached.flatten() {
            Some(cached) => Some(visible(&state.live, key, cached, state.block_bytes)),
            None => self.sent(state, key, shown, at),
        }
    }

    /// A block of the log that the active sent, up to what is shown of it. One that a mark covers is read, because
    /// marks go by the versions of what is stored.
    fn sent(&self, state: &State, key: BlockKey, shown: u32, at: Option<Lsn>) -> Option<Bytes> {
        let at = at?;
        let recent = self.recent.lock().clone()?;
        let inode = state.live.get(key.file)?;
        if inode.has_cut_over(key.block) {
            return None;
        }
        let data = recent.read(at..Lsn(at.0 + u64::from(shown)))?;
        if shown < state.block_bytes {
            let mut block = BytesMut::zeroed(state.block_bytes as usize);
            block[..data.len()].copy_from_slice(&data);
            return Some(block.freeze());
        }
        let sent = Cached {
            // No mark covers it yet, so every mark that will is newer.
            version: Version {
                epoch: recent.epoch(),
                seq: 0,
            },
            generation: Generation::SINGLE,
            data: data.clone(),
        };
        let ticket = self.cache.ticket(key);
        self.cache.fill(key, Generation::SINGLE, ticket, sent);
        Some(data)
    }

    /// A block that has one version and is not at hand as it is wanted; bytes from `shown` on read as zeros.
    async fn single(
        &self,
        live: &Namespace,
        key: BlockKey,
        shown: u32,
        block_bytes: u32,
    ) -> Result<Bytes> {
        let inode = live.get(key.file);
        let is_log = inode.is_some_and(|inode| inode.class == FileClass::Log);
        // Of a part the whole may be there, if it was read ahead.
        let known = (is_log && shown < block_bytes)
            .then(|| (self.tail(key, shown)).or_else(|| self.cache.get(key, Generation::SINGLE)));
        if let Some(cached) = known.flatten() {
            let data = visible(live, key, cached, block_bytes);
            return Ok(clipped(data, shown as usize));
        }
        let ticket = self.cache.ticket(key);
        let found = self.storage.read(key, Generation::SINGLE).await?;
        self.vouch(found.is_some()).await?;
        let Some(block) = found else {
            return Ok(zeros(block_bytes));
        };
        let block = Cached::from(block);
        if is_log && shown == block_bytes {
            self.cache
                .fill(key, Generation::SINGLE, ticket, block.clone());
        } else if is_log {
            self.keep_tail(key, shown, block.clone());
        }
        let data = visible(live, key, block, block_bytes);
        Ok(clipped(data, shown as usize))
    }

    /// A block of the log up to `shown`, if it was read last when the replay limit was there already.
    fn tail(&self, key: BlockKey, shown: u32) -> Option<Cached> {
        let tail = self.tail.lock();
        let tail = tail.as_ref().filter(|tail| tail.key == key);
        Some(tail.filter(|tail| tail.shown >= shown)?.block.clone())
    }

    fn keep_tail(&self, key: BlockKey, shown: u32, block: Cached) {
        let mut tail = self.tail.lock();
        let better = |known: &Tail| known.key == key && known.shown >= shown;
        if !tail.as_ref().is_some_and(better) {
            *tail = Some(Tail { key, shown, block });
        }
    }
}

impl Expected {
    /// True if a base shows the version: its own cuts do not hide it.
    pub fn is_shown(self, base: &Base, key: BlockKey) -> bool {
        let inode = base.namespace.get(key.file);
        !self.is_absent() && inode.is_some_and(|i| !i.is_cut(key.block, self.version))
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
