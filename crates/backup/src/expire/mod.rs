//! Removing what need not be kept any more: images by rules, the log that none of the others needs, and pieces that no image has.
//!
//! ```text
//! image ── no rule keeps it ──▶ gone        piece ── no image has it ──▶ noted ── a day later, still none has it ──▶ gone
//! ```
//!
//! All ages are by the store's clock. A restore that has begun has a day: until then its pieces are there.
//!
//! Invariants: the newest image that can be restored stays, and so does the log from the newest image that is older than
//! `log_for`; a piece that an image has stays, whoever copies at the same time (`repository::work`); where an image cannot be
//! read, no piece is removed.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use pgdata::segment::SegmentName;
use tokio::sync::OnceCell;
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::manifest::{self, ImageId, Manifest};
use crate::repository::work::Work;
use crate::repository::{ChunkId, Repository, random_name};
pub use volume::past::Keep;

/// Pieces that are removed between two looks at whether the work counts as gone.
const BATCH: usize = 1000;
const NOTES: &str = "expired";

/// Rules of what stays.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Rules for the images that stay.
    pub keep: Keep,
    /// For how long any moment can be restored; older images can be restored as they are.
    pub log_for: Duration,
    /// How long pieces stay that no image has, for restores that have begun.
    pub grace: Duration,
}

/// The result of an expiry.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Expired {
    /// Images that are gone.
    pub images: Vec<ImageId>,
    /// Segments of the log that are gone.
    pub segments: usize,
    /// Pieces that are gone.
    pub chunks: usize,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// Pieces that no image has, and that go when the grace is over.
    pub noted: usize,
    /// True if somebody copies: nothing was done, until the next time.
    pub is_copying: bool,
}

/// Removes what `policy` does not keep.
///
/// # Errors
/// An image that stays is damaged: nothing is removed then. Those of the store: what is left is removed the next time.
pub async fn expire(repository: &Repository, policy: &Policy) -> Result<Expired> {
    let mut expired = Expired::default();
    let Some(work) = Work::expiry(repository).await? else {
        expired.is_copying = true;
        return Ok(expired);
    };
    let done = expire_under(&work, repository, policy, &mut expired).await;
    work.end().await?;
    done.map(|()| expired)
}

async fn expire_under(
    work: &Work,
    repository: &Repository,
    policy: &Policy,
    expired: &mut Expired,
) -> Result<()> {
    let images = manifest::dated(repository).await?;
    let now = work.now().await?;
    let listed = OnceCell::new();
    let mut usable = Vec::new();
    let mut stay = Stay::default();
    for (image, time) in images {
        let manifest = Manifest::load(repository, &image).await?;
        let log = listed
            .get_or_try_init(|| Log::of(repository, &manifest))
            .await?;
        match log.reach(&manifest) {
            Ok(_) => usable.push((image, time, manifest)),
            // It is of no use now, and no reason to let another one go.
            Err(_) => stay.note(image, &manifest, false),
        }
    }
    let times: Vec<SystemTime> = usable.iter().map(|(_, time, _)| *time).collect();
    let kept = policy.keep.chosen(&times, now);
    let mut dropped = Vec::new();
    for (number, (image, time, manifest)) in usable.into_iter().enumerate() {
        if !kept.contains(&number) {
            dropped.push(image);
            continue;
        }
        let age = now.duration_since(time).unwrap_or_default();
        stay.note(image, &manifest, age > policy.log_for);
    }
    stay.images
        .sort_by(|one, other| one.image.cmp(&other.image));
    for image in dropped {
        manifest::remove(repository, &image).await?;
        expired.images.push(image);
    }
    if let Some(log) = listed.get() {
        expire_log(repository, log, &stay, expired).await?;
    }
    expire_chunks(repository, policy, work, &stay.chunks, expired).await
}

/// Needs of images that stay.
#[derive(Default)]
struct Stay {
    images: Vec<Needs>,
    chunks: HashSet<ChunkId>,
}

struct Needs {
    image: ImageId,
    /// It is older than the log that is kept.
    is_older: bool,
    redo: Lsn,
    end: Lsn,
}

impl Stay {
    fn note(&mut self, image: ImageId, manifest: &Manifest, is_older: bool) {
        self.chunks.extend(manifest.chunks());
        self.images.push(Needs {
            image,
            is_older,
            redo: manifest.redo,
            end: manifest.end,
        });
    }

    /// Images before the anchor, and from it on: the newest one that is older than the log that is kept, or the first.
    fn at_anchor(&self) -> (&[Needs], &[Needs]) {
        let newest = self.images.iter().rposition(|image| image.is_older);
        self.images.split_at(newest.unwrap_or(0))
    }
}

/// Removes segments that no image needs: neither the anchor and those behind it, from which on all stays, nor an older one up to
/// its own end.
async fn expire_log(
    repository: &Repository,
    log: &Log,
    stay: &Stay,
    expired: &mut Expired,
) -> Result<()> {
    let Log { index, history } = log;
    let (older, from_anchor) = stay.at_anchor();
    let Some(log_from) = from_anchor.iter().map(|image| image.redo).min() else {
        return Ok(());
    };
    let mut needed: HashSet<SegmentName> = HashSet::new();
    for image in older {
        needed.extend(index.files(history, image.redo, image.end));
        manifest::set_alone(repository, &image.image).await?;
    }
    let is_needless = |segment: &SegmentName| {
        segment.range(index.segment_size()).end <= log_from && !needed.contains(segment)
    };
    for segment in index.segments().filter(is_needless) {
        repository.remove_segment(index, segment).await?;
        expired.segments += 1;
    }
    Ok(())
}

async fn expire_chunks(
    repository: &Repository,
    policy: &Policy,
    work: &Work,
    used: &HashSet<ChunkId>,
    expired: &mut Expired,
) -> Result<()> {
    let now = work.now().await?;
    let mut unused = repository.chunks().await?;
    unused.retain(|id, _| !used.contains(id));
    for note in repository.objects(NOTES).await? {
        let name = format!("{NOTES}/{}", note.name);
        let noted: Vec<ChunkId> = match repository.value(&name).await {
            // What was in a note that cannot be read is noted once more.
            Err(Error::Damaged { .. }) => Vec::new(),
            read => read?,
        };
        let still = noted.into_iter().filter_map(|id| unused.remove_entry(&id));
        let still: Vec<(ChunkId, u64)> = still.collect();
        let age = now.duration_since(note.written).unwrap_or_default();
        if age < policy.grace && !still.is_empty() {
            expired.noted += still.len();
            continue;
        }
        for some in still.chunks(BATCH) {
            work.now().await?;
            let names = some.iter().map(|(id, _)| id.name()).collect();
            repository.remove_all(names).await?;
            expired.chunks += some.len();
            expired.bytes += some.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        repository.remove(&name).await?;
    }
    if unused.is_empty() {
        return Ok(());
    }
    expired.noted += unused.len();
    let unused: Vec<ChunkId> = unused.into_keys().collect();
    let name = format!("{NOTES}/{}", random_name()?);
    repository.put_value(&name, &unused).await?;
    Ok(())
}
