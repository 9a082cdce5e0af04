//! The mountable side: routes each operation to private or shared files.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::FileId;
use dax::storage::SyncScope;

use super::observer::WriteObserver;
use super::write::Resize;
use super::{ActiveView, Inner};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::private::is_private;
use crate::view::{
    Attr, AttrChange, CachePolicy, DirEntry, Fallocate, Ino, NewInode, Ownership, PageCache,
    RenameMode, StatFs, Timestamp, View,
};
use crate::waiting::Waiting;

impl ActiveView {
    async fn write_shared(
        &self,
        ticket: super::locks::Ticket<'_>,
        ino: Ino,
        offset: u64,
        data: Bytes,
        now: Timestamp,
    ) -> Result<()> {
        let inner = &self.inner;
        let file = inner.file_of(ino);
        let control = {
            let core = inner.core.lock();
            let inode = core.namespace.file(file)?;
            inner.is_control(&core.namespace, file, inode)
        };
        if !control {
            return inner.write_file(&ticket, file, offset, data, now).await;
        }
        // A cut waits for the tickets of earlier requests, and the observer may cut.
        drop(ticket);
        let _one = inner.controlling.lock().await;
        let data = inner.control_after(file, offset, data).await?;
        inner.observer.control_written(self, data, now).await
    }

    async fn fsync_shared(&self, ino: Ino) -> Result<()> {
        let inner = &self.inner;
        let file = inner.file_of(ino);
        let log_path = {
            let core = inner.core.lock();
            let inode = core.namespace.inode(file)?;
            let log = inode.class == FileClass::Log;
            log.then(|| core.namespace.path_of(file)).flatten()
        };
        let Some(path) = log_path else {
            return inner.sync_file(file).await;
        };
        if inner.observer.log_has_failed() {
            inner.check_authority()?;
            return Err(Error::Invalid("an earlier sync of the log failed"));
        }
        let token = inner.observer.log_sync_started(&path);
        if inner.observer.may_answer_early(token) {
            if let Err(fenced) = inner.check_authority() {
                inner.observer.log_sync_failed(&path, token);
                return Err(fenced);
            }
            let inner = Arc::clone(inner);
            // The flush is sent before this returns, so whatever the database does next comes behind it.
            Waiting::begin(&self.inner.runtime, async move {
                // Whoever syncs next hears why, and waits for itself.
                let _ = inner.sync_log(file, &path, token).await;
            });
            return Ok(());
        }
        inner.sync_log(file, &path, token).await?;
        inner.observer.before_commits_return().await;
        Ok(())
    }
}

/// A sync of a log file. Unless it is done it has failed, also if nobody waits for it any more: what is durable would
/// stay before it for ever.
struct LogSync<'a> {
    observer: &'a dyn WriteObserver,
    path: &'a str,
    token: u64,
}

impl LogSync<'_> {
    fn done(self) {
        self.observer.log_synced(self.path, self.token);
        std::mem::forget(self);
    }
}

impl Drop for LogSync<'_> {
    fn drop(&mut self) {
        self.observer.log_sync_failed(self.path, self.token);
    }
}

impl Inner {
    /// Syncs a log file, and tells the observer how that ended.
    async fn sync_log(&self, file: FileId, path: &str, token: u64) -> Result<()> {
        let under_way = LogSync {
            observer: &*self.observer,
            path,
            token,
        };
        self.sync_file(file).await?;
        under_way.done();
        Ok(())
    }

    /// Flushes the journal in the background when much waits for it.
    pub(super) fn flush_if_long(self: &Arc<Self>) {
        if !self.wants_flush() || self.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = self.clone();
        self.runtime.spawn(async move {
            let flushed = inner.journal.flush().await;
            inner.flushing.store(false, Ordering::Release);
            if let Err(e) = flushed {
                tracing::debug!(error = %e, "background flush of the journal failed; an fsync will say so");
            }
        });
    }
}

