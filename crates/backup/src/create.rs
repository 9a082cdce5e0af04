//! Copying an image into a repository.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use coordination::records::unix_ms;
use dax::ids::FileId;
use futures_util::{StreamExt, TryStreamExt, stream};
use pgdata::layout::CONTROL_FILE;
use tokio::sync::Mutex;
use volume::layout::{FileClass, Layout};
use volume::namespace::{Cut, Namespace, ROOT};
use volume::view::FileKind;

use crate::archive::{Archiver, Copied};
use crate::changes::{FileNow, Unchanged};
use crate::error::{Error, Result};
use crate::manifest::{self, Directory, File, Manifest};
use crate::repository::work::Work;
use crate::repository::{CHUNK_BYTES, ChunkId, Repository};
use crate::source::Source;

/// Files that are copied at once, and pieces of each.
const FILES_AT_ONCE: usize = 32;
const CHUNKS_AT_ONCE: usize = 4;

/// Files that are copied before the log is looked at, and their bytes unless it is one.
const FILES_TOGETHER: usize = 256;
const BYTES_TOGETHER: u64 = 64 << 20;

/// How often the log is copied meanwhile, and the claim renewed.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// How often the log is looked at that an image needs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that are copied, or the same as before.
    pub done_bytes: u64,
    /// Bytes that were read.
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

/// How an image is copied.
pub struct How {
    /// Limit of the reading speed.
    pub pace: Pace,
    /// True if everything is read, whatever was written since the image before.
    pub is_full: bool,
}

/// A file to copy.
pub(crate) struct Found {
    pub id: FileId,
    cuts: Vec<Cut>,
    pub path: String,
    pub class: FileClass,
    pub mode: u16,
    pub size: u64,
}

/// Copies the image that `source` stands on, and the log that it needs. `tell` hears how far it is.
///
/// # Errors
/// [`Error::Expiring`]; the claim was given up; those of the zones and of the repository. Nothing of it counts then: pieces that
/// were written are there for the next copy.
pub async fn create(
    source: &mut Source,
    archiver: &mut Archiver,
    repository: &Repository,
    how: &How,
    tell: impl FnMut(Progress),
) -> Result<Manifest> {
    let work = Work::copy(repository).await?;
    let mut copied = copy_all(source, archiver, repository, how, tell).await;
    let done = match &mut copied {
        Ok(manifest) => complete(&work, source, archiver, repository, manifest).await,
        Err(_) => Ok(()),
    };
    work.end().await?;
    done.and(copied)
}

/// True if a file belongs to an unlogged relation by the names of now: a server makes it of the initial fork when it starts.
///
/// A server makes the other forks first, and no log says so; a seal in between has them alone. The log then has the initial fork,
/// and recovery fails in the end, because it finds what it wants to make.
pub(crate) fn is_unlogged(source: &Source, path: &str) -> bool {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let initial = source.layout().hidden_by(name);
    initial.is_some_and(|initial| {
        source
            .live()
            .resolve(&format!("{directory}/{initial}"))
            .is_ok()
    })
}

/// Puts the image into the repository, when the log is there that it needs. Its pieces are, because nobody took the copy for gone.
async fn complete(
    work: &Work,
    source: &mut Source,
    archiver: &mut Archiver,
    repository: &Repository,
    manifest: &mut Manifest,
) -> Result<()> {
    loop {
        match archiver.copy(source).await? {
            Copied::To(end) if end >= manifest.end => break,
            Copied::Gap(at) => {
                return Err(Error::Refused(format!(
                    "the log from {at} on was given back while the image was copied"
                )));
            }
            Copied::To(_) | Copied::Later => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    manifest
        .files
        .retain(|file| !is_unlogged(source, &file.path));
    manifest.put(repository).await?;
    if let Err(gone) = work.now().await {
        manifest::remove(repository, &manifest.id()).await?;
        return Err(gone);
    }
    repository.remove_changes(manifest).await
}

async fn copy_all(
    source: &mut Source,
    archiver: &mut Archiver,
    repository: &Repository,
    how: &How,
    mut tell: impl FnMut(Progress),
) -> Result<Manifest> {
    let begun_unix_ms = unix_ms();
    let to = destination(source, repository, how).await?;
    // The log is copied meanwhile, and the names go on: what is found now is read by the names of now.
    let live = source.live().clone();
    let (directories, found) = files_of(source, &live)?;
    let mut progress = Progress {
        size_bytes: found.iter().map(|file| file.size).sum(),
        ..Progress::default()
    };
    let mut files = Vec::with_capacity(found.len());
    let mut kept = Instant::now();
    for some in together(&found) {
        // Most files are small, and each waits for the zones and for the disk.
        let copies = some.iter().map(|one| copy(source, &live, &to, one));
        let mut copies = stream::iter(copies).buffered(FILES_AT_ONCE);
        while let Some((file, copied)) = copies.try_next().await? {
            progress.done_bytes += file.size_bytes;
            progress.read_bytes += copied.read;
            progress.written_bytes += copied.written;
            files.push(file);
            tell(progress);
        }
        drop(copies);
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
        lineage: seal.lineage.clone(),
        begun_unix_ms,
        server: server_of(source, &live).await?,
        redo: seal.redo,
        end: seal.end,
        timeline: control.timeline,
        segment_bytes: control.segment_size.bytes() as u32,
        control: seal.payload.clone(),
        directories,
        files,
        read_bytes: progress.read_bytes,
        written_bytes: progress.written_bytes,
    })
}

/// The files in groups that are copied while the log waits.
fn together(files: &[Found]) -> impl Iterator<Item = &[Found]> {
    let mut rest = files;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let few = rest.iter().take(FILES_TOGETHER).take_while(|file| {
            let is_first = bytes == 0;
            bytes += file.size;
            is_first || bytes <= BYTES_TOGETHER
        });
        let (some, others) = rest.split_at(few.count());
        rest = others;
        (!some.is_empty()).then_some(some)
    })
}

