//! What can be mounted: the operations that `mount` turns FUSE requests into.
//!
//! A view is the active's (latest state, writable for the epoch's owner) or a standby's (a sealed
//! generation under a private overlay). Operations that only touch memory are plain functions and
//! are answered on the thread that reads requests; those that may wait are async. Time comes in as
//! an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;

/// An inode number as the kernel sees it. Stable for the life of a mount, also across a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// Nanoseconds since 1970, as files carry them.
#[derive(
    Debug,
    Default,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Timestamp(pub i64);

/// Times beyond about 1677 to 2262 become the nearest that fits.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        Timestamp(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(e) => i64::try_from(e.duration().as_nanos()).map_or(i64::MIN, |before| -before),
        })
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> SystemTime {
        let from_1970 = Duration::from_nanos(time.0.unsigned_abs());
        match time.0 < 0 {
            true => UNIX_EPOCH - from_1970,
            false => UNIX_EPOCH + from_1970,
        }
    }
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// An inode's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Number of the inode in the mount.
    pub ino: Ino,
    /// Regular file, directory or symbolic link.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Bytes that it takes, about; `st_blocks` is this over 512.
    pub allocated_bytes: u64,
    /// Permission bits, including set-id and sticky.
    pub mode: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last read; kept equal to `mtime` (mounted `noatime`).
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
}

/// Changes of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this many bytes.
    pub size: Option<u64>,
    /// Last change of the contents.
    pub mtime: Option<Timestamp>,
}

/// What to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewInode {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
}

/// Owner and permissions of what is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// Permission bits, after the umask.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a rename may meet at its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace what is there (POSIX).
    Replace,
    /// Fail with `Exists` if something is there.
    NoReplace,
    /// Swap the two.
    Exchange,
}

/// How fallocate changes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserve; grow the size if needed (mode 0).
    Extend,
    /// Reserve without changing the size (KEEP_SIZE).
    KeepSize,
    /// Make a range read as zeros (PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE).
    Zero {
        /// True if the size stays as it is.
        keep_size: bool,
    },
}

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode it leads to.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
    /// Name in its directory.
    pub name: Vec<u8>,
}

/// How the kernel may cache what this view returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachePolicy {
    /// How long attributes and names stay valid. Zero on a standby (rule 8, N5).
    pub metadata: Duration,
}

/// How an open file uses the kernel's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// Not at all, nor does any other handle that this view opens (the log).
    Never,
    /// Not at all (rule 8); handles of a later view may.
    Bypassed,
    /// What an earlier handle has cached is dropped first.
    Dropped,
    /// What an earlier handle has cached is still right.
    Kept,
}

impl PageCache {
    /// True if reads and writes go past it.
    pub fn is_bypassed(self) -> bool {
        matches!(self, PageCache::Never | PageCache::Bypassed)
    }
}

/// Sizes for statfs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Inodes in use.
    pub files: u64,
}

/// A mountable view of a volume. See the module.
#[async_trait]
pub trait View: Send + Sync + 'static {
    /// How the kernel may cache names and attributes.
    fn cache_policy(&self) -> CachePolicy;

    /// How long the kernel may keep the attributes of what a name led to, and that it did. Longer than
    /// the policy's only where neither changes but by operations of this view.
    fn keep(&self, _found: &Attr) -> Duration {
        self.cache_policy().metadata
    }

    /// How long the kernel may keep that `name` is not in `parent`; [`Duration::ZERO`] where somebody else than
    /// this view's callers may create it.
    fn keep_missing(&self, _parent: Ino, _name: &[u8]) -> Duration {
        self.cache_policy().metadata
    }

    /// The inode that a name leads to.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr>;
    /// An inode's attributes.
    fn attr(&self, ino: Ino) -> Result<Attr>;
    /// Changes attributes; a new size cuts or extends. Waits where a boundary block must be read.
    async fn set_attr(&self, ino: Ino, change: AttrChange, now: Timestamp) -> Result<Attr>;
    /// The target of a symbolic link.
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;
    /// Creates a file, a directory or a symbolic link. `Exists` if the name is taken.
    fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        ownership: Ownership,
        now: Timestamp,
    ) -> Result<Attr>;
    /// Gives an inode one more name.
    fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Attr>;
    /// Removes a name of a file or symbolic link. An open inode lives until its last release.
    fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()>;
    /// Renames in one step.
    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()>;
    /// Counts one more open handle and says how to treat it.
    fn open(&self, ino: Ino) -> Result<PageCache>;
    /// Counts one open handle less; frees an inode that has no name left.
    fn release(&self, ino: Ino);
    /// All names of a directory, without `.` and `..`, which the mount adds. The mount takes this
    /// once per opened directory, so a listing is one moment's.
    fn read_dir(&self, ino: Ino) -> Result<Vec<DirEntry>>;
    /// The directory that a directory is in; the root's is the root.
    fn parent(&self, ino: Ino) -> Result<Ino>;

    /// Reads up to `len` bytes; shorter only at the end of the file. Holes read as zeros.
    async fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes>;
    /// Writes all of `data`, extending the file as needed.
    async fn write(&self, ino: Ino, offset: u64, data: Bytes, now: Timestamp) -> Result<()>;
    /// Reserves or zeroes a range.
    async fn fallocate(
        &self,
        ino: Ino,
        range: std::ops::Range<u64>,
        mode: Fallocate,
        now: Timestamp,
    ) -> Result<()>;
    /// Returns when the inode, its names so far, and its contents so far are durable.
    async fn fsync(&self, ino: Ino) -> Result<()>;
    /// Returns when everything so far is durable.
    async fn sync_all(&self) -> Result<()>;
    /// Room.
    async fn stat_fs(&self) -> Result<StatFs>;
}
