//! File operations on private files, passed through to the local file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use nix::fcntl::{FallocateFlags, RenameFlags, fallocate, renameat2};

use super::{PrivateDir, answer, kind_of, own};
use crate::error::{Error, Result};
use crate::namespace::plan::{check_name, check_symlink};
use crate::view::{
    Attr, AttrChange, Fallocate, FileKind, Ino, NewInode, Ownership, PageCache, RenameMode,
    Timestamp,
};

impl PrivateDir {
    /// What is at a path.
    pub fn lookup(&self, path: &str) -> Result<Attr> {
        match answer(fs::symlink_metadata(self.place(path)?)) {
            Ok(metadata) => Ok(attr_of(self.table.lock().ino(path), &metadata)),
            Err(e) => {
                let not_directory = matches!(e, Error::NotDirectory);
                self.table.lock().remove_path(path);
                Err(if not_directory { Error::NotFound } else { e })
            }
        }
    }

    /// An inode's attributes.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let metadata = match self.open_file(ino)? {
            Some(file) => file.metadata()?,
            None => answer(fs::symlink_metadata(self.place_of(ino)?))?,
        };
        Ok(attr_of(ino, &metadata))
    }

    /// Changes attributes.
    pub fn set_attr(&self, ino: Ino, change: AttrChange) -> Result<Attr> {
        if let Some(size) = change.size {
            self.file(ino)?.set_len(size)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            self.change_owner(ino, change)?;
        }
        if let Some(mode) = change.mode {
            let mode = fs::Permissions::from_mode(u32::from(mode & 0o7777));
            match self.open_file(ino)? {
                Some(file) => file.set_permissions(mode)?,
                None => answer(fs::set_permissions(self.place_of(ino)?, mode))?,
            }
        }
        if let Some(mtime) = change.mtime {
            let since = Duration::from_nanos(u64::try_from(mtime.0).unwrap_or(0));
            self.any_file(ino)?.set_modified(UNIX_EPOCH + since)?;
        }
        self.attr(ino)
    }

    fn change_owner(&self, ino: Ino, change: AttrChange) -> Result<()> {
        let done = match self.open_file(ino)? {
            Some(file) => std::os::unix::fs::fchown(&file, change.uid, change.gid),
            None => std::os::unix::fs::lchown(self.place_of(ino)?, change.uid, change.gid),
        };
        answer(done)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let target = answer(fs::read_link(self.place_of(ino)?))?;
        Ok(target.into_os_string().into_encoded_bytes())
    }

    /// Creates what is asked for at a path. Directories that lead there are made as needed.
    pub fn create(&self, path: &str, new: NewInode, ownership: Ownership) -> Result<Attr> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        check_name(name.as_bytes())?;
        let at = self.place(path)?;
        fs::create_dir_all(self.place(parent)?)?;
        match new {
            NewInode::File => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(0o600);
                answer(options.open(&at))?;
            }
            NewInode::Directory => answer(fs::create_dir(&at))?,
            NewInode::Symlink(target) => {
                check_symlink(parent, &target)?;
                let target =
                    String::from_utf8(target).map_err(|_| Error::Invalid("link target"))?;
                answer(std::os::unix::fs::symlink(target, &at))?;
            }
        }
        own(&at, ownership)?;
        self.table.lock().remove_path(path);
        self.lookup(path)
    }

    /// Gives a private file one more name.
    pub fn link(&self, ino: Ino, path: &str) -> Result<Attr> {
        answer(fs::hard_link(self.place_of(ino)?, self.place(path)?))?;
        let mut table = self.table.lock();
        table.remove_path(path);
        table.add_path(ino, path);
        drop(table);
        self.attr(ino)
    }

    /// Removes a name of a file or link.
    pub fn unlink(&self, path: &str) -> Result<()> {
        let at = self.place(path)?;
        if answer(fs::symlink_metadata(&at))?.is_dir() {
            return Err(Error::IsDirectory);
        }
        answer(fs::remove_file(at))?;
        self.table.lock().remove_path(path);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: &str) -> Result<()> {
        answer(fs::remove_dir(self.place(path)?))?;
        self.table.lock().remove_path(path);
        Ok(())
    }

    /// The shared directory at `path` is gone, and with it whatever led to private files there.
    pub fn forget_directory(&self, path: &str) -> Result<()> {
        match fs::remove_dir_all(self.place(path)?) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Renames in one step.
    pub fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let (_, name) = to.rsplit_once('/').unwrap_or(("", to));
        check_name(name.as_bytes())?;
        let (old, new) = (self.place(from)?, self.place(to)?);
        answer(fs::symlink_metadata(&old))?;
        if let Some(parent) = new.parent() {
            fs::create_dir_all(parent)?;
        }
        if from == to {
            return Ok(());
        }
        match mode {
            RenameMode::Replace => answer(fs::rename(old, new))?,
            RenameMode::NoReplace => rename_with(&old, &new, RenameFlags::RENAME_NOREPLACE)?,
            RenameMode::Exchange => {
                rename_with(&old, &new, RenameFlags::RENAME_EXCHANGE)?;
                let mut table = self.table.lock();
                table.rename(to, "\0");
                table.rename(from, to);
                table.rename("\0", from);
                return Ok(());
            }
        }
        self.table.lock().rename(from, to);
        Ok(())
    }

    /// Counts one more open handle.
    pub fn open(&self, ino: Ino) -> Result<PageCache> {
        if self.open_file(ino)?.is_none() {
            let place = self.place_of(ino)?;
            let file = match answer(fs::symlink_metadata(&place))?.is_file() {
                true => Some(Arc::new(open_local(place)?)),
                false => None,
            };
            let mut table = self.table.lock();
            let node = table.node(ino).ok_or(Error::NotFound)?;
            if node.file.is_none() {
                node.file = file;
            }
        }
        let mut table = self.table.lock();
        table.node(ino).ok_or(Error::NotFound)?.opens += 1;
        Ok(PageCache::Kept)
    }

    /// Counts one open handle less.
    pub fn release(&self, ino: Ino) {
        let mut table = self.table.lock();
        let Some(node) = table.node(ino) else {
            return;
        };
        node.opens = node.opens.saturating_sub(1);
        if node.opens == 0 {
            node.file = None;
            table.drop_unused(ino);
        }
    }

    /// Reads up to `len` bytes.
    pub fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        let file = self.file(ino)?;
        let mut buffer = vec![0; len as usize];
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return answer(Err(e)),
            }
        }
        buffer.truncate(filled);
        Ok(Bytes::from(buffer))
    }

    /// Writes all of `data`.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        answer(self.file(ino)?.write_all_at(data, offset))
    }

    /// Reserves or zeroes a range.
    pub fn fallocate(&self, ino: Ino, range: Range<u64>, mode: Fallocate) -> Result<()> {
        let flags = match mode {
            Fallocate::Extend => FallocateFlags::empty(),
            Fallocate::KeepSize => FallocateFlags::FALLOC_FL_KEEP_SIZE,
            Fallocate::Zero { keep_size: true } => {
                FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE
            }
            Fallocate::Zero { keep_size: false } => FallocateFlags::FALLOC_FL_ZERO_RANGE,
        };
        let (Ok(offset), Ok(len)) = (
            i64::try_from(range.start),
            i64::try_from(range.end.saturating_sub(range.start)),
        ) else {
            return Err(Error::TooLarge);
        };
        match fallocate(&*self.file(ino)?, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(nix::errno::Errno::EOPNOTSUPP) => Err(Error::NotSupported),
            Err(e) => answer(Err(io::Error::from(e))),
        }
    }

    fn place_of(&self, ino: Ino) -> Result<PathBuf> {
        let path = self.path(ino).ok_or(Error::NotFound)?;
        self.place(&path)
    }

    fn open_file(&self, ino: Ino) -> Result<Option<Arc<File>>> {
        let mut table = self.table.lock();
        let node = table.node(ino).ok_or(Error::NotFound)?;
        Ok(node.file.clone())
    }

    /// The local file to read and write, opened for the moment if nobody has it open.
    fn file(&self, ino: Ino) -> Result<Arc<File>> {
        if let Some(file) = self.open_file(ino)? {
            return Ok(file);
        }
        Ok(Arc::new(open_local(self.place_of(ino)?)?))
    }

    /// The same, also for directories.
    fn any_file(&self, ino: Ino) -> Result<Arc<File>> {
        if let Some(file) = self.open_file(ino)? {
            return Ok(file);
        }
        Ok(Arc::new(answer(File::open(self.place_of(ino)?))?))
    }
}

