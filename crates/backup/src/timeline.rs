//! Moments that a repository can be restored to.

use std::time::SystemTime;

use pgdata::timeline::TimelineId;
use serde::Serialize;
use volume::lsn::Lsn;

use crate::error::Result;
use crate::manifest::{self, ImageId, Manifest};
use crate::repository::Repository;

/// See the module.
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
    pub from: Lsn,
    /// The last one.
    pub to: Lsn,
    /// When the first image was begun, Unix milliseconds: every later time can be restored.
    pub from_unix_ms: u64,
    /// When the last of the log was written to the repository, by its clock, Unix milliseconds.
    pub to_unix_ms: u64,
}

/// An image without the log behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alone {
    /// The image.
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
    pub from: Lsn,
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
    for image in manifest::images(repository).await? {
        let manifest = Manifest::load(repository, &image).await?;
        if alone.contains(&image) {
            let begun_unix_ms = manifest.begun_unix_ms;
            found.alone.push(Alone {
                image,
                begun_unix_ms,
            });
            continue;
        }
        let index = repository.log(manifest.segment_size()?).await?;
        let history = repository.history(&index).await?;
        let to = index.reaches(&history, manifest.redo);
        if to < manifest.end {
            continue;
        }
        match found.spans.last_mut() {
            Some(span) if span.to >= manifest.end => span.images += 1,
            _ => found.spans.push(Span {
                image,
                images: 1,
                from: manifest.end,
                to,
                from_unix_ms: manifest.begun_unix_ms,
                to_unix_ms: unix_ms(repository.log_written(&index, &history, to).await?),
            }),
        }
        let entries = history.entries().iter().skip(1);
        found.takeovers = entries
            .map(|entry| Takeover {
                timeline: entry.timeline,
                from: entry.begin,
            })
            .collect();
    }
    Ok(found)
}

fn unix_ms(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
