//! A view in memory that can be told to fail, to wait and to answer differently.
//!
//! A test double: the simplest thing that satisfies the `View` contract, so that tests of the mount
//! fail for the mount's reasons only, and that reaches what a real view does too rarely.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use volume::error::{Error, Result};
use volume::view::{
    Attr, AttrChange, CachePolicy, DirEntry, Fallocate, FileKind, Ino, NewInode, Ownership,
    PageCache, RenameMode, StatFs, Timestamp, View,
};

const BLOCK: u64 = 8192;

/// What the kernel may cache.
#[derive(Debug, Clone, Copy)]
pub enum Caching {
    /// As the active: everything.
    All,
    /// As a standby: nothing.
    Nothing,
}

#[derive(Debug, Clone, Default)]
struct Node {
    attr: Option<Attr>,
    blocks: HashMap<u64, Vec<u8>>,
    names: BTreeMap<Vec<u8>, Ino>,
    target: Vec<u8>,
    parent: Option<Ino>,
    opens: u64,
}

#[derive(Debug, Default)]
struct Tree {
    nodes: HashMap<Ino, Node>,
    next: u64,
}

/// Decides whether an operation fails; gets its name.
type Fault = Box<dyn Fn(&str) -> Option<Error> + Send + Sync>;

pub struct RamView {
    tree: Mutex<Tree>,
    caching: Caching,
    fault: Mutex<Option<Fault>>,
    /// While true, operations that may wait do.
    held: watch::Sender<bool>,
    /// Offsets of writes in the order of their first poll.
    pub writes: Mutex<Vec<u64>>,
}

impl RamView {
    pub fn new(caching: Caching) -> RamView {
        let view = RamView {
            tree: Mutex::default(),
            caching,
            fault: Mutex::default(),
            held: watch::Sender::new(false),
            writes: Mutex::default(),
        };
        let uid = nix::unistd::geteuid().as_raw();
        let gid = nix::unistd::getegid().as_raw();
        let mut tree = view.tree.lock();
        let root = Ownership {
            mode: 0o755,
            uid,
            gid,
        };
        tree.next = Ino::ROOT.0;
        tree.add(&NewInode::Directory, root, Timestamp(0));
        drop(tree);
        view
    }

    /// A view of the same files, as after a switch.
    pub fn fork(&self, caching: Caching) -> RamView {
        let view = RamView::new(caching);
        let tree = self.tree.lock();
        let mut copy = view.tree.lock();
        copy.nodes = tree.nodes.clone();
        copy.nodes.values_mut().for_each(|node| node.opens = 0);
        copy.next = tree.next;
        drop(copy);
        view
    }

    /// Lets operations fail.
    pub fn set_fault(&self, fault: impl Fn(&str) -> Option<Error> + Send + Sync + 'static) {
        *self.fault.lock() = Some(Box::new(fault));
    }

