//! [`View`] for a standby: names and attributes go to the pure state or to the local disk, after the
//! gate; contents to [`super::view_io`].

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::gate::Entry;
use super::overlay::is_private;
use super::view::{Place, StandbyView};
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::namespace::plan::{check_name, check_symlink};
use crate::view::{
    Attr, AttrChange, CachePolicy, DirEntry, Fallocate, FileKind, Ino, NewInode, Ownership,
    PageCache, RenameMode, StatFs, Timestamp, View,
};

/// Long enough to cost nothing.
const DIRECTORIES_KEPT: Duration = Duration::from_secs(3600);

/// Enters the gate, or returns the successor's answer.
macro_rules! enter {
    ($view:expr, $successor:ident => $answer:expr) => {
        match $view.gate.enter_blocking() {
            Entry::Here(pass) => pass,
            Entry::Successor($successor) => return $answer,
        }
    };
}

/// The same for operations that may wait.
macro_rules! enter_async {
    ($view:expr, $successor:ident => $answer:expr) => {
        match $view.gate.enter().await {
            Entry::Here(pass) => pass,
            Entry::Successor($successor) => return $answer.await,
        }
    };
}

#[async_trait]
impl View for StandbyView {
    /// Nothing may be kept by the kernel: names and sizes change behind its back (rule 8, N5).
    fn cache_policy(&self) -> CachePolicy {
        match self.gate.successor() {
            Some(next) => next.cache_policy(),
            None => CachePolicy {
                metadata: Duration::ZERO,
            },
        }
    }

    /// Every path leads through directories of the image, and asking for each of them anew is most of
    /// what redo's file operations cost. Their names stay what they are: a move takes none away and
    /// leads none elsewhere (N8), and at a takeover they keep their inodes. All other names can change:
    /// files' sizes with every move, what redo made and what is private with the takeover.
    fn keep(&self, found: &Attr) -> Duration {
        if let Some(next) = self.gate.successor() {
            return next.keep(found);
        }
        match found.kind == FileKind::Directory && self.state().is_of_image(found.ino) {
            true => DIRECTORIES_KEPT,
            false => Duration::ZERO,
        }
    }

    fn keep_missing(&self, parent: Ino, name: &[u8]) -> Duration {
        match self.gate.successor() {
            Some(next) => next.keep_missing(parent, name),
            None => Duration::ZERO,
        }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _pass = enter!(self, next => next.lookup(parent, name));
        check_name(name)?;
        let state = self.state();
        match self.place(&state, parent, name)? {
            Place::Private(path) => self.private.lookup(&path),
            Place::Shared(Some(ino)) => state.attr(ino),
            Place::Shared(None) => Err(Error::NotFound),
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let _pass = enter!(self, next => next.attr(ino));
        match is_private(ino) {
            true => self.private.attr(ino),
            false => self.state().attr(ino),
        }
    }

    async fn set_attr(&self, ino: Ino, change: AttrChange, now: Timestamp) -> Result<Attr> {
        let _pass = enter_async!(self, next => next.set_attr(ino, change, now));
        if is_private(ino) {
            return self.private.set_attr(ino, change);
        }
        if let Some(size) = change.size {
            self.resize(ino, size, now).await?;
        }
        self.change(|state| state.set_attr(ino, change, now))
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let _pass = enter!(self, next => next.read_link(ino));
        match is_private(ino) {
            true => self.private.read_link(ino),
            false => self.state().read_link(ino),
        }
    }

    fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> Result<Attr> {
        let _pass = enter!(self, next => next.create(parent, name, new, ownership, now));
        check_name(name)?;
        let state = self.state();
        match self.place(&state, parent, name)? {
            Place::Private(path) => self.private.create(&path, new, ownership),
            Place::Shared(_) => {
                if let NewInode::Symlink(target) = &new {
                    check_symlink(&state.path(parent)?, target)?;
                }
                self.change(|state| state.create((parent, name), new, ownership, now))
            }
        }
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        let _pass = enter!(self, next => next.link(ino, parent, name, now));
        check_name(name)?;
        match (is_private(ino), self.place(&self.state(), parent, name)?) {
            (true, Place::Private(path)) => self.private.link(ino, &path),
            (false, Place::Shared(_)) => self.change(|state| state.link(ino, (parent, name), now)),
            _ => Err(Error::CrossDevice),
        }
    }

    fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let _pass = enter!(self, next => next.unlink(parent, name, now));
        match self.place(&self.state(), parent, name)? {
            Place::Private(path) => self.private.unlink(&path),
            Place::Shared(_) => {
                let lost = self.change(|state| state.unlink((parent, name), now))?;
                self.reap(lost);
                Ok(())
            }
        }
    }

