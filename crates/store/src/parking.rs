//! Blocks that need no look before an image leaves (pure).
//!
//! Of each block a zone keeps the newest version, and an older one for each image that shows it. An older one is *parked*
//! under one image that needs it, the newest: it stays as long as that image does, and when that leaves it is looked at
//! again. The newest version stays as long as the image that goes furthest has it. Only a takeover from an older image
//! leaves it out, so it is *young* until all images have it. So a retention that moves on costs what it gives back, however
//! many versions are kept.
//!
//! ```text
//!   written ──▶ candidate ── looked at ──▶ every image has its one version: settled
//!                   ▲                 ├──▶ older versions: parked ── the image leaves ──▶ candidate
//!                   │                 ├──▶ newest version: young ── all images have it: settled
//!                   │                 │                        └── left out by a takeover ──▶ candidate
//!                   └─────────────────┴─── above all images: looked at with the next retention
//! ```
//!
//! Invariant: a version that a retention may give back later is a candidate, young, or parked under an image of the last
//! retention; or it is of a region that is.

use std::collections::{BTreeMap, BTreeSet};

use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Lineage, Retention};

/// Blocks of a region: if there are too many blocks to name, what is named is where they are.
const REGION_BLOCKS: u64 = 1024;
/// Blocks that are named, at most: some 40 MiB.
const MAX_NAMED: usize = 1_000_000;

/// Looks between two at the bound, which goes over all images.
const LOOKS_BEFORE_BOUND: u32 = 1024;

/// Blocks that are looked at again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Again {
    pub blocks: BTreeSet<BlockKey>,
    /// The first and the last block of stretches in which others are.
    pub regions: BTreeSet<(BlockKey, BlockKey)>,
}

impl Again {
    fn add_regions(&mut self, regions: BTreeSet<BlockKey>) {
        self.regions.extend(regions.into_iter().map(|first| {
            let last = first.block.0.saturating_add(REGION_BLOCKS - 1);
            (first, BlockKey::new(first.file, last))
        }));
    }
}

/// Versions that are parked under one image.
#[derive(Debug, Default)]
struct Under {
    /// The version of each block.
    named: BTreeMap<BlockKey, Generation>,
    /// Beginnings of regions in which others are.
    regions: BTreeSet<BlockKey>,
    /// How many others were parked there.
    unnamed: u64,
}

impl Under {
    fn name_regions(&mut self) {
        let named = std::mem::take(&mut self.named);
        self.unnamed += named.len() as u64;
        self.regions.extend(named.into_keys().map(region));
    }

    fn versions(&self) -> u64 {
        self.named.len() as u64 + self.unnamed
    }
}

fn region(key: BlockKey) -> BlockKey {
    BlockKey::new(key.file, key.block.0 / REGION_BLOCKS * REGION_BLOCKS)
}

/// Blocks of a volume that need no look for now.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// By image, in the order of their ends.
    images: Vec<(Lineage, Under)>,
    /// By the generation of their newest version.
    young: BTreeMap<Generation, BTreeSet<BlockKey>>,
    /// Of blocks that were young in these generations or earlier ones nobody knows which they are.
    forgotten: Option<Generation>,
    /// The image that went furthest.
    head: Option<Lineage>,
    /// Blocks that are named at most, if it is not [`MAX_NAMED`].
    max_named: Option<usize>,
    /// Looks since the bound was looked at.
    looks: u32,
}

/// Next look at a block (see [`Parked::look`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing before something of what is parked leaves, or it is written again.
    Done,
    /// With the next retention.
    Again,
}

/// The image that goes furthest.
fn head(retention: &Retention) -> Option<&Lineage> {
    retention.images.iter().max_by_key(|image| image.end())
}

impl Parked {
    /// A retention is in force from now on. Returns what has to be looked at again; `None` for everything.
    pub fn retain(&mut self, retention: &Retention) -> Option<Again> {
        let mut again = Again::default();
        let left = |image: &Lineage| !retention.images.contains(image);
        for (_, under) in self.images.extract_if(.., |(image, _)| left(image)) {
            again.blocks.extend(under.named.into_keys());
            again.add_regions(under.regions);
        }
        let furthest = head(retention);
        let is_left_out =
            |generation: Generation| furthest.is_none_or(|head| !head.contains(generation));
        let in_all = |generation: Generation| {
            let mut images = retention.images.iter();
            images.all(|image| image.contains(generation))
        };
        let forked = self.forgotten.is_some_and(|upto| {
            let upto = |head: Option<&Lineage>| head.map(|head| head.truncated(upto));
            upto(self.head.as_ref()) != upto(furthest)
        });
        if self.forgotten.is_some_and(in_all) {
            self.forgotten = None;
        }
        let before = std::mem::replace(&mut self.head, furthest.cloned());
        if let (Some(before), Some(head)) = (before, furthest)
            && head.truncated(before.end()) != before
        {
            // An older version may be the newest now, which is not parked.
            let came = |generation: &Generation| {
                head.contains(*generation) && !before.contains(*generation)
            };
            for (_, under) in &mut self.images {
                let came = under.named.extract_if(.., |_, generation| came(generation));
                again.blocks.extend(came.map(|(key, _)| key));
                // Of these nobody knows which they are.
                again.add_regions(std::mem::take(&mut under.regions));
                under.unnamed = 0;
            }
        }
        let young = std::mem::take(&mut self.young);
        for (generation, keys) in young {
            if is_left_out(generation) {
                // An older version may be the newest now, and is parked no more.
                for (_, under) in &mut self.images {
                    for key in &keys {
                        under.named.remove(key);
                    }
                }
                again.blocks.extend(keys);
            } else if !in_all(generation) {
                self.young.insert(generation, keys);
            }
        }
        if forked {
            *self = Parked {
                head: self.head.take(),
                max_named: self.max_named,
                ..Parked::default()
            };
            return None;
        }
        Some(again)
    }

