//! Histories of copies and expiries over a real directory, held against what must stay.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use dax::ids::{Epoch, Generation};
use pgdata::segment::SegmentSize;
use pgdata::timeline::TimelineId;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::verify::{repair, verify};

const DAY: Duration = Duration::from_secs(24 * 3600);
const SIZE: SegmentSize = SegmentSize::SMALL;

/// A repository, and a clock that the test moves.
struct World {
    directory: TempDir,
    repository: Repository,
    images: u64,
}

impl World {
    async fn new() -> World {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        let repository = Repository::open(place, None).unwrap();
        World {
            directory,
            repository,
            images: 0,
        }
    }

    /// Everything that is there has been there for so much longer.
    fn pass(&self, time: Duration) {
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let file = File::open(&path).unwrap();
                let then = file.metadata().unwrap().modified().unwrap() - time;
                file.set_modified(then).unwrap();
            }
        }
    }

    async fn put(&self, contents: u8) -> ChunkId {
        let contents = Bytes::from(vec![contents; 100]);
        let id = self.repository.chunk_id(contents.clone()).await.unwrap();
        self.repository.put_chunk(id, contents).await.unwrap();
        id
    }

    /// An image with these pieces, whose log is the next segment, and which needs that one from its middle on.
    async fn copy(&mut self, pieces: &[u8]) -> ImageId {
        self.images += 1;
        let mut chunks = Vec::new();
        for piece in pieces {
            chunks.push(Some(self.put(*piece).await));
        }
        let mut index = self.repository.log(SIZE).await.unwrap();
        let segment = SegmentName {
            timeline: TimelineId(1),
            number: self.images,
        };
        let log = Bytes::from(vec![1; SIZE.bytes() as usize]);
        let written = self.repository.put_log(&mut index, segment, 0, log);
        written.await.unwrap();
        let start = segment.range(SIZE).start;
        let manifest = Manifest {
            lineage: dax::storage::Lineage::up_to(Generation::MAX),
            generation: Generation {
                epoch: Epoch(1),
                number: u32::try_from(self.images).unwrap(),
            },
            begun_unix_ms: self.images,
            server: "15".to_owned(),
            redo: Lsn(start.0 + 1000),
            end: Lsn(start.0 + 2000),
            timeline: TimelineId(1),
            segment_bytes: SIZE.bytes() as u32,
            control: Vec::new(),
            directories: Vec::new(),
            files: vec![manifest::File {
                id: None,
                cuts: Vec::new(),
                path: "base/1/1".to_owned(),
                mode: 0o600,
                size_bytes: 0,
                chunks,
            }],
            read_bytes: 0,
            written_bytes: 0,
        };
        manifest.put(&self.repository).await.unwrap();
        manifest.id()
    }

    async fn expire(&self, policy: &Policy) -> Expired {
        expire(&self.repository, policy).await.unwrap()
    }

    async fn is_whole(&self) {
        let verified = verify(&self.repository, |_, _| ()).await.unwrap();
        assert_eq!(verified.wrong, Vec::<String>::new());
    }

    async fn images(&self) -> usize {
        manifest::images(&self.repository).await.unwrap().len()
    }

    async fn chunks(&self) -> usize {
        self.repository.names("chunks").await.unwrap().len()
    }
}

fn policy(keep: &str, log_days: u32) -> Policy {
    Policy {
        keep: keep.parse().unwrap(),
        log_for: log_days * DAY,
        grace: DAY,
    }
}

// hazard: BACKUP-5
#[tokio::test]
async fn pieces_go_a_day_after_the_last_image_that_had_them() {
    let mut world = World::new().await;
    let policy = policy("all for 2d", 1);
    world.copy(&[1, 2]).await;
    world.pass(3 * DAY);
    world.copy(&[2, 3]).await;
    let expired = world.expire(&policy).await;
    assert_eq!(
        (expired.images.len(), expired.chunks, expired.noted),
        (1, 0, 1)
    );
    assert_eq!(expired.segments, 1);
    let again = world.expire(&policy).await;
    assert_eq!((again.chunks, again.noted), (0, 1), "it is noted once");
    world.pass(DAY);
    let later = world.expire(&policy).await;
    assert_eq!((later.chunks, later.noted), (1, 0));
    assert!(later.bytes > 0);
    assert_eq!(world.chunks().await, 2);
    world.is_whole().await;
}

