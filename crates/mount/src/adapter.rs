//! Every FUSE request, turned into one operation of the view.
//!
//! Owns no state of its own. Inode numbers are the view's and stable, so lookups are not counted.
//! Locks, extended attributes, ioctl, poll and copy_file_range are left to the kernel: it answers
//! them itself once it has been told `ENOSYS`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use nix::libc;
use volume::error::Error;
use volume::private::is_private;
use volume::view::{AttrChange, NewInode, Ownership, View};

use crate::errno::stale;
use crate::handles::{is_cached, is_never_cached};
use crate::joiner::{carry_out, over, settle};
use crate::opening::{
    Created, changed_ttl, clear_set_id, create_and_open, cut_to_nothing, inherit_group, listing,
    open_counted,
};
use crate::operation::{Core, Effect};
use crate::translate::{
    NAME_MAX, check_name, fallocate_mode, file_attr, file_type, ino, no_entry, now, open_flags,
    permissions, rename_mode,
};

/// Largest write and read, in bytes; a multiple of any block size.
const MAX_WRITE_BYTES: u32 = 1 << 20;

/// Requests that the kernel may have under way without a waiting process (readahead).
const MAX_BACKGROUND: u16 = 128;

/// Inode numbers are never used twice, so one generation does.
const GENERATION: Generation = Generation(0);

/// Inodes that statfs says are free; there is no limit but memory.
const FREE_INODES: u64 = 1 << 40;

pub(crate) struct Adapter {
    core: Arc<Core>,
}

impl Adapter {
    /// Serves what `core` shows.
    pub(crate) fn new(core: Arc<Core>) -> Adapter {
        Adapter { core }
    }

    /// Creates something under a name and replies with it.
    fn make(
        &self,
        operation: &'static str,
        (parent, name): (INodeNo, &OsStr),
        new: NewInode,
        ownership: Ownership,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        self.core.answer(
            operation,
            reply,
            |view| {
                check_name(name)?;
                let ownership = inherit_group(view, ino(parent), &new, ownership)?;
                let attr = view.create(ino(parent), name, new, ownership, now())?;
                Ok((changed_ttl(view, &attr), attr))
            },
            |reply, (ttl, attr)| reply.entry(&ttl, &file_attr(&attr), GENERATION),
        );
    }

    fn sync(&self, operation: &'static str, number: INodeNo, reply: ReplyEmpty) {
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            settle(&*view, &core.joiner, ino(number)).await?;
            view.fsync(ino(number)).await
        };
        self.core
            .start(operation, Effect::Observe, reply, ask, |reply, ()| {
                reply.ok();
            });
    }
}

