//! Reading a whole repository: everything that an image needs is there, and is what was written.

use std::collections::HashSet;

use futures_util::{StreamExt, stream};
use pgdata::segment::SegmentSize;
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::log::LogIndex;
use crate::manifest::{self, ImageId, Manifest};
use crate::repository::{ChunkId, Repository};

/// Objects that are read at once.
const READS_AT_ONCE: usize = 8;

/// The result of reading a repository.
#[derive(Debug, Default, serde::Serialize)]
pub struct Verified {
    /// Images.
    pub images: usize,
    /// Different pieces of their files.
    pub chunks: usize,
    /// Segments of the log.
    pub segments: usize,
    /// Bytes of all that.
    pub read_bytes: u64,
    /// Damaged or missing objects, and gaps, in words.
    pub wrong: Vec<String>,
}

/// Reads all images and all log of a repository. `tell` hears how many pieces were read, of how many.
///
/// # Errors
/// The repository cannot be listed. What is damaged or missing is no error here.
pub async fn verify(
    repository: &Repository,
    mut tell: impl FnMut(usize, usize),
) -> Result<Verified> {
    let mut verified = Verified::default();
    let mut chunks: HashSet<ChunkId> = HashSet::new();
    let mut size = None;
    let alone = manifest::alone(repository).await?;
    for image in manifest::images(repository).await? {
        verified.images += 1;
        match Manifest::load(repository, &image).await {
            Ok(manifest) => {
                chunks.extend(manifest.chunks());
                size = manifest.segment_size().ok();
                let trouble = trouble_of(repository, &image, &manifest, &alone).await;
                verified.wrong.extend(trouble);
            }
            Err(error) => verified.wrong.push(error.to_string()),
        }
    }
    let all = chunks.len();
    let read = |id| async move { repository.chunk(id).await };
    let mut reads = stream::iter(chunks)
        .map(read)
        .buffer_unordered(READS_AT_ONCE);
    while let Some(read) = reads.next().await {
        verified.chunks += 1;
        match read {
            Ok(contents) => verified.read_bytes += contents.len() as u64,
            Err(error) => verified.wrong.push(error.to_string()),
        }
        tell(verified.chunks, all);
    }
    if verified.images == 0 {
        let said = "there is no image: nothing can be restored";
        verified.wrong.push(said.to_owned());
    }
    if let Some(size) = size {
        verify_log(repository, size, &mut verified).await?;
    }
    Ok(verified)
}

/// A reason why an image cannot be restored to any moment behind it.
async fn trouble_of(
    repository: &Repository,
    image: &ImageId,
    manifest: &Manifest,
    alone: &HashSet<ImageId>,
) -> Option<String> {
    let reached = reach_and_end(repository, image, manifest).await;
    match reached {
        Ok((reach, end, _)) if reach < end && !alone.contains(image) => Some(format!(
            "the log behind the image {image} has a gap at {reach}: from there up to {end} only later images can be restored"
        )),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

async fn verify_log(
    repository: &Repository,
    size: SegmentSize,
    verified: &mut Verified,
) -> Result<()> {
    let index = repository.log(size).await?;
    for segment in index.segments() {
        verified.segments += 1;
        match repository.segment(&index, segment).await {
            Ok(bytes) => verified.read_bytes += bytes.len() as u64,
            Err(error) => verified.wrong.push(error.to_string()),
        }
    }
    for timeline in index.histories() {
        if let Err(error) = repository.history_file(timeline).await {
            verified.wrong.push(error.to_string());
        }
    }
    Ok(())
}

/// Where an image can be restored to: from its end up to the end of the log behind it.
///
/// # Errors
/// [`Error::OutOfReach`] if the log does not even go to its end.
pub async fn reach_of(
    repository: &Repository,
    image: &ImageId,
    manifest: &Manifest,
) -> Result<Lsn> {
    let (reach, ..) = reach_and_end(repository, image, manifest).await?;
    Ok(reach)
}

/// Reach of an image, the end of all log that is there, which is later if there is a gap, and the names of that log.
pub(crate) async fn reach_and_end(
    repository: &Repository,
    image: &ImageId,
    manifest: &Manifest,
) -> Result<(Lsn, Lsn, LogIndex)> {
    let index = repository.log(manifest.segment_size()?).await?;
    let history = repository.history(&index).await?;
    let reach = index.reaches(&history, manifest.redo);
    if reach < manifest.end {
        return Err(Error::OutOfReach {
            wanted: format!("the end of the image {image}, {}", manifest.end),
            from: manifest.redo,
            to: reach,
        });
    }
    let end = index.end(&history);
    Ok((reach, end, index))
}
