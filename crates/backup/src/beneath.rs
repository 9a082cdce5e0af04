//! An image of a repository as it lies beneath a volume: its blocks are read from the repository until they are in the zones.
//!
//! ```text
//!   image ── a volume of its own ◀── fill: piece after piece, with the place where it goes on recorded
//!     ▲                 ▲
//!     │                 └── the database's volume is laid over it
//!     └── reads of what is not there yet
//! ```
//!
//! Invariant: the files of an image have the same numbers for everybody who opens it, by their order in the manifest.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use coordination::records::{Filling, Record, unix_ms};
use dax::beneath::{Beneath, VERSION};
use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, FileId, Generation};
use dax::storage::{Block, Lineage, Storage, SyncScope};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use volume::journal::Chained;
use volume::layout::FileClass;
use volume::namespace::op::Op;
use volume::namespace::{Inode, Namespace, ROOT};
use volume::seal::{Base, Seal};
use volume::snapshot::SnapshotRef;
use volume::view::{FileKind, Ownership, Timestamp};

use crate::error::{Error, Result};
use crate::manifest::{File, ImageId, Manifest};
use crate::repository::{CHUNK_BYTES, ChunkId, Repository};

/// The generation that the image is of, in its own volume.
const GENERATION: Generation = Generation {
    epoch: Epoch(1),
    number: 0,
};
/// Pieces that are kept for the next reads.
const PIECES_KEPT: usize = 64;
/// The wait before a repository that cannot be reached is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Pieces between two records of how far it is.
const PIECES_AT_ONCE: usize = if cfg!(test) { 2 } else { 64 };

/// Epochs of the image's volume that those who copy may own, one after the other.
pub const COPIERS: u32 = 100;

/// See the module.
pub struct Image {
    repository: Repository,
    manifest: Manifest,
    /// Places in the manifest of the files with blocks, in order.
    files: Vec<usize>,
    block_bytes: usize,
    pieces: Mutex<Pieces>,
}

#[derive(Default)]
struct Pieces {
    known: HashMap<ChunkId, Arc<OnceCell<Bytes>>>,
    /// Oldest first.
    order: VecDeque<ChunkId>,
}

impl Pieces {
    fn of(&mut self, id: ChunkId) -> Arc<OnceCell<Bytes>> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        if self.order.len() == PIECES_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(id);
        self.known.entry(id).or_default().clone()
    }
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that are in the zones.
    pub done_bytes: u64,
    /// Bytes of all.
    pub size_bytes: u64,
}

impl Image {
    /// Opens an image for a volume with blocks of this size.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Missing`]; those of the store.
    pub async fn open(repository: Repository, id: &ImageId, block_bytes: u32) -> Result<Image> {
        if repository.owner().await?.is_none() {
            return Err(Error::Missing("understudy.json".to_owned()));
        }
        let manifest = Manifest::load(&repository, id).await?;
        Ok(Image::of(repository, manifest, block_bytes))
    }

    /// An image whose manifest is known.
    pub fn of(repository: Repository, manifest: Manifest, block_bytes: u32) -> Image {
        let files = manifest.files.iter().enumerate();
        let files = files.filter(|(_, file)| file.id.is_some());
        Image {
            files: files.map(|(place, _)| place).collect(),
            repository,
            manifest,
            block_bytes: block_bytes as usize,
            pieces: Mutex::default(),
        }
    }

    /// Generations of the image in its own volume.
    pub fn lineage() -> Lineage {
        Lineage::up_to(GENERATION)
    }

    /// Numbers of all its files.
    pub fn ids(&self) -> impl Iterator<Item = FileId> {
        (0..self.files.len()).map(id_of)
    }

    fn file(&self, id: FileId) -> Option<&File> {
        let place = id.0.checked_sub(FileId::new(GENERATION.epoch, 1).0)?;
        let place = self.files.get(usize::try_from(place).ok()?)?;
        Some(&self.manifest.files[*place])
    }

