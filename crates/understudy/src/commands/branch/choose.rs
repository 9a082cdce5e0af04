//! The image that a branch begins from: the newest one that was complete at the moment that was asked for.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backup::branch::Moment;
use dax::ids::{Epoch, Generation};
use dax::storage::Storage;
use volume::lsn::Lsn;
use volume::past::{Index, Pin};
use volume::seal::load_seals;

use crate::commands::backup::restore;
use crate::exit::{Code, Failure};

/// An image may have commits of the time that it took to seal it.
const SEALING: Duration = Duration::from_secs(10);

/// An image that is kept, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Image {
    generation: Generation,
    at: Option<SystemTime>,
    end: Lsn,
}

/// The moment that was asked for.
enum Asked {
    Now,
    Seal(Generation),
    Lsn(Lsn),
    Time(String, SystemTime),
}

impl Asked {
    fn parse(text: &str) -> anyhow::Result<Asked> {
        if text == "now" {
            return Ok(Asked::Now);
        }
        if let Some(seal) = text.strip_prefix("seal ") {
            let (epoch, number) = seal.trim().split_once('.').unwrap_or_default();
            return match (epoch.parse().map(Epoch), number.parse()) {
                (Ok(epoch), Ok(number)) => Ok(Asked::Seal(Generation { epoch, number })),
                _ => Err(Failure::new(Code::Usage, format!("{text} names no image"))
                    .advise("Write \"seal EPOCH.NUMBER\", as understudy status shows images.")
                    .into()),
            };
        }
        let (target, time) = restore::moment(text)?;
        Ok(match (target, time) {
            (backup::restore::Target::Lsn(lsn), _) => Asked::Lsn(lsn),
            (backup::restore::Target::Time(text), Some(unix_ms)) => {
                let time = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
                Asked::Time(text, time)
            }
            _ => Asked::Now,
        })
    }

    /// True if a branch at this moment may begin from the image.
    fn takes(&self, image: &Image) -> bool {
        match self {
            Asked::Now => true,
            Asked::Seal(generation) => image.generation == *generation,
            Asked::Lsn(lsn) => image.end <= *lsn,
            Asked::Time(_, time) => image.at.is_some_and(|at| at + SEALING <= *time),
        }
    }
}

/// Pins the image, with the log behind it.
pub(super) async fn image(
    storage: &Arc<dyn Storage>,
    branch: &str,
    at: &str,
) -> anyhow::Result<(Pin, Moment)> {
    let asked = Asked::parse(at)?;
    let images = all(storage).await?;
    let Some(chosen) = images.iter().rev().find(|image| asked.takes(image)) else {
        let oldest = images.first();
        let kept = oldest.map_or("no image is kept".to_owned(), |oldest| {
            let at = oldest
                .at
                .map(|at| format!(", of {}", humantime::format_rfc3339_seconds(at)));
            format!(
                "the oldest image that is kept ends at {}{}",
                oldest.end,
                at.unwrap_or_default()
            )
        });
        return Err(Failure::new(Code::Refused, format!("{at} is out of reach: {kept}"))
            .advise("Keep images for longer ([past] in the nodes' configuration), or restore from a backup.")
            .into());
    };
    let pin = Pin::make(
        storage,
        &format!("branch {branch}"),
        Some(chosen.generation),
        true,
    )
    .await?;
    let later = images.iter().find(|image| match &asked {
        Asked::Time(_, time) => image.at.is_some_and(|at| *time + SEALING < at),
        _ => false,
    });
    let moment = match asked {
        Asked::Now => Moment::Now,
        Asked::Seal(_) => Moment::Image,
        Asked::Lsn(lsn) => Moment::Lsn(lsn),
        Asked::Time(text, _) => Moment::Time(text, later.map(|image| image.end)),
    };
    Ok((pin, moment))
}

/// All images that a branch can begin from, oldest first.
async fn all(storage: &Arc<dyn Storage>) -> anyhow::Result<Vec<Image>> {
    let index = Index::load(storage).await?;
    let kept = index
        .images
        .iter()
        .filter(|image| !image.closed)
        .map(|image| Image {
            generation: image.generation,
            at: Some(image.at.into()),
            end: image.end,
        });
    let mut images: Vec<Image> = kept.collect();
    for seal in load_seals(storage).await? {
        if seal.payload.is_empty() || images.iter().any(|one| one.generation == seal.generation) {
            continue;
        }
        images.push(Image {
            generation: seal.generation,
            at: seal.at.map(Into::into),
            end: seal.end,
        });
    }
    images.sort_by_key(|image| image.generation);
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: u32, at_s: u64, end: u64) -> Image {
        Image {
            generation: Generation {
                epoch: Epoch(1),
                number,
            },
            at: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(at_s)),
            end: Lsn(end),
        }
    }

    /// The number of the image that a branch at this moment begins from.
    fn chosen(at: &str) -> Option<u32> {
        let images = [
            image(1, 1000, 0x100),
            image(2, 2000, 0x200),
            image(3, 3000, 0x300),
        ];
        let asked = Asked::parse(at).unwrap();
        let chosen = images.iter().rev().find(|image| asked.takes(image));
        chosen.map(|image| image.generation.number)
    }

    #[test]
    fn a_branch_begins_from_the_newest_image_of_before() {
        for (at, number) in [
            ("now", Some(3)),
            ("seal 1.2", Some(2)),
            ("seal 2.2", None),
            ("0/300", Some(3)),
            ("0/2FF", Some(2)),
            ("0/FF", None),
            ("1970-01-01 00:33:20", Some(1)),
            ("1970-01-01 00:33:30", Some(2)),
            ("1970-01-01 00:16:41", None),
            ("2026-01-01 00:00:00", Some(3)),
        ] {
            assert_eq!(chosen(at), number, "{at}");
        }
        for wrong in ["", "seal", "seal 1", "seal x.y", "yesterday"] {
            assert!(Asked::parse(wrong).is_err(), "{wrong}");
        }
    }
}
