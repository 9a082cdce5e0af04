//! An image for a loop device, some of whose sectors cannot be read: a file system of one file, which passes on what it is asked.
//!
//! ```text
//!   sector: readable ── fail ──▶ unreadable, each time ── written ──▶ readable
//! ```
//!
//! As on a disk, a sector that is written again is readable again.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use parking_lot::Mutex;

const NAME: &str = "image";
const IMAGE: INodeNo = INodeNo(2);
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// Ranges of bytes that cannot be read.
type Unreadable = Arc<Mutex<Vec<Range<u64>>>>;

/// The image, shown in a directory. Dropping it takes that away.
pub(super) struct Sectors {
    path: PathBuf,
    unreadable: Unreadable,
    _session: BackgroundSession,
}

impl Sectors {
    /// Shows the file in a directory, which is made.
    ///
    /// # Errors
    /// There is no FUSE here, or the caller may not mount.
    pub fn mount(file: &Path, directory: &Path) -> anyhow::Result<Sectors> {
        std::fs::create_dir_all(directory)?;
        let backing = File::options().read(true).write(true).open(file)?;
        let unreadable = Unreadable::default();
        let shown = Shown {
            bytes: backing.metadata()?.len(),
            backing,
            unreadable: Arc::clone(&unreadable),
        };
        let session = fuser::spawn_mount(shown, directory, &Config::default())
            .with_context(|| format!("cannot mount an image at {}", directory.display()))?;
        Ok(Sectors {
            path: directory.join(NAME),
            unreadable,
            _session: session,
        })
    }

    /// Path of the image.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has these bytes be unreadable until they are written.
    pub fn fail(&self, bytes: Range<u64>) {
        self.unreadable.lock().push(bytes);
    }

    /// Ranges that are unreadable still.
    pub fn failing(&self) -> usize {
        self.unreadable.lock().len()
    }

    /// Has everything be readable.
    pub fn mend(&self) {
        self.unreadable.lock().clear();
    }
}

impl std::fmt::Debug for Sectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sectors")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The file system, as the kernel asks it.
struct Shown {
    backing: File,
    bytes: u64,
    unreadable: Unreadable,
}

impl Shown {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, perm, size) = match ino {
            IMAGE => (FileType::RegularFile, 0o600, self.bytes),
            _ => (FileType::Directory, 0o700, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// Takes bytes that were written out of the ranges.
fn written(unreadable: &mut Vec<Range<u64>>, bytes: &Range<u64>) {
    let left = unreadable.drain(..).flat_map(|range| {
        let before = range.start..range.end.min(bytes.start);
        let after = range.start.max(bytes.end)..range.end;
        [before, after]
    });
    *unreadable = left.filter(|range| !range.is_empty()).collect();
}

impl Filesystem for Shown {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some(NAME) => reply.entry(&REMEMBERED_FOR, &self.attributes(IMAGE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&REMEMBERED_FOR, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // What the kernel remembered of the image would be readable.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self.bytes.min(offset.saturating_add(size.into()));
        let is_asked = |range: &Range<u64>| range.start < end && offset < range.end;
        if self.unreadable.lock().iter().any(is_asked) {
            return reply.error(Errno::EIO);
        }
        let mut data = vec![0; end.saturating_sub(offset) as usize];
        match self.backing.read_exact_at(&mut data, offset) {
            Ok(()) => reply.data(&data),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = offset..offset + data.len() as u64;
        match self.backing.write_all_at(data, offset) {
            Ok(()) => {
                written(&mut self.unreadable.lock(), &bytes);
                reply.written(data.len() as u32);
            }
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_again_is_readable_again() {
        let after = |bytes: Range<u64>| {
            let mut unreadable = vec![10..20, 30..40];
            written(&mut unreadable, &bytes);
            let ends = unreadable.iter().map(|range| (range.start, range.end));
            ends.collect::<Vec<_>>()
        };
        assert_eq!(after(0..5), [(10, 20), (30, 40)]);
        assert_eq!(after(10..20), [(30, 40)]);
        assert_eq!(after(15..35), [(10, 15), (35, 40)]);
        assert_eq!(after(12..14), [(10, 12), (14, 20), (30, 40)]);
    }
}