    /// The image as a volume is laid over it, with files of this owner.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a file has no directory.
    pub fn base(&self, owner: Ownership) -> Result<Base> {
        let now = Timestamp(unix_ms() as i64 * 1_000_000);
        let mut namespace = Namespace::new(owner, FileClass::Data, now);
        let mut known: HashMap<&str, FileId> = HashMap::from([("", ROOT)]);
        let mut below: HashMap<FileId, u32> = HashMap::new();
        let inode = |kind, mode: u16, size, nlink, parent, name: &str| Inode {
            kind,
            class: FileClass::Data,
            mode,
            uid: owner.uid,
            gid: owner.gid,
            nlink,
            size,
            mtime: now,
            ctime: now,
            cuts: Vec::new(),
            target: None,
            parent,
            name: name.as_bytes().into(),
        };
        let data: std::collections::BTreeSet<&str> = self
            .files
            .iter()
            .flat_map(|place| ancestors(&self.manifest.files[*place].path))
            .collect();
        let directories = self.manifest.directories.iter();
        let directories = directories.filter(|one| data.contains(one.path.as_str()));
        for (number, directory) in (self.files.len()..).zip(directories) {
            let (parent, name) = place_of(&known, &directory.path)?;
            let id = id_of(number);
            known.insert(&directory.path, id);
            *below.entry(parent).or_default() += 1;
            let inode = inode(FileKind::Directory, directory.mode, 0, 2, parent, name);
            make(&mut namespace, id, inode)?;
        }
        for (number, place) in self.files.iter().enumerate() {
            let file = &self.manifest.files[*place];
            let (parent, name) = place_of(&known, &file.path)?;
            let inode = inode(FileKind::File, file.mode, file.size_bytes, 1, parent, name);
            make(&mut namespace, id_of(number), inode)?;
        }
        for (id, count) in below {
            let inode = Inode {
                nlink: 2 + count,
                ..namespace.inode(id)?.clone()
            };
            namespace.apply(&Op::PutInode { id, inode })?;
        }
        Ok(Base {
            seal: Seal {
                generation: GENERATION,
                lineage: Image::lineage(),
                journal: Chained::START.at,
                // Whoever is laid over it makes one of its own.
                snapshot: SnapshotRef {
                    file: ROOT,
                    bytes: 0,
                    at: Chained::START.at,
                    chain: 0,
                },
                redo: self.manifest.redo,
                end: self.manifest.end,
                lists: Vec::new(),
                at: Some(now),
                newest_file: None,
                payload: self.manifest.control.clone(),
            },
            namespace,
            place: Chained::START,
        })
    }