fn open_local(place: PathBuf) -> Result<File> {
    let both = OpenOptions::new().read(true).write(true).open(&place);
    match both {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => answer(File::open(place)),
        other => answer(other),
    }
}

fn rename_with(old: &PathBuf, new: &PathBuf, flags: RenameFlags) -> Result<()> {
    let cwd = nix::fcntl::AT_FDCWD;
    answer(renameat2(cwd, old, cwd, new, flags).map_err(io::Error::from))
}

fn attr_of(ino: Ino, metadata: &fs::Metadata) -> Attr {
    let nanos = |seconds: i64, nanos: i64| Timestamp(seconds.saturating_mul(1_000_000_000) + nanos);
    let kind = kind_of(metadata.file_type());
    Attr {
        ino,
        kind,
        size: metadata.len(),
        allocated_bytes: metadata.blocks() * 512,
        mode: (metadata.mode() & 0o7777) as u16,
        nlink: match kind {
            FileKind::Directory => (metadata.nlink() as u32).max(2),
            _ => metadata.nlink() as u32,
        },
        uid: metadata.uid(),
        gid: metadata.gid(),
        atime: nanos(metadata.mtime(), metadata.mtime_nsec()),
        mtime: nanos(metadata.mtime(), metadata.mtime_nsec()),
        ctime: nanos(metadata.ctime(), metadata.ctime_nsec()),
    }
}
