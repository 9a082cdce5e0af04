//! Moments that a repository can be restored to.

use std::time::SystemTime;

use pgdata::timeline::TimelineId;
use serde::{Serialize, Serializer};
use tokio::sync::OnceCell;
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::manifest::{self, ImageId, Manifest};
use crate::repository::Repository;

/// Moments that can be restored: gapless ranges of WAL, and single images.
#[derive(Debug, Clone, Serialize)]
pub struct Reachable {
    /// Spans in which every moment can be restored, oldest first; one, unless log is missing.
    pub spans: Vec<Span>,
    /// Images that can be restored as they are.
    pub alone: Vec<Alone>,
    /// Takeovers: where each timeline but the first began.
    pub takeovers: Vec<Takeover>,
}

/// From the end of an image as far as the log goes without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first image.
    pub image: ImageId,
    /// How many images are in it.
    pub images: usize,
    /// The first position.
    #[serde(serialize_with = "as_text")]
    pub from: Lsn,
    /// The last one.
    #[serde(serialize_with = "as_text")]
    pub to: Lsn,
    /// When the first image was begun, Unix milliseconds: every later time can be restored.
    pub from_unix_ms: u64,
    /// When the last of the log was written to the repository, by its clock, Unix milliseconds.
    pub to_unix_ms: u64,
}

/// An image without the log behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alone {
    /// Image without WAL behind it, which can be restored to its own moment only.
    pub image: ImageId,
    /// When it was begun, Unix milliseconds.
    pub begun_unix_ms: u64,
}

/// The beginning of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Takeover {
    /// The timeline.
    pub timeline: TimelineId,
    /// Where it begins.
    #[serde(serialize_with = "as_text")]
    pub from: Lsn,
}

/// A position as PostgreSQL writes it, and as `backup restore --to` reads it.
fn as_text<S: Serializer>(position: &Lsn, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(position)
}

/// Looks at what there is. Reads manifests and names, nothing else.
///
/// # Errors
/// A manifest or a history is damaged; those of the store.
pub async fn reachable(repository: &Repository) -> Result<Reachable> {
    let alone = manifest::alone(repository).await?;
    let mut found = Reachable {
        spans: Vec::new(),
        alone: Vec::new(),
        takeovers: Vec::new(),
    };
    let listed = OnceCell::new();
    for image in manifest::images(repository).await? {
        let manifest = match Manifest::load(repository, &image).await {
            Err(Error::Damaged { .. } | Error::Missing(_)) => continue,
            loaded => loaded?,
        };
        if alone.contains(&image) {
            let begun_unix_ms = manifest.begun_unix_ms;
            found.alone.push(Alone {
                image,
                begun_unix_ms,
            });
            continue;
        }
        let log = listed
            .get_or_try_init(|| Log::of(repository, &manifest))
            .await?;
        let Ok(to) = log.reach(&manifest) else {
            continue;
        };
        match found.spans.last_mut() {
            Some(span) if span.to >= manifest.end => span.images += 1,
            _ => found.spans.push(Span {
                image,
                images: 1,
                from: manifest.end,
                to,
                from_unix_ms: manifest.begun_unix_ms,
                to_unix_ms: unix_ms(repository.log_written(log, to).await?),
            }),
        }
    }
    if let Some(log) = listed.get().filter(|_| !found.spans.is_empty()) {
        let entries = log.history.entries().iter().skip(1);
        let takeovers = entries.map(|entry| Takeover {
            timeline: entry.timeline,
            from: entry.begin,
        });
        found.takeovers = takeovers.collect();
    }
    Ok(found)
}

fn unix_ms(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
