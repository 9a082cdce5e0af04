//! Changes of contents and sizes on a standby (pure): they end in the overlay, never on the base.
//!
//! Invariant: bytes of a file's last block beyond its size are zero, so growing a file needs no
//! write. The caller brings the boundary block of a cut, because it may have to be read first.

use std::ops::Range;

use super::overlay::{BlockItem, Content, Stamped};
use super::state::State;
use crate::error::{Error, Result};
use crate::layout::FileClass;
use crate::view::{AttrChange, FileKind, Ino, Timestamp};

impl State {
    /// Fails unless `ino` is a regular file.
    pub fn expect_file(&self, ino: Ino) -> Result<()> {
        match self.kind(ino)? {
            FileKind::File => Ok(()),
            FileKind::Directory => Err(Error::IsDirectory),
            FileKind::Symlink => Err(Error::Invalid("not a regular file")),
        }
    }

    /// Puts whole blocks over the base; the file reaches at least to `end`.
    pub fn put_blocks(
        &mut self,
        ino: Ino,
        blocks: impl IntoIterator<Item = (u64, Content)>,
        end: u64,
        now: Timestamp,
    ) -> Result<()> {
        let stamp = self.stamp();
        let size = self.size(ino)?;
        self.modified(ino, now)?;
        let item = self.overlay.item_mut(ino);
        for (block, content) in blocks {
            item.blocks.insert(block, BlockItem { content, stamp });
        }
        item.in_use_since_cut = true;
        if end > size {
            item.size = Some(Stamped { value: end, stamp });
        }
        Ok(())
    }

    /// True if an inode is an empty file of the image that nothing private is known of: to redo, which
    /// opens a file where it would make one, it is as good as new.
    pub fn may_be_taken(&self, ino: Ino) -> Result<bool> {
        let is_file = self.kind(ino)? == FileKind::File;
        Ok(is_file
            && self.item(ino).is_none()
            && self.class(ino)? == FileClass::Data
            && self.size(ino)? == 0)
    }

    /// Redo may have taken this empty file for one that the log creates. From now on it is redo's as a
    /// created one would be, and no move takes it away before redo is as far in the log.
    pub fn take(&mut self, ino: Ino) {
        let stamp = self.replay_limit;
        let item = self.overlay.item_mut(ino);
        item.size = Some(Stamped { value: 0, stamp });
    }

    /// Grows a file; the new bytes read as zeros.
    pub fn extend(&mut self, ino: Ino, size: u64, now: Timestamp) -> Result<()> {
        self.put_blocks(ino, [], size, now)
    }

    /// Cuts a file to `size`. `boundary` is the block that `size` falls into with zeros behind it,
    /// unless `size` falls between blocks.
    pub fn truncate(
        &mut self,
        ino: Ino,
        size: u64,
        boundary: Option<Content>,
        now: Timestamp,
    ) -> Result<()> {
        let stamp = self.stamp();
        let first_gone = size.div_ceil(u64::from(self.block_bytes));
        self.modified(ino, now)?;
        let item = self.overlay.item_mut(ino);
        item.cut(first_gone, stamp);
        if let Some(content) = boundary {
            let block = first_gone - 1;
            item.blocks.insert(block, BlockItem { content, stamp });
        }
        item.size = Some(Stamped { value: size, stamp });
        Ok(())
    }

    /// The whole blocks inside a range of bytes.
    pub fn whole_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.block_bytes);
        let first = range.start.div_ceil(block);
        first..(range.end / block).max(first)
    }

    fn modified(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let change = AttrChange {
            mtime: Some(now),
            ..AttrChange::default()
        };
        self.set_attr(ino, change, now).map(drop)
    }
}