fn owner(request: &Request, mode: u32) -> Ownership {
    Ownership {
        mode: permissions(mode),
        uid: request.uid(),
        gid: request.gid(),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            // Only this mount changes what it shows, so a new size or time is no reason to drop
            // pages.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            // An older kernel that lacks one works the same, only slower.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes();
        self.core.answer(
            "lookup",
            reply,
            |view| {
                check_name(name)?;
                match view.lookup(ino(parent), name) {
                    Ok(attr) => Ok((view.keep(&attr), file_attr(&attr))),
                    Err(Error::NotFound) => match view.keep_missing(ino(parent), name) {
                        Duration::ZERO => Err(Error::NotFound),
                        ttl => Ok((ttl, no_entry())),
                    },
                    Err(e) => Err(e),
                }
            },
            |reply, (ttl, attr)| reply.entry(&ttl, &attr, GENERATION),
        );
    }

    fn forget(&self, _request: &Request, _ino: INodeNo, _count: u64) {}

    fn getattr(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.core.answer(
            "getattr",
            reply,
            |view| {
                let attr = view.attr(ino(number)).map_err(stale)?;
                Ok((view.keep(&attr), attr))
            },
            |reply, (ttl, attr)| reply.attr(&ttl, &file_attr(&attr)),
        );
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let now = now();
        let change = AttrChange {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            mtime: mtime.map(|t| match t {
                TimeOrNow::SpecificTime(t) => t.into(),
                TimeOrNow::Now => now,
            }),
        };
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            settle(&*view, &core.joiner, ino(number)).await?;
            let attr = match change == AttrChange::default() {
                true => view.attr(ino(number))?,
                false => view.set_attr(ino(number), change, now).await?,
            };
            Ok((changed_ttl(&*view, &attr), attr))
        };
        let say = |reply: ReplyAttr, (ttl, attr)| reply.attr(&ttl, &file_attr(&attr));
        self.core.start("setattr", Effect::Change, reply, ask, say);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        self.core.answer(
            "readlink",
            reply,
            |view| view.read_link(ino(number)),
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let kind = mode & libc::S_IFMT;
        if kind != libc::S_IFREG && kind != 0 {
            // Devices, pipes and sockets belong to one machine.
            return reply.error(Errno::EPERM);
        }
        let ownership = owner(request, mode);
        self.make("mknod", (parent, name), NewInode::File, ownership, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let ownership = owner(request, mode);
        self.make(
            "mkdir",
            (parent, name),
            NewInode::Directory,
            ownership,
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = NewInode::Symlink(target.as_os_str().as_bytes().to_vec());
        self.make("symlink", (parent, name), new, owner(request, 0o777), reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        self.core.answer(
            "link",
            reply,
            |view| {
                check_name(name)?;
                let attr = view.link(ino(number), ino(parent), name, now())?;
                Ok((changed_ttl(view, &attr), attr))
            },
            |reply, (ttl, attr)| reply.entry(&ttl, &file_attr(&attr), GENERATION),
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let ask = |view: &dyn View| {
            check_name(name)?;
            view.unlink(ino(parent), name, now())
        };
        self.core
            .answer("unlink", reply, ask, |reply, ()| reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let ask = |view: &dyn View| {
            check_name(name)?;
            view.rmdir(ino(parent), name, now())
        };
        self.core
            .answer("rmdir", reply, ask, |reply, ()| reply.ok());
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (name.as_bytes(), new_name.as_bytes());
        let ask = |view: &dyn View| {
            check_name(from)?;
            check_name(to)?;
            let mode = rename_mode(flags)?;
            view.rename((ino(parent), from), (ino(new_parent), to), mode, now())
        };
        self.core
            .answer("rename", reply, ask, |reply, ()| reply.ok());
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            // The kernel truncates by setattr unless it was asked to leave that to open, which it
            // is not; should it do so all the same, the contents must go first.
            if flags.0 & libc::O_TRUNC != 0 {
                settle(&*view, &core.joiner, ino(number)).await?;
                cut_to_nothing(&*view, ino(number)).await?;
            }
            let opened = open_counted(&*view, &core.handles, ino(number));
            let (handle, cache) = opened.map_err(stale)?;
            Ok((FileHandle(handle), open_flags(cache)))
        };
        let say = |reply: ReplyOpen, (handle, flags)| reply.opened(handle, flags);
        self.core.start("open", Effect::Change, reply, ask, say);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, ownership) = (name.as_bytes().to_vec(), owner(request, mode));
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            let at = (ino(parent), &*name);
            create_and_open(&*view, &core, at, ownership, flags).await
        };
        let say = |reply: ReplyCreate, created: Created| {
            let (handle, flags) = (FileHandle(created.handle), open_flags(created.cache));
            let attr = file_attr(&created.attr);
            reply.created(&created.ttl, &attr, GENERATION, handle, flags);
        };
        self.core.start("create", Effect::Change, reply, ask, say);
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.core.handles.read_through(ino(number), handle.0);
        let waiting = self.core.joiner.waiting(ino(number));
        let ask = move |view: Arc<dyn View>| async move {
            let read = view.read(ino(number), offset, size).await?;
            Ok(match waiting {
                Some(part) => over(offset, read, &part),
                None => read,
            })
        };
        let say = |reply: ReplyData, data: Bytes| reply.data(&data);
        self.core.start("read", Effect::Observe, reply, ask, say);
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (number, kills_set_id) = (
            ino(number),
            write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        );
        let written = data.len() as u32; // at most MAX_WRITE_BYTES
        let data = Bytes::copy_from_slice(data);
        let bypasses = !is_cached(handle.0);
        let may_be_cached = bypasses && !is_never_cached(handle.0);
        // The kernel asks for an fsync after a write through its cache, and leaves it to us otherwise.
        let is_synchronous = bypasses && flags.0 & libc::O_DSYNC != 0;
        // Pages that a mapping wrote come whole, and private files are not the database's pages.
        let may_be_split =
            !bypasses && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) && !is_private(number);
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            let size = || view.attr(number).map_or(0, |attr| attr.size);
            let plan = core
                .joiner
                .accept(number, (offset, data), may_be_split, size);
            carry_out(&*view, &core.joiner, number, plan).await?;
            if may_be_cached && core.handles.shared_cached() {
                core.forget_pages(number, offset, written).await;
            }
            if kills_set_id {
                clear_set_id(&*view, number).await?;
            }
            if is_synchronous {
                view.fsync(number).await?;
            }
            Ok(())
        };
        let say = move |reply: ReplyWrite, ()| reply.written(written);
        self.core.start("write", Effect::Change, reply, ask, say);
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let (number, core) = (ino(number), Arc::clone(&self.core));
        let ask = move |view: Arc<dyn View>| async move {
            if core.handles.is_last(number) {
                // Nobody is left to be told that it failed; a sync would have been.
                let _ = settle(&*view, &core.joiner, number).await;
            }
            if core.handles.release_file(number, handle.0) {
                view.release(number);
            }
            Ok(())
        };
        let say = |reply: ReplyEmpty, ()| reply.ok();
        self.core.start("release", Effect::Change, reply, ask, say);
    }

    fn fsync(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync("fsync", number, reply);
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let ask = |view: &dyn View| listing(view, ino(number));
        self.core.answer("opendir", reply, ask, |reply, listing| {
            let handle = self.core.handles.open_directory(listing);
            reply.opened(FileHandle(handle), fuser::FopenFlags::empty());
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        position: u64,
        reply: ReplyDirectory,
    ) {
        let handles = &self.core.handles;
        let ask = |view: &dyn View| {
            if let Some(listing) = handles.listing(handle.0, position) {
                return Ok(listing);
            }
            let fresh = listing(view, ino(number))?;
            handles.rewind_directory(handle.0, Arc::clone(&fresh));
            Ok(fresh)
        };
        self.core
            .answer("readdir", reply, ask, |mut reply, listing| {
                let from = usize::try_from(position).unwrap_or(usize::MAX);
                for (at, entry) in listing.iter().enumerate().skip(from) {
                    let name = OsStr::from_bytes(&entry.name);
                    let next = at as u64 + 1;
                    if reply.add(INodeNo(entry.ino.0), next, file_type(entry.kind), name) {
                        break;
                    }
                }
                reply.ok();
            });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.core.handles.release_directory(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.sync("fsyncdir", number, reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let ask = |view: Arc<dyn View>| async move { view.stat_fs().await };
        self.core
            .start("statfs", Effect::Observe, reply, ask, |reply, room| {
                let (free, block) = (room.blocks_free, room.block_size_bytes);
                let files = room.files.saturating_add(FREE_INODES);
                let names = NAME_MAX as u32;
                reply.statfs(
                    room.blocks,
                    free,
                    free,
                    files,
                    FREE_INODES,
                    block,
                    names,
                    block,
                );
            });
    }

    fn fallocate(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let core = Arc::clone(&self.core);
        let ask = move |view: Arc<dyn View>| async move {
            settle(&*view, &core.joiner, ino(number)).await?;
            let mode = fallocate_mode(mode)?;
            let end = offset.checked_add(length).ok_or(Error::TooLarge)?;
            view.fallocate(ino(number), offset..end, mode, now()).await
        };
        self.core
            .start("fallocate", Effect::Change, reply, ask, |reply, ()| {
                reply.ok();
            });
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel then says itself what is always right: all data up to the size.
        reply.error(Errno::ENOSYS);
    }

    /// Nothing here is a terminal or a device, which programs find out by asking.
    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    /// Regular files are always ready. The kernel knows that by itself once it has been told, here, that nobody asks.
    fn poll(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Permissions are the kernel's (default_permissions).
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
