//! Removing what need not be kept any more: images by rules, the log that none of the others needs, and pieces that no image has.
//!
//! ```text
//! image ── no rule keeps it ──▶ gone        piece ── no image has it ──▶ noted ── a day later, still none has it ──▶ gone
//! ```
//!
//! All ages are by the store's clock. A restore that has begun has a day: until then its pieces are there.
//!
//! Invariants: the newest image stays, and so does the log from the newest image that is older than `log_for`; a piece that an
//! image has stays, whoever copies at the same time (`repository::work`); where an image cannot be read, no piece is removed.

mod policy;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use pgdata::segment::SegmentName;
use volume::lsn::Lsn;

pub use self::policy::Keep;
use crate::error::{Error, Result};
use crate::manifest::{self, ImageId, Manifest};
use crate::repository::work::Work;
use crate::repository::{ChunkId, Repository};

/// Pieces that are removed between two looks at whether the work counts as gone.
const BATCH: usize = 1000;
const NOTES: &str = "expired";

/// Rules of what stays.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Which images.
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
    /// Their bytes.
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
    let times: Vec<SystemTime> = images.iter().map(|(_, time)| *time).collect();
    let kept = policy.keep.chosen(&times, now);
    let mut stay = Stay::default();
    let mut dropped = Vec::new();
    for (number, (image, time)) in images.into_iter().enumerate() {
        if !kept.contains(&number) {
            dropped.push(image);
            continue;
        }
        let manifest = Manifest::load(repository, &image).await?;
        let age = now.duration_since(time).unwrap_or_default();
        stay.note(image, &manifest, age > policy.log_for);
    }
    for image in dropped {
        manifest::remove(repository, &image).await?;
        expired.images.push(image);
    }
    expire_log(repository, &stay, expired).await?;
    expire_chunks(repository, policy, work, &stay.chunks, expired).await
}

/// Needs of images that stay.
#[derive(Default)]
struct Stay {
    images: Vec<Needs>,
    chunks: HashSet<ChunkId>,
    /// Which of `images` is the newest one that is older than the log that is kept; the first if none is.
    anchor: usize,
}

struct Needs {
    image: ImageId,
    redo: Lsn,
    end: Lsn,
}

impl Stay {
    fn note(&mut self, image: ImageId, manifest: &Manifest, is_older: bool) {
        self.chunks.extend(manifest.chunks());
        if is_older {
            self.anchor = self.images.len();
        }
        self.images.push(Needs {
            image,
            redo: manifest.redo,
            end: manifest.end,
        });
    }
}

/// Removes segments that no image needs: neither the anchor and those behind it, from which on all stays, nor an older one up to
/// its own end.
async fn expire_log(repository: &Repository, stay: &Stay, expired: &mut Expired) -> Result<()> {
    let Some(anchor) = stay.images.get(stay.anchor) else {
        return Ok(());
    };
    let manifest = Manifest::load(repository, &anchor.image).await?;
    let size = manifest.segment_size()?;
    let index = repository.log(size).await?;
    let history = repository.history(&index).await?;
    let mut needed: HashSet<SegmentName> = HashSet::new();
    for older in &stay.images[..stay.anchor] {
        needed.extend(index.files(&history, older.redo, older.end));
        manifest::set_alone(repository, &older.image).await?;
    }
    let is_needless =
        |segment: &SegmentName| segment.range(size).end <= anchor.redo && !needed.contains(segment);
    for segment in index.segments().filter(is_needless) {
        repository.remove_segment(&index, segment).await?;
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
    let mut unused: HashSet<ChunkId> = HashSet::new();
    let mut bytes = std::collections::HashMap::new();
    for object in repository.objects("chunks").await? {
        let id = object.name.split_once('/').map(|(_, digits)| digits);
        if let Some(Ok(id)) = id.map(|digits| ChunkId::try_from(digits.to_owned()))
            && !used.contains(&id)
        {
            bytes.insert(id, object.bytes);
            unused.insert(id);
        }
    }
    for note in repository.objects(NOTES).await? {
        let name = format!("{NOTES}/{}", note.name);
        let noted: Vec<ChunkId> = match repository.object(&name).await {
            Ok(json) => {
                serde_json::from_slice(&json).map_err(|error| Error::damaged(&name, error))?
            }
            // What was in a note that cannot be read is noted once more.
            Err(Error::Damaged { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let still: Vec<ChunkId> = noted.into_iter().filter(|id| unused.remove(id)).collect();
        let age = now.duration_since(note.written).unwrap_or_default();
        if age < policy.grace && !still.is_empty() {
            expired.noted += still.len();
            continue;
        }
        for some in still.chunks(BATCH) {
            work.now().await?;
            let names = some.iter().map(|id| id.name()).collect();
            repository.remove_all(names).await?;
            expired.chunks += some.len();
            expired.bytes += some.iter().filter_map(|id| bytes.get(id)).sum::<u64>();
        }
        repository.remove(&name).await?;
    }
    if unused.is_empty() {
        return Ok(());
    }
    expired.noted += unused.len();
    let unused: Vec<ChunkId> = unused.into_iter().collect();
    let json = serde_json::to_vec(&unused).expect("a list of texts");
    let id = dax::credentials::Nonce::random()?;
    let name = format!("{NOTES}/{}", hex::encode(&id.0[..8]));
    repository.put_object(&name, json.into()).await?;
    Ok(())
}