#[tokio::test]
async fn a_piece_that_an_image_has_again_stays() {
    let mut world = World::new().await;
    let policy = policy("all for 2d", 1);
    world.copy(&[1]).await;
    world.pass(3 * DAY);
    world.copy(&[2]).await;
    world.expire(&policy).await;
    world.copy(&[1, 2]).await;
    world.pass(DAY);
    assert_eq!(world.expire(&policy).await.chunks, 0);
    world.is_whole().await;
}

// hazard: BACKUP-10
#[tokio::test]
async fn an_image_older_than_the_log_can_be_restored_as_it_is() {
    let mut world = World::new().await;
    for _ in 0..4 {
        world.copy(&[1]).await;
        world.pass(DAY);
    }
    // Ages are 4, 3, 2 and 1 days: moments of the last one and a half need the image of two days ago.
    let mut some = policy("all for 9d", 0);
    some.log_for = DAY + DAY / 2;
    let expired = world.expire(&some).await;
    assert_eq!((expired.images.len(), expired.segments), (0, 0));
    let alone = manifest::alone(&world.repository).await.unwrap();
    assert_eq!(alone.len(), 2, "whatever they need themselves stays");
    world.is_whole().await;
    let found = crate::timeline::reachable(&world.repository).await.unwrap();
    assert_eq!((found.spans.len(), found.spans[0].images), (1, 2));
    assert_eq!(found.alone.len(), 2);
}

#[tokio::test]
async fn running_copies_are_not_disturbed() {
    let mut world = World::new().await;
    world.copy(&[1]).await;
    world.pass(9 * DAY);
    world.copy(&[2]).await;
    let work = Work::copy(&world.repository).await.unwrap();
    let expired = world.expire(&policy("all for 1d", 1)).await;
    assert!(expired.is_copying);
    assert_eq!(world.images().await, 2);
    work.end().await.unwrap();
    assert_eq!(world.expire(&policy("all for 1d", 1)).await.images.len(), 1);
}

#[tokio::test]
async fn nothing_goes_while_an_image_that_stays_is_damaged() {
    let mut world = World::new().await;
    world.copy(&[1]).await;
    world.pass(9 * DAY);
    let image = world.copy(&[2]).await;
    let file = world
        .directory
        .path()
        .join(format!("images/{image}/manifest"));
    std::fs::write(file, b"nothing").unwrap();
    let error = expire(&world.repository, &policy("all for 1d", 1)).await;
    assert!(matches!(error.unwrap_err(), Error::Damaged { .. }));
    assert_eq!((world.images().await, world.chunks().await), (2, 2));
    let works = world.repository.names("works").await.unwrap();
    assert!(works.is_empty(), "it does not count as being at work");
}

impl World {
    /// All that is there of an image's log is gone.
    fn lose_log(&self, image: u64) {
        let segment = SegmentName {
            timeline: TimelineId(1),
            number: image,
        };
        let log = self.directory.path().join("log");
        std::fs::remove_dir_all(log.join(segment.file_name(SIZE))).unwrap();
    }
}

/// A copy was killed when its image was there and its log was not: the only image that could be restored went.
// hazard: BACKUP-8
#[tokio::test]
async fn an_image_that_cannot_be_restored_keeps_no_other_from_staying() {
    let mut world = World::new().await;
    let good = world.copy(&[1]).await;
    world.pass(9 * DAY);
    world.copy(&[2]).await;
    world.lose_log(2);
    let expired = world.expire(&policy("all for 1d", 1)).await;
    assert_eq!((expired.images.len(), expired.segments), (0, 0));
    let manifest = Manifest::load(&world.repository, &good).await.unwrap();
    let log = Log::of(&world.repository, &manifest).await.unwrap();
    assert!(log.reach(&manifest).is_ok());
    let target = crate::restore::Target::Latest;
    let plan = crate::restore::plan(&world.repository, target, None, None).await;
    assert_eq!(plan.unwrap().image, good, "the one that can be restored");
}

#[tokio::test]
async fn log_that_is_gone_from_the_end_is_told() {
    let mut world = World::new().await;
    world.copy(&[1]).await;
    world.copy(&[2]).await;
    let tip = crate::tip::Tip {
        timeline: TimelineId(1),
        end: Lsn(3 * SIZE.bytes()),
    };
    tip.put(&world.repository).await.unwrap();
    tip.put(&world.repository).await.unwrap();
    world.is_whole().await;
    world.lose_log(2);
    let verified = verify(&world.repository, |_, _| ()).await.unwrap();
    let is_told = |line: &String| line.contains("something was removed");
    assert!(verified.wrong.iter().any(is_told), "{:?}", verified.wrong);
    let target = crate::restore::Target::Latest;
    let plan = crate::restore::plan(&world.repository, target, None, None).await;
    let error = plan.unwrap_err().to_string();
    assert!(error.contains("something was removed"), "{error}");
}

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    Copy(Vec<u8>),
    Pass(u32),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => proptest::collection::vec(0..8_u8, 1..4).prop_map(Step::Copy),
        2 => (1..60_u32).prop_map(Step::Pass),
        2 => Just(Step::Expire),
    ]
}