    /// Everything is about to be looked at.
    pub fn clear(&mut self) {
        self.images.clear();
        self.young.clear();
        self.forgotten = None;
    }

    /// A block was looked at: of its `stored` versions, in any order, these were `dropped`. Notes what it waits for.
    pub fn look(
        &mut self,
        key: BlockKey,
        stored: &[Generation],
        dropped: &[Generation],
        retention: Option<&Retention>,
    ) -> Look {
        let kept = || {
            stored
                .iter()
                .filter(|g| **g != Generation::SINGLE && !dropped.contains(g))
        };
        let furthest = retention.and_then(head);
        let (Some(retention), Some(furthest)) = (retention, furthest) else {
            return match kept().next() {
                Some(_) => Look::Again,
                None => Look::Done,
            };
        };
        self.head.get_or_insert_with(|| furthest.clone());
        let in_all = |generation: Generation| {
            let mut images = retention.images.iter();
            images.all(|image| image.contains(generation))
        };
        // As most are.
        if let ([only], []) = (stored, dropped)
            && in_all(*only)
        {
            return Look::Done;
        }
        let mut sorted: Vec<Generation> = kept().copied().collect();
        sorted.sort_unstable();
        // Images and versions may be many, so neither is gone through for each of the other.
        let mut needing: BTreeMap<Generation, &Lineage> = BTreeMap::new();
        for image in &retention.images {
            if let Some(shown) = image.newest_of(&sorted) {
                let last = needing.entry(shown).or_insert(image);
                if last.end() < image.end() {
                    *last = image;
                }
            }
        }
        let newest = furthest.newest_of(&sorted);
        for generation in stored.iter().filter(|g| Some(**g) != newest) {
            self.forget(key, *generation, dropped.contains(generation));
        }
        let mut look = Look::Done;
        for generation in sorted {
            if Some(generation) == newest {
                if !in_all(generation) {
                    self.young.entry(generation).or_default().insert(key);
                }
                continue;
            }
            match needing.get(&generation) {
                Some(image) => self.park(image, key, generation),
                None => look = Look::Again,
            }
        }
        self.bound();
        look
    }

    fn park(&mut self, image: &Lineage, key: BlockKey, generation: Generation) {
        let end = image.end();
        let first = self.images.partition_point(|(one, _)| one.end() < end);
        let same = self.images[first..].iter();
        let mut same = same.take_while(|(one, _)| one.end() == end);
        let at = match same.position(|(one, _)| one == image) {
            Some(at) => first + at,
            None => {
                let new = (image.clone(), Under::default());
                self.images.insert(first, new);
                first
            }
        };
        let under = &mut self.images[at].1;
        if under.regions.is_empty() {
            under.named.insert(key, generation);
        } else {
            under.unnamed += 1;
            under.regions.insert(region(key));
        }
    }

    /// A version is not the newest of its block, or is gone.
    fn forget(&mut self, key: BlockKey, generation: Generation, is_gone: bool) {
        if let Some(keys) = self.young.get_mut(&generation) {
            keys.remove(&key);
            if keys.is_empty() {
                self.young.remove(&generation);
            }
        }
        if !is_gone {
            return;
        }
        let holders = self.images.iter_mut();
        for (_, under) in holders.filter(|(image, _)| image.contains(generation)) {
            if under.named.get(&key) == Some(&generation) {
                under.named.remove(&key);
            }
        }
    }

    /// A file was removed.
    pub fn forget_file(&mut self, file: FileId) {
        let all = BlockKey::new(file, 0)..=BlockKey::new(file, u64::MAX);
        for (_, under) in &mut self.images {
            under
                .named
                .extract_if(all.clone(), |_, _| true)
                .for_each(drop);
        }
        for keys in self.young.values_mut() {
            keys.extract_if(all.clone(), |_| true).for_each(drop);
        }
        self.young.retain(|_, keys| !keys.is_empty());
    }

    fn bound(&mut self) {
        self.looks += 1;
        let max = self.max_named.unwrap_or(MAX_NAMED);
        if self.looks < LOOKS_BEFORE_BOUND.min(max as u32) {
            return;
        }
        self.looks = 0;
        let parked = || self.images.iter().map(|(_, under)| under.named.len());
        let young: usize = self.young.values().map(BTreeSet::len).sum();
        if parked().sum::<usize>() + young <= max {
            return;
        }
        if young > max / 2 {
            let oldest = self.young.pop_first().map(|(generation, _)| generation);
            self.forgotten = self.forgotten.max(oldest);
            return;
        }
        let largest = self
            .images
            .iter_mut()
            .max_by_key(|(_, under)| under.named.len());
        largest
            .into_iter()
            .for_each(|(_, under)| under.name_regions());
    }

    /// Images under which versions are parked, and how many: so many are given back when it leaves, if those before it that need
    /// them have left.
    pub fn images(&self) -> impl Iterator<Item = (&Lineage, u64)> {
        self.images
            .iter()
            .map(|(image, under)| (image, under.versions()))
    }
}

#[cfg(test)]
mod tests;