#[async_trait]
impl View for ActiveView {
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy {
            metadata: self.inner.options.metadata_cache,
        }
    }

    /// Private files change behind the kernel's back: the agent writes them where they are.
    fn keep(&self, found: &Attr) -> Duration {
        match is_private(found.ino) {
            true => Duration::ZERO,
            false => self.inner.options.metadata_cache,
        }
    }

    fn keep_missing(&self, parent: Ino, name: &[u8]) -> Duration {
        match self.inner.leads_to_private(parent, name) {
            true => Duration::ZERO,
            false => self.inner.options.metadata_cache,
        }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.lookup(parent, name)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.inner.attr(ino)
    }

    async fn set_attr(&self, ino: Ino, change: AttrChange, now: Timestamp) -> Result<Attr> {
        if is_private(ino) {
            return self.inner.private.set_attr(ino, change);
        }
        let file = self.inner.file_of(ino);
        if let Some(size) = change.size {
            let ticket = self.inner.tickets.take();
            self.inner
                .resize(&ticket, file, size, Resize::Exact, now)
                .await?;
        }
        let changed = self.inner.change_attr(file, change, now);
        self.inner.flush_if_long();
        changed
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.read_link(ino)
    }

    fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> Result<Attr> {
        let made = self.inner.create(parent, name, new, ownership, now);
        self.inner.flush_if_long();
        made
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        let linked = self.inner.link(ino, parent, name, now);
        self.inner.flush_if_long();
        linked
    }

    fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let removed = self.inner.unlink(parent, name, now);
        self.inner.flush_if_long();
        removed
    }

    fn rmdir(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let removed = self.inner.rmdir(parent, name, now);
        self.inner.flush_if_long();
        removed
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let renamed = self.inner.rename(from, to, mode, now);
        self.inner.flush_if_long();
        renamed
    }

    fn open(&self, ino: Ino) -> Result<PageCache> {
        if is_private(ino) {
            return self.inner.private.open(ino);
        }
        let file = self.inner.file_of(ino);
        let class = self.inner.open_file(file)?;
        Ok(match class {
            // It is written much and hardly read, and a write that goes past the cache is durable in one request
            // when PostgreSQL asks for that (O_DSYNC); the kernel makes two of it otherwise.
            FileClass::Log => PageCache::Never,
            _ if self.inner.options.kernel_cache => PageCache::Kept,
            _ => PageCache::Bypassed,
        })
    }

    fn release(&self, ino: Ino) {
        match is_private(ino) {
            true => self.inner.private.release(ino),
            false => self.inner.release_file(self.inner.file_of(ino)),
        }
    }

    fn read_dir(&self, ino: Ino) -> Result<Vec<DirEntry>> {
        self.inner.read_dir(ino)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        self.inner.parent(ino)
    }

    async fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        if is_private(ino) {
            return self.inner.private.read(ino, offset, len);
        }
        self.inner
            .read_file(self.inner.file_of(ino), offset, len)
            .await
    }

    /// Counts as received when it is called, not when it is first polled: a later cut waits for it.
    fn write<'life0, 'async_trait>(
        &'life0 self,
        ino: Ino,
        offset: u64,
        data: Bytes,
        now: Timestamp,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        if is_private(ino) {
            let done = self.inner.private.write(ino, offset, &data);
            return Box::pin(std::future::ready(done));
        }
        let ticket = self.inner.tickets.take();
        Box::pin(self.write_shared(ticket, ino, offset, data, now))
    }

    async fn fallocate(
        &self,
        ino: Ino,
        range: Range<u64>,
        mode: Fallocate,
        now: Timestamp,
    ) -> Result<()> {
        if is_private(ino) {
            return self.inner.private.fallocate(ino, range, mode);
        }
        let inner = &self.inner;
        let file = inner.file_of(ino);
        let ticket = inner.tickets.take();
        match mode {
            Fallocate::KeepSize => inner.shared_inode(file).map(drop),
            Fallocate::Extend => {
                inner
                    .resize(&ticket, file, range.end, Resize::Grow, now)
                    .await
            }
            Fallocate::Zero { keep_size } => inner.zero(&ticket, file, range, keep_size, now).await,
        }
    }

    async fn fsync(&self, ino: Ino) -> Result<()> {
        match is_private(ino) {
            true => Ok(()),
            false => self.fsync_shared(ino).await,
        }
    }

    async fn sync_all(&self) -> Result<()> {
        let blocks = async { Ok(self.inner.storage.csync(SyncScope::Volume).await?) };
        tokio::try_join!(blocks, self.inner.journal.flush())?;
        Ok(())
    }

    async fn stat_fs(&self) -> Result<StatFs> {
        let space = self.inner.storage.space().await?;
        let block = self.inner.block_size;
        Ok(StatFs {
            block_size_bytes: self.inner.storage.settings().block_size_bytes,
            blocks: (space.used_bytes + space.free_bytes) / block,
            blocks_free: space.free_bytes / block,
            files: self.inner.core.lock().namespace.len() as u64,
        })
    }
}
