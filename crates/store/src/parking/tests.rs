use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

/// A block that every checkpoint writes has a version for each image: a look went through all versions for each image of
/// each version, so a few such blocks kept a zone busy from one seal to the next.
// hazard: PAST-5
#[test]
fn a_block_with_a_version_for_each_of_many_images_is_looked_at_in_no_time() {
    let many: Vec<u32> = (1..=1000).collect();
    let of = retention(&many);
    let mut parked = Parked::default();
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(look(&mut parked, 1, &many, &of), Look::Done);
    }
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    let counts: Vec<u64> = parked.images().map(|(_, versions)| versions).collect();
    assert_eq!(counts, [1; 999]);
}

/// A takeover from an image on a dead branch, after one that had left that out: what is the newest version now was parked under
/// that image, and was not looked at where its block was not known by name. The older one stayed for good.
// hazard: PAST-6
#[test]
fn a_takeover_from_a_dead_branch_has_looked_at_what_was_parked_there() {
    for max in [1, 100] {
        let mut parked = Parked {
            max_named: Some(max),
            ..Parked::default()
        };
        let dead = Lineage::up_to(g(1, 1));
        let line = |base: &Lineage, open| base.clone().continued(open).truncated(open);
        let second = line(&Lineage::up_to(g(1, 0)), g(2, 0));
        let third = line(&dead, g(3, 0));
        let of = |images: &[&Lineage]| Retention {
            images: images.iter().map(|image| (*image).clone()).collect(),
        };
        let stored = [g(1, 0), g(1, 1)];
        let before = of(&[&dead, &second]);
        for block in 0..4 {
            parked.look(key(block), &stored, &[], Some(&before));
        }
        let after = of(&[&dead, &second, &third]);
        let again = parked.retain(&after).unwrap();
        let mut regions = again.regions.iter();
        let within = regions.any(|(first, last)| (first..=last).contains(&&key(0)));
        assert!(within || again.blocks.contains(&key(0)), "{max}");
        parked.look(key(0), &stored, &[], Some(&after));
        let again = parked.retain(&of(&[&dead, &third])).unwrap();
        let mut regions = again.regions.iter();
        let within = regions.any(|(first, last)| (first..=last).contains(&&key(0)));
        assert!(within || again.blocks.contains(&key(0)), "{max}");
    }
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
    /// Another epoch goes on with the n-th last seal, or with what somebody stands on for longer.
    TakeOver(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0u64..6).prop_map(Step::Write),
        4 => Just(Step::Seal),
        1 => Just(Step::Pin),
        1 => (0usize..4).prop_map(Step::Drop),
        1 => (0usize..4).prop_map(Step::TakeOver),
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
                    let mut stood_on = seals.iter().rev().chain(pins.iter().rev());
                    let base = stood_on.nth(back).unwrap_or(&seals[0]).clone();
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