/// Looks what is there already.
async fn destination<'a>(
    source: &Source,
    repository: &'a Repository,
    how: &'a How,
) -> Result<CopyTarget<'a>> {
    let mut to = CopyTarget {
        repository,
        known: HashMap::new(),
        unchanged: None,
        pace: &how.pace,
    };
    repository.put_changes(source).await?;
    let Some(last) = manifest::last(repository).await? else {
        return Ok(to);
    };
    to.known = repository.chunks().await?;
    if !how.is_full {
        to.unchanged = repository.unchanged_since(last, source.seal()).await?;
    }
    Ok(to)
}

/// Contents of a data directory that is made of the image: data as it was sealed, configuration as it is now, no log, and nothing
/// that is a node's own.
pub(crate) fn files_of(source: &Source, live: &Namespace) -> Result<(Vec<Directory>, Vec<Found>)> {
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
            // Slots are of this cluster only.
            FileKind::Directory
                if class == FileClass::Live
                    && layout.standby_class(&path) == FileClass::Private => {}
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
                cuts: inode.cuts.clone(),
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

/// Bytes of a copy.
#[derive(Default)]
struct Moved {
    read: u64,
    written: u64,
}

/// Target of a copy's pieces.
struct CopyTarget<'a> {
    repository: &'a Repository,
    /// Pieces that are there.
    known: HashMap<ChunkId, u64>,
    /// Pieces that need not be read.
    unchanged: Option<Unchanged>,
    pace: &'a Pace,
}

async fn copy(
    source: &Source,
    live: &Namespace,
    to: &CopyTarget<'_>,
    found: &Found,
) -> Result<(File, Moved)> {
    let is_data = found.class == FileClass::Data;
    let now = FileNow {
        id: found.id,
        size_bytes: found.size,
        cuts: &found.cuts,
    };
    let starts = (0..found.size).step_by(CHUNK_BYTES).enumerate();
    let one = |(place, start)| {
        let end = found.size.min(start + CHUNK_BYTES as u64);
        let unchanged = to.unchanged.as_ref().filter(|_| is_data);
        let same = unchanged.and_then(|unchanged| unchanged.piece(&now, place));
        let same = same.filter(|id| id.is_none_or(|id| to.known.contains_key(&id)));
        async move {
            if let Some(id) = same {
                return Ok((id, Moved::default()));
            }
            let read = end - start;
            to.pace.wait(end - start).await;
            let bytes = match is_data {
                true => source.read_image(found.id, start..end).await?,
                false => source.read_live(live, found.id, start..end).await?,
            };
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok((None, Moved { read, written: 0 }));
            }
            let id = to.repository.chunk_id(bytes.clone()).await?;
            let written = match to.known.contains_key(&id) {
                true => 0,
                false => to.repository.put_chunk(id, bytes).await?,
            };
            Ok::<_, Error>((Some(id), Moved { read, written }))
        }
    };
    let mut pieces = stream::iter(starts).map(one).buffered(CHUNKS_AT_ONCE);
    let (mut chunks, mut sum) = (Vec::new(), Moved::default());
    while let Some((id, copied)) = pieces.try_next().await? {
        sum.read += copied.read;
        sum.written += copied.written;
        chunks.push(id);
    }
    let file = File {
        id: is_data.then_some(found.id.0),
        cuts: found.cuts.clone(),
        path: found.path.clone(),
        mode: found.mode,
        size_bytes: found.size,
        chunks,
    };
    Ok((file, sum))
}

/// The server's major version, as the data directory says it.
async fn server_of(source: &Source, live: &Namespace) -> Result<String> {
    let file = live.resolve("PG_VERSION")?;
    let text = source.read_whole(live, file).await?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}
