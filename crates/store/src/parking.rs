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
    pub regions: Vec<(BlockKey, BlockKey)>,
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
    /// By image.
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
            let regions = under.regions.into_iter();
            again.regions.extend(regions.map(|first| {
                let last = first.block.0.saturating_add(REGION_BLOCKS - 1);
                (first, BlockKey::new(first.file, last))
            }));
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
        let newest_of = |image: &Lineage| {
            let shown = kept().filter(|g| image.contains(**g));
            shown.max().copied()
        };
        self.head.get_or_insert_with(|| furthest.clone());
        let newest = newest_of(furthest);
        for generation in stored.iter().filter(|g| Some(**g) != newest) {
            self.forget(key, *generation, dropped.contains(generation));
        }
        let mut look = Look::Done;
        for generation in kept() {
            if Some(*generation) == newest {
                if !retention
                    .images
                    .iter()
                    .all(|image| image.contains(*generation))
                {
                    self.young.entry(*generation).or_default().insert(key);
                }
                continue;
            }
            let needing = retention.images.iter();
            let needing = needing.filter(|image| newest_of(image) == Some(*generation));
            match needing.max_by_key(|image| image.end()) {
                Some(image) => self.park(image, key, *generation),
                None => look = Look::Again,
            }
        }
        self.bound();
        look
    }

    fn park(&mut self, image: &Lineage, key: BlockKey, generation: Generation) {
        let at = match self.images.iter().position(|(one, _)| one == image) {
            Some(at) => at,
            None => {
                self.images.push((image.clone(), Under::default()));
                self.images.len() - 1
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
mod tests {
    use std::collections::BTreeMap;

    use dax::ids::Epoch;
    use dax::replica;
    use proptest::prelude::*;

    use super::*;

    fn g(epoch: u32, number: u32) -> Generation {
        let epoch = Epoch(epoch);
        Generation { epoch, number }
    }

    fn key(block: u64) -> BlockKey {
        BlockKey::new(FileId(9), block)
    }

    fn retention(ends: &[u32]) -> Retention {
        let images = ends.iter().map(|end| Lineage::up_to(g(1, *end)));
        Retention {
            images: images.collect(),
        }
    }

    fn look(parked: &mut Parked, block: u64, stored: &[u32], of: &Retention) -> Look {
        let stored: Vec<Generation> = stored.iter().map(|number| g(1, *number)).collect();
        let dropped = replica::prune(&stored, of);
        parked.look(key(block), &stored, &dropped, Some(of))
    }

    /// A seal made every block with two versions a candidate, and above 500,000 of them it scanned the volume. One pin was enough.
    // hazard: PAST-5
    #[test]
    fn a_block_with_two_versions_is_looked_at_when_the_image_leaves_that_needs_the_older_one() {
        let mut parked = Parked::default();
        let first = retention(&[2, 5, 6]);
        assert_eq!(look(&mut parked, 1, &[1, 4], &first), Look::Done);
        assert_eq!(look(&mut parked, 2, &[1], &first), Look::Done);
        assert_eq!(
            look(&mut parked, 3, &[1, 7], &first),
            Look::Again,
            "not sealed yet"
        );
        assert_eq!(look(&mut parked, 4, &[6], &first), Look::Done);
        let counts: Vec<u64> = parked.images().map(|(_, versions)| versions).collect();
        assert_eq!(counts, [1], "the older version of block 1");
        for last in 7..100 {
            let again = parked.retain(&retention(&[2, last - 1, last]));
            assert_eq!(again, Some(Again::default()), "{last}");
        }
        let again = parked.retain(&retention(&[98, 99])).unwrap();
        assert_eq!(again.blocks, [key(1)].into());
    }

    #[test]
    fn a_takeover_from_an_older_image_has_what_it_left_out_looked_at() {
        let mut parked = Parked::default();
        let before = retention(&[3, 5]);
        assert_eq!(look(&mut parked, 1, &[4], &before), Look::Done);
        assert_eq!(look(&mut parked, 2, &[2], &before), Look::Done);
        let mut after = before.clone();
        let line = Lineage::up_to(g(1, 3)).continued(g(2, 0));
        after.images.push(line.truncated(g(2, 0)));
        assert_eq!(parked.retain(&after).unwrap().blocks, [key(1)].into());
        assert_eq!(
            look(&mut parked, 1, &[4], &after),
            Look::Done,
            "the old seal has it"
        );
        after.images.remove(1);
        assert_eq!(parked.retain(&after).unwrap().blocks, [key(1)].into());
    }

    #[test]
    fn what_is_removed_is_not_parked() {
        let mut parked = Parked::default();
        let of = retention(&[2, 5]);
        look(&mut parked, 1, &[1, 4], &of);
        parked.forget_file(FileId(9));
        assert_eq!(
            parked.images().map(|(_, versions)| versions).sum::<u64>(),
            0
        );
        assert_eq!(parked.retain(&retention(&[5])), Some(Again::default()));
    }

    /// An event of a zone.
    #[derive(Debug, Clone)]
    enum Step {
        Write(u64),
        Seal,
        Pin,
        /// The n-th of the images but the last two leaves.
        Drop(usize),
        /// Another epoch goes on with the n-th last seal.
        TakeOver(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0u64..6).prop_map(Step::Write),
            4 => Just(Step::Seal),
            1 => Just(Step::Pin),
            1 => (0usize..4).prop_map(Step::Drop),
            1 => (0usize..2).prop_map(Step::TakeOver),
        ];
        prop::collection::vec(step, 1..80)
    }

    proptest! {
        /// After each retention a zone that looks at candidates and at what is parked has what one has that looks at everything;
        /// and what is parked under the oldest image is what it gives back.
        // hazard: PAST-5, PAST-6
        #[test]
        fn parking_gives_back_what_a_scan_gives_back(steps in steps(), max in prop_oneof![Just(3usize), Just(1000)]) {
            let mut parked = Parked { max_named: Some(max), ..Parked::default() };
            let mut scanned: BTreeMap<u64, Vec<Generation>> = BTreeMap::new();
            let mut stored = scanned.clone();
            let mut candidates: BTreeSet<BlockKey> = BTreeSet::new();
            let mut line = Lineage::up_to(Generation::MAX);
            let mut open = g(1, 0);
            let (mut seals, mut pins) = (vec![line.truncated(g(0, 1))], Vec::new());
            for step in steps {
                let mut given_back = None;
                match step {
                    Step::Write(block) => {
                        for blocks in [&mut scanned, &mut stored] {
                            let versions = blocks.entry(block).or_default();
                            versions.retain(|one| *one != open);
                            versions.push(open);
                        }
                        candidates.insert(key(block));
                        continue;
                    }
                    Step::Seal => {
                        seals.push(line.truncated(open));
                        open = open.next();
                        seals.drain(..seals.len().saturating_sub(2));
                    }
                    Step::Pin => pins.extend(seals.last().cloned()),
                    Step::Drop(at) if at < pins.len() => {
                        let gone: Lineage = pins.remove(at);
                        let mut images = seals.iter().chain(&pins);
                        let oldest = images.all(|image| image.end() > gone.end());
                        let versions = parked.images().find(|(image, _)| **image == gone);
                        given_back = versions.filter(|_| oldest && max > 3).map(|(_, versions)| versions);
                    }
                    Step::Drop(_) => continue,
                    Step::TakeOver(back) => {
                        let base = seals[seals.len().saturating_sub(1 + back)].clone();
                        open = g(open.epoch.0 + 1, 0);
                        line = base.continued(open);
                        seals.push(line.truncated(open));
                        seals.drain(..seals.len().saturating_sub(2));
                        open = open.next();
                    }
                }
                let end = seals.last().map(Lineage::end).unwrap();
                let mut images = vec![line.truncated(end)];
                images.extend(seals.iter().chain(&pins).cloned());
                let of = Retention { images };
                for versions in scanned.values_mut() {
                    let dropped = replica::prune(versions, &of);
                    versions.retain(|one| !dropped.contains(one));
                }
                let mut looked = std::mem::take(&mut candidates);
                match parked.retain(&of) {
                    None => looked = stored.keys().map(|block| key(*block)).collect(),
                    Some(again) => {
                        looked.extend(again.blocks);
                        let within = |k: &BlockKey| again.regions.iter().any(|(a, b)| a <= k && k <= b);
                        looked.extend(stored.keys().map(|block| key(*block)).filter(within));
                    }
                }
                let count = |blocks: &BTreeMap<u64, Vec<Generation>>| blocks.values().map(|v| v.len() as u64).sum::<u64>();
                let before = count(&stored);
                for at in looked {
                    let versions = stored.entry(at.block.0).or_default();
                    let dropped = replica::prune(versions, &of);
                    if parked.look(at, versions, &dropped, Some(&of)) == Look::Again {
                        candidates.insert(at);
                    }
                    versions.retain(|one| !dropped.contains(one));
                }
                prop_assert_eq!(&stored, &scanned);
                if let Some(versions) = given_back {
                    prop_assert_eq!(before - count(&stored), versions);
                }
            }
        }
    }
}