    /// A piece of a file; `None` for zeros. Waits while the repository cannot be reached.
    async fn piece(&self, file: &File, number: usize) -> Result<Option<Bytes>> {
        let Some(id) = file.chunks.get(number).copied().flatten() else {
            return Ok(None);
        };
        let cell = self.pieces.lock().of(id);
        let fetch = || async {
            loop {
                let read = self.repository.chunk(id).await;
                let is_away = match &read {
                    Err(Error::Store(_)) => true,
                    // A disk that is not mounted is an empty directory.
                    Err(Error::Missing(_)) => !matches!(self.repository.owner().await, Ok(Some(_))),
                    _ => false,
                };
                match read {
                    Err(error) if is_away => {
                        tracing::warn!(%error, "an image lies beneath the volume, and its repository cannot be read; trying again");
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                    read => return read.map(Bytes::from),
                }
            }
        };
        Ok(Some(cell.get_or_try_init(fetch).await?.clone()))
    }

    /// Blocks of a piece, with their places in the file; those with zeros alone are left out.
    async fn blocks(&self, file: &File, number: usize) -> Result<Vec<(u64, Bytes)>> {
        let Some(piece) = self.piece(file, number).await? else {
            return Ok(Vec::new());
        };
        let first = (number * CHUNK_BYTES / self.block_bytes) as u64;
        let starts = (0..piece.len()).step_by(self.block_bytes);
        let blocks = starts.map(|start| whole_block(&piece, start, self.block_bytes));
        let blocks = (first..).zip(blocks);
        Ok(blocks
            .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
            .collect())
    }

    /// Copies the image into its own volume, from where the record says on. `into` is a handle to that; `over` to the volume that
    /// is laid over it, which has the record. `tell` hears how far it is.
    ///
    /// # Errors
    /// Too many have copied before; those of the zones and of the repository.
    pub async fn fill(
        &self,
        over: &Arc<dyn Storage>,
        into: &Arc<dyn Storage>,
        mut filling: Filling,
        mut tell: impl FnMut(Progress),
    ) -> Result<()> {
        let epoch = into.epoch().unwrap_or_default();
        if epoch >= filling.before_epoch {
            return Err(Error::Refused(format!(
                "the image was copied by {} nodes one after the other, and is still not complete: make the branch again",
                epoch.0
            )));
        }
        let mut progress = Progress {
            size_bytes: self.files().map(|file| file.size_bytes).sum(),
            done_bytes: 0,
        };
        let mut pieces = 0;
        for (place, file) in self.files().enumerate() {
            let place = place as u64;
            for number in 0..file.chunks.len() {
                let is_done = (place, number as u64) < (filling.next_file, filling.next_piece);
                if !is_done {
                    self.copy(into, id_of(place as usize), file, number).await?;
                    pieces += 1;
                }
                let left = file.size_bytes - (number * CHUNK_BYTES) as u64;
                progress.done_bytes += left.min(CHUNK_BYTES as u64);
                tell(progress);
                if pieces == PIECES_AT_ONCE {
                    pieces = 0;
                    into.csync(SyncScope::Volume).await?;
                    (filling.next_file, filling.next_piece) = (place, number as u64 + 1);
                    // A successor may have been faster.
                    let now = Filling::load(over.as_ref()).await?;
                    if now.is_none_or(|now| now.done) {
                        return Ok(());
                    }
                    filling.store(over.as_ref()).await?;
                }
            }
        }
        into.csync(SyncScope::Volume).await?;
        self.is_everywhere(into).await;
        filling.done = true;
        Ok(filling.store(over.as_ref()).await?)
    }

    async fn copy(
        &self,
        into: &Arc<dyn Storage>,
        id: FileId,
        file: &File,
        number: usize,
    ) -> Result<()> {
        for (block, data) in self.blocks(file, number).await? {
            into.write_room(data.len()).await?;
            into.write(BlockKey::new(id, block), GENERATION, data)?;
        }
        Ok(())
    }

    /// Waits until every zone that is up has what was copied.
    async fn is_everywhere(&self, into: &Arc<dyn Storage>) {
        let is_behind = || {
            let replicas = into.replicas();
            replicas.iter().any(|one| one.up && one.pending_bytes > 0)
        };
        while is_behind() {
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().map(|place| &self.manifest.files[*place])
    }
}

fn id_of(number: usize) -> FileId {
    FileId::new(GENERATION.epoch, number as u64 + 1)
}

/// A block of a piece; behind the end of the piece there are zeros.
fn whole_block(piece: &Bytes, start: usize, block_bytes: usize) -> Bytes {
    let end = piece.len().min(start + block_bytes);
    if end - start == block_bytes {
        return piece.slice(start..end);
    }
    let mut block = piece[start..end].to_vec();
    block.resize(block_bytes, 0);
    block.into()
}

/// Directories above a path.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

fn place_of<'a>(known: &HashMap<&str, FileId>, path: &'a str) -> Result<(FileId, &'a str)> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = known.get(above).copied();
    let parent = parent.ok_or_else(|| Error::damaged(path, "its directory is missing"))?;
    Ok((parent, name))
}

fn make(namespace: &mut Namespace, id: FileId, inode: Inode) -> Result<()> {
    let (parent, name) = (inode.parent, inode.name.to_vec());
    namespace.apply(&Op::PutInode { id, inode })?;
    namespace.apply(&Op::PutName { parent, name, id })?;
    Ok(())
}

#[async_trait]
impl Beneath for Image {
    async fn block(&self, key: BlockKey) -> dax::Result<Option<Block>> {
        let Some(file) = self.file(key.file) else {
            return Ok(None);
        };
        let start = key.block.0 * self.block_bytes as u64;
        let number = start as usize / CHUNK_BYTES;
        let piece = self.piece(file, number).await;
        let piece = piece.map_err(|error| {
            let message = "an image beneath the volume";
            dax::Error::with_source(ErrorKind::Corrupt, message, error)
        })?;
        let start = start as usize % CHUNK_BYTES;
        Ok(piece
            .filter(|piece| start < piece.len())
            .map(|piece| Block {
                version: VERSION,
                generation: GENERATION,
                data: whole_block(&piece, start, self.block_bytes),
            }))
    }
}
