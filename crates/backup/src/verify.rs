//! Reading a whole repository: everything that an image needs is there, and is what was written.

use std::collections::{BTreeSet, HashSet};

use futures_util::{StreamExt, stream};
use pgdata::segment::SegmentSize;
use pgdata::timeline::TimelineId;
use tokio::sync::OnceCell;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::manifest::{self, Manifest};
use crate::repository::work::Work;
use crate::repository::{ChunkId, Repository};
use crate::tip::Tip;

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
    /// Pieces and images that are damaged, by the names of their objects.
    pub damaged: Vec<String>,
}

impl Verified {
    fn note(&mut self, error: Error) {
        self.wrong.push(error.to_string());
        if let Error::Damaged { object, .. } = error {
            self.damaged.push(object);
        }
    }
}

/// Sets damaged pieces and images aside, below `damaged/`, and says how many: a piece that is there is not written again, so all later
/// images would have it; and nothing expires while an image cannot be read. `None` while somebody copies.
///
/// # Errors
/// Those of the store.
pub async fn repair(repository: &Repository, damaged: &[String]) -> Result<Option<usize>> {
    let Some(work) = Work::expiry(repository).await? else {
        return Ok(None);
    };
    let mut aside = 0;
    let mut set_aside = async || -> Result<()> {
        for object in damaged {
            aside += usize::from(repository.set_aside(object).await?);
        }
        Ok(())
    };
    let done = set_aside().await;
    work.end().await?;
    done.map(|()| Some(aside))
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
    let log = OnceCell::new();
    let alone = manifest::alone(repository).await?;
    for image in manifest::images(repository).await? {
        verified.images += 1;
        match Manifest::load(repository, &image).await {
            Ok(manifest) => {
                chunks.extend(manifest.chunks());
                size = manifest.segment_size().ok();
                let listed = log.get_or_try_init(|| Log::of(repository, &manifest)).await;
                let is_alone = alone.contains(&image);
                let trouble = match listed {
                    Ok(log) => trouble_of(log, &manifest, is_alone),
                    Err(error) => Some(error.to_string()),
                };
                verified.wrong.extend(trouble);
            }
            Err(error) => verified.note(error),
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
            Err(error) => verified.note(error),
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
fn trouble_of(log: &Log, manifest: &Manifest, is_alone: bool) -> Option<String> {
    let (image, end) = (manifest.id(), log.end());
    match log.reach(manifest) {
        Ok(reach) if reach < end && !is_alone => Some(format!(
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
    // Listed once more: the pieces took long, and somebody may archive or expire meanwhile.
    let log = match Log::load(repository, size).await {
        Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
            verified.wrong.push(error.to_string());
            return Ok(());
        }
        loaded => loaded?,
    };
    for segment in log.index.segments() {
        verified.segments += 1;
        match repository.segment(&log.index, segment).await {
            Ok(bytes) => verified.read_bytes += bytes.len() as u64,
            Err(error) => verified.wrong.push(error.to_string()),
        }
    }
    let ancestors = log.history.entries().iter().map(|entry| entry.timeline);
    // The first has none.
    let needed = ancestors.filter(|timeline| *timeline != TimelineId::FIRST);
    let timelines: BTreeSet<TimelineId> = log.index.histories().chain(needed).collect();
    for timeline in timelines {
        if let Err(error) = repository.history_file(timeline).await {
            verified.wrong.push(error.to_string());
        }
    }
    if let Some(missing) = short_of_tip(repository, &log).await? {
        verified.wrong.push(missing);
    }
    Ok(())
}

/// The lack of the log that was copied, if its end is not there.
pub(crate) async fn short_of_tip(repository: &Repository, log: &Log) -> Result<Option<String>> {
    let Some(tip) = Tip::load(repository).await? else {
        return Ok(None);
    };
    let (timeline, end) = (log.history.timeline(), log.end());
    let is_there = timeline > tip.timeline || timeline == tip.timeline && end >= tip.end;
    Ok((!is_there).then(|| {
        format!(
            "the log was copied up to {} on timeline {}, and ends at {end} on timeline {}: something was removed",
            tip.end, tip.timeline.0, timeline.0
        )
    }))
}
