//! Creating, opening and listing: where the view's open counts and [`Handles`] must agree.
//!
//! Invariant: every successful open of the view is counted in `Handles` at once.

use std::time::Duration;

use nix::libc;
use volume::error::{Error, Result};
use volume::view::{
    Attr, AttrChange, DirEntry, FileKind, Ino, NewInode, Ownership, PageCache, View,
};

use crate::handles::{Handles, Listing};
use crate::joiner::settle;
use crate::operation::Core;
use crate::translate::{check_name, now};

/// A file that was created and opened in one request.
pub(crate) struct Created {
    /// How long the kernel may remember name and attributes.
    pub(crate) ttl: Duration,
    pub(crate) attr: Attr,
    /// Its open handle.
    pub(crate) handle: u64,
    /// How it uses the page cache.
    pub(crate) cache: PageCache,
}

/// How long the kernel may keep the attributes of what a request has just made or changed.
pub(crate) fn changed_ttl(view: &dyn View, attr: &Attr) -> Duration {
    view.keep(attr).min(view.cache_policy().metadata)
}

/// Opens a file in the view and counts the handle.
pub(crate) fn open_counted(
    view: &dyn View,
    handles: &Handles,
    ino: Ino,
) -> Result<(u64, PageCache)> {
    Ok(handles.open_file(ino, view.open(ino)?))
}

/// Creates and opens a file; one that exists already is opened unless `flags` say `O_EXCL`. The
/// kernel asks this only for names it believes free, so the second happens when the view's names
/// changed without it.
pub(crate) async fn create_and_open(
    view: &dyn View,
    core: &Core,
    (parent, name): (Ino, &[u8]),
    ownership: Ownership,
    flags: i32,
) -> Result<Created> {
    check_name(name)?;
    let ownership = inherit_group(view, parent, &NewInode::File, ownership)?;
    let mut attr = match view.create(parent, name, NewInode::File, ownership, now()) {
        Ok(attr) => attr,
        Err(Error::Exists) if flags & libc::O_EXCL == 0 => {
            let there = view.lookup(parent, name)?;
            if there.kind == FileKind::Directory {
                return Err(Error::IsDirectory);
            }
            if flags & libc::O_TRUNC != 0 {
                settle(view, &core.joiner, there.ino).await?;
                cut_to_nothing(view, there.ino).await?;
            }
            there
        }
        Err(e) => return Err(e),
    };
    let (handle, cache) = open_counted(view, &core.handles, attr.ino)?;
    attr = view.attr(attr.ino).unwrap_or(attr);
    let ttl = changed_ttl(view, &attr);
    Ok(Created {
        ttl,
        attr,
        handle,
        cache,
    })
}

/// Takes a file's contents away (`O_TRUNC`).
pub(crate) async fn cut_to_nothing(view: &dyn View, ino: Ino) -> Result<()> {
    let change = AttrChange {
        size: Some(0),
        ..AttrChange::default()
    };
    view.set_attr(ino, change, now()).await.map(drop)
}

/// Takes the set-id bits from a file that somebody without the privilege has written to. The kernel
/// does this by itself where it uses its page cache, and leaves it to us where it does not.
pub(crate) async fn clear_set_id(view: &dyn View, ino: Ino) -> Result<()> {
    const SET_USER: u16 = 0o4000;
    const SET_GROUP: u16 = 0o2000;
    const GROUP_RUNS: u16 = 0o0010;
    let mode = view.attr(ino)?.mode;
    let mut cleared = mode & !SET_USER;
    // Without the execute bit, set-group-id means mandatory locking and stays.
    if mode & GROUP_RUNS != 0 {
        cleared &= !SET_GROUP;
    }
    if cleared == mode {
        return Ok(());
    }
    let change = AttrChange {
        mode: Some(cleared),
        ..AttrChange::default()
    };
    view.set_attr(ino, change, now()).await.map(drop)
}

/// In a set-group-id directory new inodes get its group, and new directories the bit.
pub(crate) fn inherit_group(
    view: &dyn View,
    parent: Ino,
    new: &NewInode,
    mut ownership: Ownership,
) -> Result<Ownership> {
    let parent = view.attr(parent)?;
    let set_group_id = libc::S_ISGID as u16; // 0o2000
    if parent.mode & set_group_id != 0 {
        ownership.gid = parent.gid;
        if *new == NewInode::Directory {
            ownership.mode |= set_group_id;
        }
    }
    Ok(ownership)
}

/// A directory's names now, with `.` and `..`.
pub(crate) fn listing(view: &dyn View, directory: Ino) -> Result<Listing> {
    let dot = |ino, name: &[u8]| DirEntry {
        ino,
        kind: FileKind::Directory,
        name: name.to_vec(),
    };
    // A directory that was removed while open has no parent, and still lists.
    let parent = view.parent(directory).unwrap_or(directory);
    let mut names = vec![dot(directory, b"."), dot(parent, b"..")];
    names.extend(view.read_dir(directory)?);
    Ok(names.into())
}