    /// Lets operations that may wait do so, until `false`.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Waits until this many operations are held.
    pub fn wait_for_held(&self, operations: usize) {
        while self.held.receiver_count() < operations {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Open handles over all files.
    pub fn opens(&self) -> u64 {
        let tree = self.tree.lock();
        tree.nodes.values().map(|node| node.opens).sum()
    }

    /// Inodes in existence.
    pub fn inodes(&self) -> usize {
        self.tree.lock().nodes.len()
    }

    /// Changes contents behind the kernel's back.
    pub fn poke(&self, path: &str, offset: u64, data: &[u8]) {
        let mut tree = self.tree.lock();
        let ino = path.split('/').fold(Ino::ROOT, |ino, name| {
            tree.nodes[&ino].names[name.as_bytes()]
        });
        tree.write(ino, offset, data, Timestamp(1)).unwrap();
    }

    fn check(&self, operation: &str) -> Result<()> {
        match &*self.fault.lock() {
            Some(fault) => fault(operation).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    async fn wait(&self) {
        if *self.held.borrow() {
            let mut held = self.held.subscribe();
            held.wait_for(|held| !held).await.unwrap();
        }
    }
}

impl Tree {
    fn add(&mut self, new: &NewInode, ownership: Ownership, now: Timestamp) -> Ino {
        let ino = Ino(self.next);
        self.next += 1;
        let (kind, size, target) = match new {
            NewInode::File => (FileKind::File, 0, vec![]),
            NewInode::Directory => (FileKind::Directory, 4096, vec![]),
            NewInode::Symlink(target) => (FileKind::Symlink, target.len() as u64, target.clone()),
        };
        let attr = Attr {
            ino,
            kind,
            size,
            allocated_bytes: 0,
            mode: ownership.mode,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: ownership.uid,
            gid: ownership.gid,
            atime: now,
            mtime: now,
            ctime: now,
        };
        let node = Node {
            attr: Some(attr),
            target,
            ..Node::default()
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn node(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Error::NotFound)
    }

    fn attr(&mut self, ino: Ino) -> Result<&mut Attr> {
        self.node(ino)?.attr.as_mut().ok_or(Error::NotFound)
    }

    fn directory(&mut self, ino: Ino) -> Result<&mut Node> {
        if self.attr(ino)?.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.node(ino)
    }

    fn find(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let names = &self.directory(parent)?.names;
        names.get(name).copied().ok_or(Error::NotFound)
    }

    fn touch(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let attr = self.attr(ino)?;
        (attr.mtime, attr.ctime, attr.atime) = (now, now, now);
        Ok(())
    }

    fn attach(&mut self, parent: Ino, name: &[u8], ino: Ino, now: Timestamp) -> Result<()> {
        self.directory(parent)?.names.insert(name.to_vec(), ino);
        self.touch(parent, now)?;
        if self.attr(ino)?.kind == FileKind::Directory {
            self.node(ino)?.parent = Some(parent);
            self.attr(parent)?.nlink += 1;
        }
        Ok(())
    }

    fn detach(&mut self, parent: Ino, name: &[u8], now: Timestamp) -> Result<Ino> {
        let ino = self.find(parent, name)?;
        self.directory(parent)?.names.remove(name);
        self.touch(parent, now)?;
        if self.attr(ino)?.kind == FileKind::Directory {
            self.attr(parent)?.nlink -= 1;
        }
        Ok(ino)
    }

    /// One name less; gone if that was the last and nobody has it open.
    fn drop_name(&mut self, ino: Ino, now: Timestamp) -> Result<()> {
        let attr = self.attr(ino)?;
        attr.ctime = now;
        attr.nlink = match attr.kind {
            FileKind::Directory => 0,
            _ => attr.nlink - 1,
        };
        self.collect(ino);
        Ok(())
    }

    fn collect(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get(&ino)
            && node.opens == 0
            && node.attr.is_some_and(|attr| attr.nlink == 0)
        {
            self.nodes.remove(&ino);
        }
    }

    fn is_below(&mut self, ino: Ino, top: Ino) -> bool {
        let mut at = Some(ino);
        while let Some(ino) = at {
            if ino == top {
                return true;
            }
            at = self.nodes[&ino].parent;
        }
        false
    }

    fn read(&mut self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        let size = self.attr(ino)?.size;
        let end = size.min(offset.saturating_add(u64::from(len)));
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let n = (BLOCK - at % BLOCK).min(end - at);
            match self.node(ino)?.blocks.get(&(at / BLOCK)) {
                Some(block) => {
                    let from = (at % BLOCK) as usize;
                    out.extend_from_slice(&block[from..from + n as usize]);
                }
                None => out.resize(out.len() + n as usize, 0),
            }
            at += n;
        }
        Ok(out.into())
    }

    fn write(&mut self, ino: Ino, offset: u64, data: &[u8], now: Timestamp) -> Result<()> {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let n = ((BLOCK - at % BLOCK) as usize).min(rest.len());
            let node = self.node(ino)?;
            let block = node
                .blocks
                .entry(at / BLOCK)
                .or_insert_with(|| vec![0; BLOCK as usize]);
            let from = (at % BLOCK) as usize;
            block[from..from + n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            at += n as u64;
        }
        let allocated = self.node(ino)?.blocks.len() as u64 * BLOCK;
        let attr = self.attr(ino)?;
        attr.size = attr.size.max(at);
        attr.allocated_bytes = allocated;
        self.touch(ino, now)
    }

    fn zero(&mut self, ino: Ino, range: Range<u64>) -> Result<()> {
        let blocks = &mut self.node(ino)?.blocks;
        for (number, block) in blocks.iter_mut() {
            let start = number * BLOCK;
            let from = range.start.clamp(start, start + BLOCK) - start;
            let to = range.end.clamp(start, start + BLOCK) - start;
            block[from as usize..to as usize].fill(0);
        }
        blocks.retain(|_, block| block.iter().any(|byte| *byte != 0));
        let allocated = blocks.len() as u64 * BLOCK;
        self.attr(ino)?.allocated_bytes = allocated;
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    assert!(name.len() <= 255, "the mount checks this");
    Ok(())
}

#[async_trait::async_trait]
impl View for RamView {
    fn cache_policy(&self) -> CachePolicy {
        let metadata = match self.caching {
            Caching::All => Duration::from_secs(3600),
            Caching::Nothing => Duration::ZERO,
        };
        CachePolicy { metadata }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.check("lookup")?;
        check_name(name)?;
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        tree.attr(ino).copied()
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.tree.lock().attr(ino).copied()
    }

    async fn set_attr(&self, ino: Ino, change: AttrChange, now: Timestamp) -> Result<Attr> {
        self.check("set_attr")?;
        self.wait().await;
        let mut tree = self.tree.lock();
        if let Some(size) = change.size {
            if tree.attr(ino)?.kind == FileKind::Directory {
                return Err(Error::IsDirectory);
            }
            if size > 1 << 50 {
                return Err(Error::TooLarge);
            }
            tree.zero(ino, size..u64::MAX)?;
            tree.attr(ino)?.size = size;
            tree.touch(ino, now)?;
        }
        let attr = tree.attr(ino)?;
        attr.mode = change.mode.unwrap_or(attr.mode);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        attr.atime = attr.mtime;
        attr.ctime = now;
        Ok(*attr)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut tree = self.tree.lock();
        match tree.attr(ino)?.kind {
            FileKind::Symlink => Ok(tree.node(ino)?.target.clone()),
            _ => Err(Error::Invalid("not a symbolic link")),
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
        self.check("create")?;
        check_name(name)?;
        let mut tree = self.tree.lock();
        if tree.find(parent, name).is_ok() {
            return Err(Error::Exists);
        }
        if tree.directory(parent)?.attr.is_some_and(|a| a.nlink == 0) {
            return Err(Error::NotFound);
        }
        let ino = tree.add(&new, ownership, now);
        tree.attach(parent, name, ino, now)?;
        tree.attr(ino).copied()
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8], now: Timestamp) -> Result<Attr> {
        self.check("link")?;
        let mut tree = self.tree.lock();
        if tree.attr(ino)?.kind == FileKind::Directory {
            return Err(Error::NotPermitted("a directory has one name"));
        }
        if tree.find(parent, name).is_ok() {
            return Err(Error::Exists);
        }
        tree.attach(parent, name, ino, now)?;
        let attr = tree.attr(ino)?;
        attr.nlink += 1;
        attr.ctime = now;
        Ok(*attr)
    }

    fn unlink(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        self.check("unlink")?;
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        if tree.attr(ino)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        tree.detach(parent, name, now)?;
        tree.drop_name(ino, now)
    }

    fn rmdir(&self, parent: Ino, name: &[u8], now: Timestamp) -> Result<()> {
        self.check("rmdir")?;
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        if !tree.directory(ino)?.names.is_empty() {
            return Err(Error::NotEmpty);
        }
        tree.detach(parent, name, now)?;
        tree.drop_name(ino, now)
    }

    fn rename(
        &self,
        (from, from_name): (Ino, &[u8]),
        (to, to_name): (Ino, &[u8]),
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()> {
        self.check("rename")?;
        let mut tree = self.tree.lock();
        let source = tree.find(from, from_name)?;
        let target = tree.find(to, to_name).ok();
        if tree.is_below(to, source) {
            return Err(Error::Invalid("a directory below itself"));
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                if tree.is_below(from, target) {
                    return Err(Error::Invalid("a directory below itself"));
                }
                tree.detach(from, from_name, now)?;
                tree.detach(to, to_name, now)?;
                tree.attach(from, from_name, target, now)?;
                return tree.attach(to, to_name, source, now);
            }
            (_, Some(target)) if target == source => return Ok(()),
            (_, Some(target)) => {
                let from_dir = tree.attr(source)?.kind == FileKind::Directory;
                let to_dir = tree.attr(target)?.kind == FileKind::Directory;
                match (from_dir, to_dir) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    (true, true) if !tree.node(target)?.names.is_empty() => {
                        return Err(Error::NotEmpty);
                    }
                    _ => {}
                }
                tree.detach(to, to_name, now)?;
                tree.drop_name(target, now)?;
            }
            (_, None) => {}
        }
        tree.detach(from, from_name, now)?;
        tree.attach(to, to_name, source, now)?;
        tree.attr(source)?.ctime = now;
        Ok(())
    }

    fn open(&self, ino: Ino) -> Result<PageCache> {
        self.check("open")?;
        self.tree.lock().node(ino)?.opens += 1;
        Ok(match self.caching {
            Caching::Nothing => PageCache::Bypassed,
            _ => PageCache::Kept,
        })
    }

    fn release(&self, ino: Ino) {
        let mut tree = self.tree.lock();
        tree.node(ino).unwrap().opens -= 1;
        tree.collect(ino);
    }

    fn read_dir(&self, ino: Ino) -> Result<Vec<DirEntry>> {
        let mut tree = self.tree.lock();
        let names = tree.directory(ino)?.names.clone();
        let entry = |(name, ino)| {
            let kind = tree.attr(ino)?.kind;
            Ok(DirEntry { ino, kind, name })
        };
        names.into_iter().map(entry).collect()
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        let mut tree = self.tree.lock();
        Ok(tree.directory(ino)?.parent.unwrap_or(ino))
    }

    async fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Bytes> {
        self.check("read")?;
        self.wait().await;
        self.tree.lock().read(ino, offset, len)
    }

    async fn write(&self, ino: Ino, offset: u64, data: Bytes, now: Timestamp) -> Result<()> {
        self.check("write")?;
        self.writes.lock().push(offset);
        self.wait().await;
        self.tree.lock().write(ino, offset, &data, now)
    }

    async fn fallocate(
        &self,
        ino: Ino,
        range: Range<u64>,
        mode: Fallocate,
        now: Timestamp,
    ) -> Result<()> {
        self.check("fallocate")?;
        self.wait().await;
        let mut tree = self.tree.lock();
        let grow = match mode {
            Fallocate::Extend => true,
            Fallocate::KeepSize => false,
            Fallocate::Zero { keep_size } => {
                tree.zero(ino, range.clone())?;
                !keep_size
            }
        };
        let attr = tree.attr(ino)?;
        if grow {
            attr.size = attr.size.max(range.end);
        }
        tree.touch(ino, now)
    }

    async fn fsync(&self, _ino: Ino) -> Result<()> {
        self.check("fsync")?;
        self.wait().await;
        Ok(())
    }

    async fn sync_all(&self) -> Result<()> {
        self.check("sync_all")
    }

    async fn stat_fs(&self) -> Result<StatFs> {
        self.check("stat_fs")?;
        Ok(StatFs {
            block_size_bytes: BLOCK as u32,
            blocks: 1 << 20,
            blocks_free: 1 << 19,
            files: self.inodes() as u64,
        })
    }
}
