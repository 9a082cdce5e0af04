//! Words of the FUSE protocol and words of a view, one for one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, FopenFlags, INodeNo, RenameFlags};
use nix::libc;
use volume::error::{Error, Result};
use volume::view::{Attr, Fallocate, FileKind, Ino, PageCache, RenameMode, Timestamp};

/// Longest name, in bytes. The kernel hands over up to 1024.
pub(crate) const NAME_MAX: usize = 255;

/// What `st_blksize` advises: a block.
pub(crate) const BLOCK_SIZE_HINT: u32 = 8192;

/// The inode that a request is about.
pub(crate) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// Refuses names longer than a directory can hold.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    Ok(())
}

/// A point in time as the protocol wants it.
pub(crate) fn system_time(t: Timestamp) -> SystemTime {
    let distance = Duration::from_nanos(t.0.unsigned_abs());
    if t.0 < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

/// The time of a request.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// What an inode is.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
    }
}

/// An inode's attributes.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: BLOCK_SIZE_HINT,
        flags: 0,
    }
}

/// The answer that a name does not exist, which the kernel may remember.
pub(crate) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE_HINT,
        flags: 0,
    }
}

/// How the kernel must treat an open file.
pub(crate) fn open_flags(cache: PageCache) -> FopenFlags {
    match cache {
        // Writes to different places of one file need not wait for each other; the view orders them.
        PageCache::Never | PageCache::Bypassed => {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
        PageCache::Kept => FopenFlags::FOPEN_KEEP_CACHE,
        PageCache::Dropped => FopenFlags::empty(),
    }
}

/// The flags of renameat2.
pub(crate) fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(Error::Invalid("flags of renameat2"))
    }
}

/// The mode of fallocate.
pub(crate) fn fallocate_mode(mode: i32) -> Result<Fallocate> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Ok(Fallocate::Extend),
        libc::FALLOC_FL_KEEP_SIZE => Ok(Fallocate::KeepSize),
        PUNCH | ZERO_KEEP => Ok(Fallocate::Zero { keep_size: true }),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Fallocate::Zero { keep_size: false }),
        _ => Err(Error::NotSupported),
    }
}

/// The permission bits of a mode, without the type.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways_also_before_1970() {
        for nanoseconds in [0, 1, -1, 1_700_000_000_123_456_789, -86_400_000_000_001] {
            let t = Timestamp(nanoseconds);
            assert_eq!(Timestamp::from(system_time(t)), t);
        }
    }

    #[test]
    fn modes_of_fallocate() {
        assert!(matches!(fallocate_mode(0), Ok(Fallocate::Extend)));
        assert!(matches!(fallocate_mode(1), Ok(Fallocate::KeepSize)));
        assert!(matches!(
            fallocate_mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            Ok(Fallocate::Zero { keep_size: true })
        ));
        assert!(matches!(
            fallocate_mode(libc::FALLOC_FL_ZERO_RANGE),
            Ok(Fallocate::Zero { keep_size: false })
        ));
        assert!(matches!(
            fallocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE),
            Err(Error::NotSupported)
        ));
    }

    #[test]
    fn flags_of_rename() {
        assert!(matches!(
            rename_mode(RenameFlags::empty()),
            Ok(RenameMode::Replace)
        ));
        assert!(matches!(
            rename_mode(RenameFlags::RENAME_EXCHANGE),
            Ok(RenameMode::Exchange)
        ));
        assert!(rename_mode(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_NOREPLACE).is_err());
        assert!(rename_mode(RenameFlags::RENAME_WHITEOUT).is_err());
    }
}