/// A damaged piece was never written again, because it was there: all later images had it. And nothing expired any more.
// hazard: BACKUP-15
#[tokio::test]
async fn what_is_damaged_is_set_aside_and_written_again() {
    let mut world = World::new().await;
    let first = world.copy(&[1, 2]).await;
    let second = world.copy(&[2, 3]).await;
    let piece = world.put(2).await;
    let damage = |object: &str| {
        let path = world.directory.path().join(object);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(path, bytes).unwrap();
    };
    let objects = [piece.name(), format!("images/{first}/manifest")];
    objects.iter().for_each(|object| damage(object));

    let mut damaged = verify(&world.repository, |_, _| ()).await.unwrap().damaged;
    damaged.sort_unstable();
    assert_eq!(damaged, objects);
    let policy = policy("all for 1d", 14);
    let stopped = expire(&world.repository, &policy).await;
    assert!(matches!(stopped, Err(Error::Damaged { .. })), "{stopped:?}");

    let copying = Work::copy(&world.repository).await.unwrap();
    assert_eq!(repair(&world.repository, &damaged).await.unwrap(), None);
    copying.end().await.unwrap();
    assert_eq!(repair(&world.repository, &damaged).await.unwrap(), Some(2));
    assert!(world.directory.path().join("damaged").is_dir());
    let missing = verify(&world.repository, |_, _| ()).await.unwrap().wrong;
    assert_eq!(
        missing.len(),
        1,
        "of the second image, until it is there again: {missing:?}"
    );
    let third = world.copy(&[2]).await;
    let whole = verify(&world.repository, |_, _| ()).await.unwrap();
    assert_eq!(whole.wrong, Vec::<String>::new());
    let images = manifest::images(&world.repository).await.unwrap();
    assert_eq!(images, [second, third]);
    expire(&world.repository, &policy).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Histories of all steps in any order: images that stay are whole, rules are kept, and in the end nothing is left over.
    // hazard: BACKUP-5
    #[test]
    fn kept_images_stay_whole_and_unneeded_pieces_go(steps in proptest::collection::vec(step(), 1..25)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            let policy = policy("all for 1d, daily for 5d", 2);
            let mut copied: BTreeMap<ImageId, (u32, Vec<u8>)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Copy(pieces) => {
                        let image = world.copy(&pieces).await;
                        copied.insert(image, (0, pieces));
                    }
                    Step::Pass(hours) => {
                        world.pass(hours * DAY / 24);
                        copied.values_mut().for_each(|(age, _)| *age += hours);
                    }
                    Step::Expire => {
                        let expired = world.expire(&policy).await;
                        for image in &expired.images {
                            let (age_hours, _) = copied.remove(image).unwrap();
                            prop_assert!(age_hours > 23, "{image} is {age_hours} hours old");
                        }
                    }
                }
                if world.images().await > 0 {
                    world.is_whole().await;
                }
            }
            if !copied.is_empty() {
                world.expire(&policy).await;
                world.pass(2 * DAY);
                world.expire(&policy).await;
                let left: HashSet<ChunkId> = {
                    let mut all = HashSet::new();
                    for image in manifest::images(&world.repository).await.unwrap() {
                        let manifest = Manifest::load(&world.repository, &image).await.unwrap();
                        all.extend(manifest.chunks());
                    }
                    all
                };
                // Those of images that went just now are noted; all others that nobody has are gone.
                let noted = world.repository.names("expired").await.unwrap();
                prop_assert!(world.chunks().await == left.len() || !noted.is_empty());
                world.is_whole().await;
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_store_whose_clock_stands_in_1970_removes_nothing_early() {
    let mut world = World::new().await;
    world.copy(&[1]).await;
    let old = world.directory.path().join("images");
    for image in std::fs::read_dir(old).unwrap() {
        let file = File::open(image.unwrap().path().join("manifest")).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
    }
    assert_eq!(
        world.expire(&policy("all for 1d", 1)).await.images.len(),
        0,
        "it is the newest"
    );
    world.is_whole().await;
}