    fn rmdir(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        let _pass = enter!(self, next => next.rmdir(parent, name, now));
        let state = self.state();
        let ino = match self.place(&state, parent, name)? {
            Place::Private(path) => return self.private.rmdir(&path),
            Place::Shared(ino) => ino.ok_or(Error::NotFound)?,
        };
        let path = state.path(ino)?;
        if state.kind(ino)? == FileKind::Directory && !self.private_names(&path)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let lost = self.change(|state| state.rmdir((parent, name), now))?;
        self.reap(Some(lost));
        self.private.forget_directory(&path)
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        let _pass = enter!(self, next => next.rename(from, to, mode, now));
        check_name(to.1)?;
        let state = self.state();
        let moved = match (
            self.place(&state, from.0, from.1)?,
            self.place(&state, to.0, to.1)?,
        ) {
            (Place::Private(from), Place::Private(to)) => {
                return self.private.rename(&from, &to, mode);
            }
            (Place::Shared(moved), Place::Shared(_)) => moved.ok_or(Error::NotFound)?,
            _ => return Err(Error::CrossDevice),
        };
        let paths = (state.path_in(from.0, from.1)?, state.path_in(to.0, to.1)?);
        let lost = self.change(|state| state.rename(from, to, mode, now))?;
        self.reap(lost);
        if state.kind(moved)? != FileKind::Directory {
            return Ok(());
        }
        // Private names below the directory go with it.
        match self.private.rename(&paths.0, &paths.1, mode) {
            Err(Error::NotFound) => Ok(()),
            other => other,
        }
    }

    fn open(&self, ino: Ino) -> Result<PageCache> {
        let _pass = enter!(self, next => next.open(ino));
        if is_private(ino) {
            return self.private.open(ino);
        }
        let mut opens = self.opens.lock();
        if self.state().may_be_taken(ino)? {
            self.change_in_place(|state| state.take(ino));
        }
        *opens.entry(ino).or_default() += 1;
        self.configuration_opened(ino);
        Ok(PageCache::Bypassed)
    }

    fn release(&self, ino: Ino) {
        let _pass = enter!(self, next => next.release(ino));
        if is_private(ino) {
            return self.private.release(ino);
        }
        let mut opens = self.opens.lock();
        if let Some(count) = opens.get_mut(&ino) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            opens.remove(&ino);
        }
        self.configuration.lock().remove(&ino);
        drop(opens);
        self.reap(Some(ino));
    }

    fn read_dir(&self, ino: Ino) -> Result<Vec<DirEntry>> {
        let _pass = enter!(self, next => next.read_dir(ino));
        if is_private(ino) {
            self.private.attr(ino)?;
            let path = self.private.path(ino).ok_or(Error::NotFound)?;
            return self.private_names(&path);
        }
        let state = self.state();
        let mut entries = state.read_dir(ino)?;
        entries.extend(self.private_names(&state.path(ino)?)?);
        Ok(entries)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        let _pass = enter!(self, next => next.parent(ino));
        let state = self.state();
        if !is_private(ino) {
            return state.parent(ino);
        }
        let path = self.private.path(ino).ok_or(Error::NotFound)?;
        let (parent, _) = path.rsplit_once('/').unwrap_or(("", &path));
        match self.layout.standby_class(parent) {
            FileClass::Private => Ok(self.private.lookup(parent)?.ino),
            _ => state.resolve(parent),
        }
    }

    async fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        let _pass = enter_async!(self, next => next.read(ino, offset, len));
        match is_private(ino) {
            true => self.private.read(ino, offset, len),
            false => self.read_shared(ino, offset, len).await,
        }
    }

    async fn write(&self, ino: Ino, offset: u64, data: Bytes, now: Timestamp) -> Result<()> {
        let _pass = enter_async!(self, next => next.write(ino, offset, data, now));
        match is_private(ino) {
            true => self.private.write(ino, offset, &data),
            false => self.write_shared(ino, offset, &data, now).await,
        }
    }

    async fn fallocate(
        &self,
        ino: Ino,
        range: Range<u64>,
        mode: Fallocate,
        now: Timestamp,
    ) -> Result<()> {
        let _pass = enter_async!(self, next => next.fallocate(ino, range, mode, now));
        match is_private(ino) {
            true => self.private.fallocate(ino, range, mode),
            false => self.fallocate_shared(ino, range, mode, now).await,
        }
    }

    /// Nothing: the overlay is disposable (rule 1).
    async fn fsync(&self, ino: Ino) -> Result<()> {
        let _pass = enter_async!(self, next => next.fsync(ino));
        Ok(())
    }

    /// Nothing, as above.
    async fn sync_all(&self) -> Result<()> {
        let _pass = enter_async!(self, next => next.sync_all());
        Ok(())
    }

    async fn stat_fs(&self) -> Result<StatFs> {
        let _pass = enter_async!(self, next => next.stat_fs());
        let space = self.fetcher.storage.space().await?;
        let state = self.state();
        let block = u64::from(state.block_bytes);
        Ok(StatFs {
            block_size_bytes: state.block_bytes,
            blocks: (space.used_bytes + space.free_bytes) / block,
            blocks_free: space.free_bytes / block,
            files: state.base.namespace.len() as u64,
        })
    }
}

impl StandbyView {
    /// The private names of a directory, which may be a shared one.
    fn private_names(&self, path: &str) -> Result<Vec<DirEntry>> {
        let mut entries = self.private.list(path)?;
        entries.retain(|e| self.layout.standby_class(&e.path) == FileClass::Private);
        let entries = entries.into_iter().map(|e| DirEntry {
            ino: e.ino,
            kind: e.kind,
            name: e.name.into_bytes(),
        });
        Ok(entries.collect())
    }
}
