//! What a standby shows at one moment: base, live log and configuration, replay limit and overlay as one
//! immutable value, and everything that can be asked of it (pure; no I/O).
//!
//! Invariants: a state changes only as a whole, and an operation looks at one state only (N3).
//! Where a name or a block comes from depends on its class: data from the base under the overlay;
//! log and configuration from the live namespace; private names from the local disk.

use std::ops::Range;
use std::sync::Arc;

use dax::ids::{BlockKey, FileId};
use imbl::OrdMap;

use super::hidden::{Hidden, hidden_names, hider_of};
use super::overlay::{Content, InodeItem, Overlay, is_created, is_private};
#[cfg(test)]
use super::simulation::flaw::Flaw;
use crate::error::{Error, Result};
use crate::layout::{FileClass, Layout};
use crate::log_history::LogHistory;
use crate::lsn::Lsn;
use crate::namespace::{Directory, Inode, Name, Namespace};
use crate::seal::Base;
use crate::view::{Attr, FileKind, Ino, Timestamp};

#[derive(Clone)]
pub(crate) struct State {
    pub layout: Arc<dyn Layout>,
    pub block_bytes: u32,
    pub base: Arc<Base>,
    /// Inodes that a later base lacks although redo did not remove them: they still read as in the
    /// base that had them (N8).
    pub kept: OrdMap<FileId, Arc<Base>>,
    /// Names of log and configuration.
    pub live: Namespace,
    /// End of the log that is shown.
    pub replay_limit: Lsn,
    /// The timelines that the log consists of: what is behind a fork is not shown.
    pub history: LogHistory,
    pub overlay: Overlay,
    /// Names of the base that the layout hides, found once for each base (for the switch).
    pub hidden: Hidden,
    #[cfg(test)]
    pub distortion: super::simulation::flaw::Distortion,
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing shared: the local disk knows whether it exists, at this path.
    Private(String),
    /// An inode of the view.
    Inode(Ino),
    /// Nothing.
    Nothing,
}

/// Where a block's bytes are.
pub(crate) enum BlockSource {
    Zeros,
    Overlay(super::blocks::BlockRef),
    /// In the image of a base; stored versions that the inode's cuts cover read as zeros.
    Base {
        key: BlockKey,
        base: Arc<Base>,
    },
    /// The only version there is (log and configuration).
    Single {
        key: BlockKey,
        /// Bytes of the block below the replay limit; the rest reads as zeros.
        shown: u32,
        /// Where in the log it begins, if it is of a segment.
        at: Option<Lsn>,
    },
}

/// The shared inode behind an inode of the view.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub id: FileId,
    pub inode: &'a Inode,
    /// `None`: from the live namespace.
    pub base: Option<&'a Arc<Base>>,
}

impl State {
    /// The state of a fresh attach.
    pub fn new(layout: Arc<dyn Layout>, block_bytes: u32, base: Base, live: Namespace) -> State {
        State {
            hidden: hidden_names(&*layout, &base.namespace),
            layout,
            block_bytes,
            replay_limit: base.seal.end,
            history: LogHistory::default(),
            base: Arc::new(base),
            kept: OrdMap::new(),
            live,
            overlay: Overlay::default(),
            #[cfg(test)]
            distortion: Default::default(),
        }
    }

    /// The same with more log: names first, then the replay limit, which never goes back.
    pub fn show_log(&mut self, live: Namespace, replay_limit: Lsn) {
        self.live = live;
        self.replay_limit = self.replay_limit.max(replay_limit);
    }

    /// The same of a history that may have grown. A timeline is shown together with all log before it: a server that
    /// finds it goes on in its files, and asks no other timeline for a record that it misses there.
    pub fn show_history(&mut self, live: Namespace, replay_limit: Lsn, history: LogHistory) {
        #[cfg(test)]
        let begin = match self.distortion.flaw {
            Some(Flaw::TimelineBeforeItsLog) => Lsn::ZERO,
            _ => history.begin(),
        };
        #[cfg(not(test))]
        let begin = history.begin();
        self.history = history;
        self.show_log(live, replay_limit.max(begin));
    }

    /// End of what is shown of a file of the log with positions; `None` if the file is not shown at all, because
    /// nothing of it is part of the history.
    pub fn log_end(&self, path: &str, range: &Range<Lsn>) -> Option<Lsn> {
        let Some(timeline) = self.layout.log_timeline(path) else {
            return Some(range.end.min(self.replay_limit));
        };
        let end = self.history.end_of(timeline, range);
        #[cfg(test)]
        let end = match self.distortion.flaw {
            Some(Flaw::DeadLogShown) => Some(range.end),
            _ => end,
        };
        end.map(|end| end.min(self.replay_limit))
    }

