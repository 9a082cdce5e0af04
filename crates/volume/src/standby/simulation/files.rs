//! A view, used as the model's PostgreSQL uses files: by path, whole pages.

use std::sync::Arc;

use bytes::Bytes;

use super::page::{PAGE_BYTES, Page, PageId};
use crate::error::{Error, Result};
use crate::view::{AttrChange, FileKind, Ino, NewInode, Ownership, Timestamp, View};

const NOW: Timestamp = Timestamp(1);

/// The user who runs the tests, so that private files can belong to it.
pub(super) fn owner() -> Ownership {
    Ownership {
        mode: 0o700,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

#[derive(Clone)]
pub(super) struct Files {
    pub view: Arc<dyn View>,
}

impl Files {
    fn ino(&self, path: &str) -> Result<Ino> {
        let mut parts = path.split('/').filter(|p| !p.is_empty());
        parts.try_fold(Ino::ROOT, |dir, name| {
            self.view.lookup(dir, name.as_bytes()).map(|a| a.ino)
        })
    }

    fn at<'a>(&self, path: &'a str) -> Result<(Ino, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.ino(dir)?, name.as_bytes()))
    }

    /// The bytes of a file, or `None` if it is not there.
    pub fn size(&self, path: &str) -> Result<Option<u64>> {
        match self.ino(path).and_then(|ino| self.view.attr(ino)) {
            Ok(attr) => Ok(Some(attr.size)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Pages of a file, or `None` if it is not there.
    pub fn pages(&self, path: &str) -> Result<Option<u64>> {
        Ok(self.size(path)?.map(|bytes| bytes / PAGE_BYTES))
    }

    pub fn create(&self, path: &str) -> Result<()> {
        self.make(path, NewInode::File)
    }

    /// Opens a file, and closes it at once.
    pub fn open(&self, path: &str) -> Result<()> {
        let ino = self.ino(path)?;
        self.view.open(ino)?;
        self.view.release(ino);
        Ok(())
    }

    pub fn mkdir(&self, path: &str) -> Result<()> {
        self.make(path, NewInode::Directory)
    }

    fn make(&self, path: &str, new: NewInode) -> Result<()> {
        let (dir, name) = self.at(path)?;
        self.view.create(dir, name, new, owner(), NOW).map(drop)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path)?;
        self.view.unlink(dir, name, NOW)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path)?;
        self.view.rmdir(dir, name, NOW)
    }

    /// Names in a directory, in order; `None` if it is not there.
    pub fn names(&self, path: &str) -> Result<Option<Vec<String>>> {
        let entries = match self.ino(path).and_then(|ino| self.view.read_dir(ino)) {
            Ok(entries) => entries,
            Err(Error::NotFound) => return Ok(None),
            Err(e) => return Err(e),
        };
        let name = |name: Vec<u8>| String::from_utf8_lossy(&name).into_owned();
        let mut names: Vec<String> = entries.into_iter().map(|e| name(e.name)).collect();
        names.sort();
        Ok(Some(names))
    }

    /// Cuts or extends.
    pub async fn resize(&self, path: &str, pages: u64) -> Result<()> {
        let change = AttrChange {
            size: Some(pages * PAGE_BYTES),
            ..AttrChange::default()
        };
        self.view
            .set_attr(self.ino(path)?, change, NOW)
            .await
            .map(drop)
    }

    /// All of a small file.
    pub async fn read(&self, path: &str) -> Result<Bytes> {
        let ino = self.ino(path)?;
        let size = self.view.attr(ino)?.size;
        self.view.read(ino, 0, size as u32).await
    }

    pub async fn write(&self, path: &str, data: Bytes) -> Result<()> {
        self.view.write(self.ino(path)?, 0, data, NOW).await
    }

    /// A page; `None` behind the end of the file.
    pub async fn read_page(&self, id: PageId) -> Result<Option<Page>> {
        let ino = self.ino(&id.file.path())?;
        let bytes = self
            .view
            .read(ino, id.block * PAGE_BYTES, PAGE_BYTES as u32)
            .await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let page = Page::decode(&bytes);
        page.map(Some)
            .ok_or_else(|| Error::Damaged(format!("{id:?} is not one page")))
    }

    /// The bytes of a block.
    pub async fn read_block(&self, path: &str, block: u64) -> Result<Bytes> {
        let ino = self.ino(path)?;
        let offset = block * PAGE_BYTES;
        self.view.read(ino, offset, PAGE_BYTES as u32).await
    }

    pub async fn write_page(&self, id: PageId, page: &Page) -> Result<()> {
        let ino = self.ino(&id.file.path())?;
        self.view
            .write(ino, id.block * PAGE_BYTES, page.encode(), NOW)
            .await
    }

    pub async fn sync(&self, path: &str) -> Result<()> {
        self.view.fsync(self.ino(path)?).await
    }

    /// Removes a directory with all that is in it.
    pub fn remove_all(&self, path: &str) -> Result<()> {
        let dir = self.ino(path)?;
        for entry in self.view.read_dir(dir)? {
            assert_eq!(entry.kind, FileKind::File, "databases have no directories");
            self.view.unlink(dir, &entry.name, NOW)?;
        }
        self.rmdir(path)
    }
}
