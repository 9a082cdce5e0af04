//! Which kept images go (pure).
//!
//! Invariant: one that a pin names stays.

use std::collections::BTreeSet;
use std::ops::Range;

use dax::ids::Generation;

use super::{Index, KeptImage, Policy};
use crate::lists::MAX_BLOCKS;
use crate::lsn::Lsn;
use crate::view::Timestamp;

/// Facts that decide besides the index.
pub(crate) struct Thinning<'a> {
    /// Generations that pins name.
    pub pinned: BTreeSet<Generation>,
    /// When the seals were cut that are kept anyway.
    pub sealed: Vec<Timestamp>,
    pub policy: Option<&'a Policy>,
    pub now: Timestamp,
    pub block_bytes: u64,
    /// A zone is about to be full.
    pub short_of_room: bool,
}

impl Thinning<'_> {
    /// Generations of the images that go.
    pub fn of(&self, index: &Index) -> BTreeSet<Generation> {
        let images = &index.images;
        let ours = images.iter().filter(|image| !image.closed);
        let ours: Vec<(Timestamp, Generation)> =
            ours.map(|image| (image.at, image.generation)).collect();
        let kept = self.wanted(&ours);
        let stays = |image: &KeptImage| {
            self.pinned.contains(&image.generation)
                || (!self.short_of_room && kept.contains(&image.generation))
        };
        let (stay, go): (Vec<&KeptImage>, Vec<_>) = images.iter().partition(|image| stays(image));
        let mut go: BTreeSet<Generation> = go.iter().map(|image| image.generation).collect();
        // What is thinned out in the middle leaves its blocks to the next one, about.
        let mut bytes = used_bytes(images, self.block_bytes);
        let space = self.policy.and_then(|policy| policy.space);
        let space = space.unwrap_or(u64::MAX);
        for image in stay {
            if bytes <= space {
                break;
            }
            if !self.pinned.contains(&image.generation) {
                go.insert(image.generation);
                let left: Vec<KeptImage> = images
                    .iter()
                    .filter(|one| !go.contains(&one.generation))
                    .cloned()
                    .collect();
                bytes = used_bytes(&left, self.block_bytes);
            }
        }
        go
    }

    /// Those that the policy wants, of images by time and generation.
    pub fn wanted(&self, images: &[(Timestamp, Generation)]) -> BTreeSet<Generation> {
        let Some(policy) = self.policy else {
            return BTreeSet::new();
        };
        let sealed = self.sealed.iter().map(|at| (*at, None));
        let images = images
            .iter()
            .map(|(at, generation)| (*at, Some(*generation)));
        let mut all: Vec<_> = images.chain(sealed).collect();
        all.sort_unstable();
        let times: Vec<_> = all.iter().map(|(at, _)| (*at).into()).collect();
        let chosen = policy.keep.chosen(&times, self.now.into());
        chosen.into_iter().filter_map(|at| all[at].1).collect()
    }
}

/// Bytes that images take in a zone, about: blocks that each has over the one before are an older version there. If their
/// number is not known there were too many to list.
pub(crate) fn used_bytes(images: &[KeptImage], block_bytes: u64) -> u64 {
    let over = images.iter().skip(1);
    let blocks: u64 = over
        .map(|image| image.blocks.unwrap_or(MAX_BLOCKS as u64))
        .sum();
    let snapshots: u64 = images.iter().map(|image| image.snapshot_bytes).sum();
    blocks * block_bytes + snapshots
}

/// Log that an image needs: what its redo reads; all since, where the policy keeps every image of that time, or nobody has said
/// what the policy is; none, where only pins keep it, which say it themselves.
pub(crate) fn log_of(
    image: &KeptImage,
    policy: Option<&Option<Policy>>,
    now: Timestamp,
) -> Option<Range<Lsn>> {
    let all = match policy {
        None => true,
        Some(None) => return None,
        Some(Some(policy)) => policy.keep.keeps_all_of(image.at.into(), now.into()),
    };
    let end = if all { Lsn(u64::MAX) } else { image.end };
    Some(image.redo..end.max(Lsn(image.redo.0.saturating_add(1))))
}
