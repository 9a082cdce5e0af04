//! Copying an image into a repository.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use coordination::records::unix_ms;
use dax::ids::FileId;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use pgdata::layout::CONTROL_FILE;
use tokio::sync::Mutex;
use volume::layout::{FileClass, Layout};
use volume::namespace::{Namespace, ROOT};
use volume::view::FileKind;

use crate::archive::Archiver;
use crate::error::{Error, Result};
use crate::manifest::{self, Directory, File, Manifest};
use crate::repository::work::Work;
use crate::repository::{CHUNK_BYTES, ChunkId, Repository};
use crate::source::Source;

/// Files that are copied at once, and pieces of each.
const FILES_AT_ONCE: usize = 16;
const CHUNKS_AT_ONCE: usize = 4;

/// How often the log is copied meanwhile, and the claim renewed.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that were read.
    pub read_bytes: u64,
    /// Bytes of all files.
    pub size_bytes: u64,
    /// Bytes that were written to the repository.
    pub written_bytes: u64,
}

/// Reads of an image, no more of them in a second than there may be.
pub struct Pace {
    bytes_per_second: Option<u64>,
    /// When the next one may begin.
    next: Mutex<Instant>,
}

impl Pace {
    /// So much in a second; `None` for as much as goes.
    pub fn new(bytes_per_second: Option<u64>) -> Pace {
        Pace {
            bytes_per_second,
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so much may be read.
    async fn wait(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second.filter(|rate| *rate > 0) else {
            return;
        };
        let mut next = self.next.lock().await;
        let begin = (*next).max(Instant::now());
        *next = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        drop(next);
        tokio::time::sleep_until(begin.into()).await;
    }
}

/// A file to copy.
struct Found {
    id: FileId,
    path: String,
    class: FileClass,
    mode: u16,
    size: u64,
}

/// Copies the image that `source` stands on, and meanwhile the log. `tell` hears how far it is. Waits while an expiry removes
/// pieces.
///
/// # Errors
/// The claim was given up; those of the zones and of the repository. Nothing of it counts then: pieces that were written are
/// there for the next copy.
pub async fn create(
    source: &mut Source,
    archiver: &mut Archiver,
    repository: &Repository,
    pace: &Pace,
    tell: impl FnMut(Progress),
) -> Result<Manifest> {
    let work = Work::copy(repository).await?;
    let copied = copy_all(source, archiver, repository, pace, tell).await;
    let done = match &copied {
        Ok(manifest) => complete(&work, repository, manifest).await,
        Err(_) => Ok(()),
    };
    work.end().await?;
    done.and(copied)
}

/// Puts the image into the repository: its pieces are there, because nobody took the copy for gone.
async fn complete(work: &Work, repository: &Repository, manifest: &Manifest) -> Result<()> {
    manifest.put(repository).await?;
    if let Err(gone) = work.now().await {
        manifest::remove(repository, &manifest.id()).await?;
        return Err(gone);
    }
    Ok(())
}

async fn copy_all(
    source: &mut Source,
    archiver: &mut Archiver,
    repository: &Repository,
    pace: &Pace,
    mut tell: impl FnMut(Progress),
) -> Result<Manifest> {
    let begun_unix_ms = unix_ms();
    let to = To {
        repository,
        known: known_chunks(repository).await?,
        pace,
    };
    // The log is copied meanwhile, and the names go on: what is found now is read by the names of now.
    let live = source.live().clone();
    let (directories, found) = files_of(source, &live)?;
    let mut progress = Progress {
        size_bytes: found.iter().map(|file| file.size).sum(),
        ..Progress::default()
    };
    let mut files = Vec::with_capacity(found.len());
    let mut kept = Instant::now();
    for some in found.chunks(FILES_AT_ONCE) {
        // Most files are small, and each waits for the zones and for the disk.
        let copies = some.iter().map(|one| copy(source, &live, &to, one));
        for (file, written_bytes) in try_join_all(copies).await? {
            progress.read_bytes += file.size_bytes;
            progress.written_bytes += written_bytes;
            files.push(file);
        }
        tell(progress);
        if kept.elapsed() > KEEP_EVERY {
            archiver.copy(source).await?;
            source.keep(archiver.at()).await?;
            kept = Instant::now();
        }
    }
    let seal = source.seal();
    let control = source.control();
    Ok(Manifest {
        generation: seal.generation,
        begun_unix_ms,
        server: server_of(source, &live).await?,
        redo: seal.redo,
        end: seal.end,
        timeline: control.timeline,
        segment_bytes: control.segment_size.bytes() as u32,
        control: seal.payload.clone(),
        directories,
        files,
        written_bytes: progress.written_bytes,
    })
}

/// Pieces that the last image has: they are there.
async fn known_chunks(repository: &Repository) -> Result<HashSet<ChunkId>> {
    let Some(last) = manifest::images(repository).await?.pop() else {
        return Ok(HashSet::new());
    };
    let last = Manifest::load(repository, &last).await?;
    Ok(last.chunks().collect())
}

/// Contents of a data directory that is made of the image: data as it was sealed, configuration as it is now, no log, and nothing
/// that is a node's own.
fn files_of(source: &Source, live: &Namespace) -> Result<(Vec<Directory>, Vec<Found>)> {
    let mut directories = Vec::new();
    let mut files = Vec::new();
    walk(
        source,
        source.image(),
        FileClass::Data,
        ROOT,
        "",
        &mut directories,
        &mut files,
    )?;
    walk(
        source,
        live,
        FileClass::Live,
        ROOT,
        "",
        &mut directories,
        &mut files,
    )?;
    directories.sort_by(|a, b| a.path.cmp(&b.path));
    directories.dedup_by(|a, b| a.path == b.path);
    Ok((directories, files))
}

fn walk(
    source: &Source,
    names: &Namespace,
    class: FileClass,
    directory: FileId,
    path: &str,
    directories: &mut Vec<Directory>,
    files: &mut Vec<Found>,
) -> Result<()> {
    let layout = source.layout();
    let all = names.directory(directory)?;
    for (name, id) in all {
        let name = std::str::from_utf8(name)
            .map_err(|_| Error::Refused(format!("a file in {path} has a name that is no text")))?;
        let path = match path {
            "" => name.to_owned(),
            above => format!("{above}/{name}"),
        };
        let inode = names.inode(*id)?;
        let of_class = layout.class(&path);
        let hider = layout.hidden_by(name);
        let is_unlogged = hider.is_some_and(|hider| all.contains_key(hider.as_bytes()));
        match inode.kind {
            FileKind::Directory if of_class != class => {}
            FileKind::Directory => {
                directories.push(Directory {
                    path: path.clone(),
                    mode: inode.mode,
                });
                walk(source, names, class, *id, &path, directories, files)?;
            }
            FileKind::File
                if of_class != class
                    || is_unlogged
                    || path == CONTROL_FILE
                    || layout.hidden_on_standby(&path) => {}
            FileKind::File => files.push(Found {
                id: *id,
                path,
                class,
                mode: inode.mode,
                size: inode.size,
            }),
            FileKind::Symlink => {
                return Err(Error::Refused(format!(
                    "{path} is a symbolic link, which a backup cannot carry"
                )));
            }
        }
    }
    Ok(())
}

/// Where pieces go.
struct To<'a> {
    repository: &'a Repository,
    /// Pieces that are there.
    known: HashSet<ChunkId>,
    pace: &'a Pace,
}

async fn copy(
    source: &Source,
    live: &Namespace,
    to: &To<'_>,
    found: &Found,
) -> Result<(File, u64)> {
    let starts = (0..found.size).step_by(CHUNK_BYTES);
    let one = |start| {
        let end = found.size.min(start + CHUNK_BYTES as u64);
        async move {
            to.pace.wait(end - start).await;
            let bytes = match found.class {
                FileClass::Data => source.read_image(found.id, start..end).await?,
                _ => source.read_live(live, found.id, start..end).await?,
            };
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok((None, 0));
            }
            let id = to.repository.chunk_id(bytes.clone()).await?;
            let written = match to.known.contains(&id) {
                true => 0,
                false => to.repository.put_chunk(id, bytes).await?,
            };
            Ok::<_, Error>((Some(id), written))
        }
    };
    let mut copied = stream::iter(starts).map(one).buffered(CHUNKS_AT_ONCE);
    let (mut chunks, mut written_bytes) = (Vec::new(), 0);
    while let Some((id, written)) = copied.try_next().await? {
        written_bytes += written;
        chunks.push(id);
    }
    let file = File {
        path: found.path.clone(),
        mode: found.mode,
        size_bytes: found.size,
        chunks,
    };
    Ok((file, written_bytes))
}

/// The server's major version, as the data directory says it.
async fn server_of(source: &Source, live: &Namespace) -> Result<String> {
    let file = live.resolve("PG_VERSION")?;
    let text = source.read_whole(live, file).await?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}