    /// True if a file of the log is shown.
    pub(super) fn shows_log_file(&self, path: &str) -> bool {
        let range = self.layout.log_range(path);
        range.is_none_or(|range| self.log_end(path, &range).is_some())
    }

    /// The stamp of what is made now: no more log than this can have led to it (rule 3).
    pub fn stamp(&self) -> Lsn {
        #[cfg(test)]
        if let Some(stamp) = self.distortion.stamp {
            return stamp;
        }
        self.replay_limit
    }

    /// What the overlay says of an inode.
    pub fn item(&self, ino: Ino) -> Option<&InodeItem> {
        self.overlay.inodes.get(&ino).map(|item| &**item)
    }

    /// The shared inode behind an inode of the view, if there is one.
    pub fn shared(&self, ino: Ino) -> Option<Shared<'_>> {
        if is_private(ino) {
            return None;
        }
        let id = match self.item(ino).and_then(|i| i.created.as_ref()) {
            Some(created) if created.class == FileClass::Log => self.log_twin(ino)?,
            Some(created) => created.adopted?,
            None if is_created(ino) => return None,
            None => FileId(ino.0),
        };
        self.shared_by_id(id)
    }

    /// True if an inode is the image's own, not one that redo made, nor a private one.
    pub fn is_of_image(&self, ino: Ino) -> bool {
        let of_base = || self.shared(ino).is_some_and(|shared| shared.base.is_some());
        ino == Ino::ROOT || (!is_created(ino) && of_base())
    }

    fn shared_by_id(&self, id: FileId) -> Option<Shared<'_>> {
        let base = self.kept.get(&id).unwrap_or(&self.base);
        let based = base.namespace.get(id);
        if let Some(inode) = based.filter(|i| i.class == FileClass::Data) {
            let base = Some(base);
            return Some(Shared { id, inode, base });
        }
        let inode = self.live.get(id).filter(|i| i.class != FileClass::Data)?;
        Some(Shared {
            id,
            inode,
            base: None,
        })
    }

    /// The live file that a private stub in the log's directory stands for, if it is there by now.
    fn log_twin(&self, stub: Ino) -> Option<FileId> {
        let (dir, name) = self.item(stub)?.home.as_ref()?;
        self.live_log_name(self.directory_id(*dir)?, name)
    }

    /// A name of the log: there, or removed and retained for standbys.
    fn live_log_name(&self, dir: FileId, name: &[u8]) -> Option<FileId> {
        let retained = || self.live.retained(dir)?.get(name).copied();
        let file = self.live.lookup(dir, name).ok().or_else(retained)?;
        let path = self.live.path_in(dir, name)?;
        self.shows_log_file(&path).then_some(file)
    }

    /// The inode number under which the view shows a shared inode.
    pub fn ino_of(&self, id: FileId) -> Ino {
        self.overlay.adopted.get(&id).copied().unwrap_or(Ino(id.0))
    }

    /// The shared id of a directory of the view, if it has one.
    pub fn directory_id(&self, dir: Ino) -> Option<FileId> {
        if is_created(dir) {
            return self.item(dir)?.adopted();
        }
        Some(FileId(dir.0))
    }

    fn created_kind(&self, ino: Ino) -> Option<FileKind> {
        self.item(ino)?.created.as_ref().map(|c| c.kind)
    }

    /// What an inode is.
    pub fn kind(&self, ino: Ino) -> Result<FileKind> {
        let created = self.created_kind(ino);
        created
            .or_else(|| self.shared(ino).map(|s| s.inode.kind))
            .ok_or(Error::NotFound)
    }

    /// The class of an inode.
    pub fn class(&self, ino: Ino) -> Result<FileClass> {
        let created = self.item(ino).and_then(|i| i.created.as_ref());
        created
            .map(|c| c.class)
            .or_else(|| self.shared(ino).map(|s| s.inode.class))
            .ok_or(Error::NotFound)
    }

    /// Fails unless `dir` is a directory of the shared tree.
    pub fn expect_directory(&self, dir: Ino) -> Result<()> {
        match self.kind(dir)? {
            FileKind::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// The directory and the name of an inode (the last ones it got).
    pub fn home(&self, ino: Ino) -> Option<(Ino, Name)> {
        if let Some(home) = self.item(ino).and_then(|i| i.home.clone()) {
            return Some(home);
        }
        let inode = self.shared(ino)?.inode;
        Some((self.ino_of(inode.parent), inode.name.clone()))
    }

    /// The path of an inode relative to the root.
    pub fn path(&self, ino: Ino) -> Result<String> {
        let mut parts: Vec<Name> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let (parent, name) = self.home(at).ok_or(Error::NotFound)?;
            parts.push(name);
            at = parent;
        }
        let parts = parts.iter().rev().map(|p| String::from_utf8_lossy(p));
        Ok(parts.collect::<Vec<_>>().join("/"))
    }

    /// The path that a name in a directory has.
    pub fn path_in(&self, dir: Ino, name: &[u8]) -> Result<String> {
        let mut path = self.path(dir)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&String::from_utf8_lossy(name));
        Ok(path)
    }

    /// The directory that a directory is in.
    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        self.expect_directory(dir)?;
        if dir == Ino::ROOT {
            return Ok(Ino::ROOT);
        }
        self.home(dir)
            .map(|(parent, _)| parent)
            .ok_or(Error::NotFound)
    }

    /// What a name in a shared directory leads to.
    pub fn find(&self, dir: Ino, name: &[u8]) -> Result<Found> {
        self.expect_directory(dir)?;
        let path = self.path_in(dir, name)?;
        let class = self.layout.standby_class(&path);
        if class == FileClass::Private {
            return Ok(Found::Private(path));
        }
        let own = self.overlay.name(dir, name);
        let found = match class {
            FileClass::Log => self
                .directory_id(dir)
                .and_then(|id| self.live_log_name(id, name))
                .map(|id| self.ino_of(id))
                .or_else(|| own?.target),
            _ => match own {
                Some(item) => item.target,
                None => self
                    .shared_name(dir, name, &path, class)
                    .map(|id| self.ino_of(id)),
            },
        };
        Ok(found.map_or(Found::Nothing, Found::Inode))
    }

    /// The inode at a path relative to the root, without private names.
    pub fn resolve(&self, path: &str) -> Result<Ino> {
        let mut parts = path.split('/').filter(|p| !p.is_empty());
        parts.try_fold(Ino::ROOT, |dir, name| {
            match self.find(dir, name.as_bytes())? {
                Found::Inode(ino) => Ok(ino),
                _ => Err(Error::NotFound),
            }
        })
    }

    /// What a name that the overlay does not mention leads to.
    fn shared_name(&self, dir: Ino, name: &[u8], path: &str, class: FileClass) -> Option<FileId> {
        let names = self.shared_names(dir, class)?;
        let id = *names.get(name)?;
        if self.layout.hidden_on_standby(path) {
            return None;
        }
        let hidden = class == FileClass::Data && self.is_hidden(dir, names, name);
        (!hidden).then_some(id)
    }

    /// The names of a directory that are shared, for children of `class`.
    pub(super) fn shared_names(&self, dir: Ino, class: FileClass) -> Option<&Directory> {
        let id = self.directory_id(dir)?;
        match class {
            FileClass::Data => {
                let base = self.kept.get(&id).unwrap_or(&self.base);
                base.namespace.directory(id).ok()
            }
            _ => self.live.directory(id).ok(),
        }
    }

    /// Rule 7: other forks of an unlogged relation are invisible. Its init fork counts whether the
    /// base has it or redo made it, and whether redo has removed it since: a base may hold the main
    /// fork alone, and redo, which never saw that one, does not remove it.
    pub(super) fn is_hidden(&self, dir: Ino, names: &Directory, name: &[u8]) -> bool {
        let by = hider_of(&*self.layout, name);
        by.is_some_and(|by| {
            let by = by.as_bytes();
            names.contains_key(by) || self.overlay.name(dir, by).is_some()
        })
    }

    /// What the base has at a name, hidden or not.
    pub fn base_name(&self, dir: Ino, name: &[u8]) -> Option<FileId> {
        self.shared_names(dir, FileClass::Data)?.get(name).copied()
    }

    /// Bytes of a file.
    pub fn size(&self, ino: Ino) -> Result<u64> {
        let shared = self.shared(ino);
        let own = self.item(ino).and_then(|i| i.size);
        match (own, shared) {
            (_, Some(s)) if s.inode.class == FileClass::Log => {
                Ok(s.inode.size.max(self.segment_bytes(&s).unwrap_or(0)))
            }
            (Some(size), _) => Ok(size.value),
            (None, Some(s)) => Ok(s.inode.size),
            (None, None) => Err(Error::NotFound),
        }
    }

    fn segment_bytes(&self, shared: &Shared<'_>) -> Option<u64> {
        self.log_range(shared).map(|r| r.end.bytes_since(r.start))
    }

    /// The file and the log positions of a segment of the log.
    pub fn log_segment(&self, ino: Ino) -> Option<(FileId, Range<Lsn>)> {
        let shared = self.shared(ino)?;
        let log = shared.inode.class == FileClass::Log;
        let positions = log.then(|| self.log_range(&shared)).flatten()?;
        Some((shared.id, positions))
    }

    /// True if an inode is a shared file that its writer may change in place, outside of images and log.
    pub fn is_configuration(&self, ino: Ino) -> bool {
        let shared = self.shared(ino);
        shared.is_some_and(|shared| {
            shared.inode.class == FileClass::Live && shared.inode.kind == FileKind::File
        })
    }

    /// The log positions of a log segment.
    fn log_range(&self, shared: &Shared<'_>) -> Option<Range<Lsn>> {
        if shared.inode.kind != FileKind::File {
            return None;
        }
        let path = self.live.path_of(shared.id)?;
        self.layout.log_range(&path)
    }

    /// The log positions of a log segment, and the end of what is shown of it.
    fn log_part(&self, shared: &Shared<'_>) -> Option<(Range<Lsn>, Lsn)> {
        let range = self.log_range(shared)?;
        let path = self.live.path_of(shared.id)?;
        let end = self.log_end(&path, &range).unwrap_or(range.start);
        Some((range, end))
    }

    /// An inode's attributes.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        let shared = self.shared(ino);
        let item = self.item(ino);
        let kind = self.kind(ino)?;
        let size = self.size(ino)?;
        let from = shared.map(|s| s.inode.attr(ino));
        let own = item.and_then(|i| i.attrs).map(|a| a.value);
        let mut attr = from.unwrap_or(Attr {
            ino,
            kind,
            size,
            allocated_bytes: 0,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
        });
        if let Some(own) =
            own.filter(|_| self.class(ino).ok() != Some(FileClass::Log) || from.is_none())
        {
            (attr.mode, attr.uid, attr.gid) = (own.mode, own.uid, own.gid);
            (attr.atime, attr.mtime, attr.ctime) = (own.mtime, own.mtime, own.ctime);
        }
        if let Some(nlink) = item.and_then(|i| i.nlink) {
            attr.nlink = nlink;
        }
        attr.size = size;
        attr.allocated_bytes = size.next_multiple_of(512);
        Ok(attr)
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let created = self.item(ino).and_then(|i| i.created.as_ref());
        let target = match created {
            Some(created) => created.target.clone(),
            None => self
                .shared(ino)
                .ok_or(Error::NotFound)?
                .inode
                .target
                .clone(),
        };
        target.ok_or(Error::Invalid("not a symbolic link"))
    }

    /// Where the bytes of a block of a file are.
    pub fn block(&self, ino: Ino, block: u64) -> BlockSource {
        let shared = self.shared(ino);
        if let Some(shared) = shared.filter(|s| s.inode.class == FileClass::Log) {
            return self.log_block(&shared, block);
        }
        if let Some(item) = self.item(ino) {
            match item.blocks.get(&block).map(|b| &b.content) {
                Some(Content::Zeros) => return BlockSource::Zeros,
                Some(Content::Stored(content)) => return BlockSource::Overlay(content.clone()),
                None if item.hides_block(block) => return BlockSource::Zeros,
                None => {}
            }
        }
        let Some(shared) = shared else {
            return BlockSource::Zeros;
        };
        if block * u64::from(self.block_bytes) >= shared.inode.size {
            return BlockSource::Zeros;
        }
        let key = BlockKey::new(shared.id, block);
        match shared.base {
            Some(base) => BlockSource::Base {
                key,
                base: Arc::clone(base),
            },
            None => BlockSource::Single {
                key,
                shown: self.block_bytes,
                at: None,
            },
        }
    }

    /// Rule 5: the log is shown up to the replay limit.
    fn log_block(&self, shared: &Shared<'_>, block: u64) -> BlockSource {
        let offset = block * u64::from(self.block_bytes);
        let part = self.log_part(shared);
        let at = (part.as_ref()).map(|(range, _)| Lsn(range.start.0 + offset));
        let end = part.map_or(Lsn(u64::MAX), |(_, end)| end);
        let shown = at.map_or(u64::MAX, |at| end.bytes_since(at));
        let shown = shown.min(u64::from(self.block_bytes)) as u32;
        if shown == 0 || offset >= shared.inode.size {
            return BlockSource::Zeros;
        }
        BlockSource::Single {
            key: BlockKey::new(shared.id, block),
            shown,
            at,
        }
    }
}
