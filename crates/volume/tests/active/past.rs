//! Images that are kept longer than the last two seals: by policy, and by pins.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dax::forms::Forms;
use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Authority, Storage};
use volume::active::Clock;
use volume::error::Error;
use volume::past::{Index, Pin, PinState, Policy, load_seal};
use volume::seal::{Base, Seal};
use volume::view::{Ino, NewInode, Timestamp, View};

use crate::common::{BLOCK, Life, SEGMENT, Volume};

const MINUTE: i64 = 60_000_000_000;

/// A clock that stands still until it is set.
#[derive(Clone, Default)]
pub struct Hand(Arc<AtomicI64>);

impl Hand {
    pub fn pass(&self, minutes: i64) {
        self.0.fetch_add(minutes * MINUTE, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let now = self.0.clone();
        Clock::new(move || Timestamp(now.load(Ordering::Relaxed)))
    }
}

async fn allow(storage: &Arc<dyn Storage>) {
    let written = format!("{{\"written\":{}}}", Forms::PINS);
    let put = storage.put_record(Forms::RECORD, written.into(), Authority::Owner);
    put.await.unwrap();
}

pub fn policy(keep: &str) -> Option<Policy> {
    Some(Policy {
        keep: keep.parse().unwrap(),
        space: None,
    })
}

/// Opens a volume that may have a past.
pub async fn open(volume: &Volume, hand: &Hand, keep: Option<Policy>) -> Life {
    let life = volume.open().await;
    let storage: Arc<dyn Storage> = life.storage.clone();
    allow(&storage).await;
    life.view.use_clock(hand.clock());
    life.view.keep_past(keep);
    life
}

/// Writes a round into a file, and seals.
async fn round(life: &Life, ino: Ino, number: u8) -> Seal {
    life.write(ino, 0, vec![number; BLOCK]).await;
    let sealed = life.seal(u64::from(number) * SEGMENT).await;
    life.view.reclaim().await.unwrap();
    sealed
}

/// The first byte of a file in the image of a seal.
async fn read(reader: &Arc<dyn Storage>, seal: &Seal, ino: Ino) -> u8 {
    let base = Base::load(reader, seal).await.unwrap();
    let file = FileId(ino.0);
    let inode = base.namespace.file(file).unwrap();
    let read = volume::image::read_block(reader, &seal.lineage, inode, BlockKey::new(file, 0));
    read.await.unwrap().unwrap().data[0]
}

async fn kept(life: &Life) -> Vec<Generation> {
    let images = life.view.past().await.images;
    images.iter().map(|image| image.generation).collect()
}

// hazard: PAST-1
#[tokio::test]
async fn kept_images_read_as_they_were_also_after_a_takeover_until_no_rule_wants_them() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, policy("all for 10m, hourly for 1d")).await;
    let ino = life.create("f", NewInode::File).ino;
    let mut seals = Vec::new();
    for number in 1..=8 {
        hand.pass(2);
        seals.push(round(&life, ino, number).await);
    }
    let next = open(&volume, &hand, policy("all for 10m, hourly for 1d")).await;
    let before = kept(&life).await;
    next.view.reclaim().await.unwrap();
    assert_eq!(kept(&next).await, before);
    for number in 9..=12 {
        hand.pass(2);
        seals.push(round(&next, ino, number).await);
    }
    let reader = volume.reader();
    // The last ones are among the seals; those of the last ten minutes, and none older, are kept.
    let expected: Vec<Generation> = seals[6..10].iter().map(|seal| seal.generation).collect();
    assert_eq!(kept(&next).await, expected);
    for (number, seal) in (7..).zip(&seals[6..10]) {
        let found = load_seal(&reader, seal.generation).await.unwrap().unwrap();
        assert_eq!(read(&reader, &found, ino).await, number);
        assert_eq!(found.payload, seal.payload);
        assert_eq!(found.snapshot.at, found.journal, "it holds no journal");
    }
    // Hours later one of each hour is left, and its list leads from it to the next.
    for number in 13..=40 {
        hand.pass(15);
        seals.push(round(&next, ino, number).await);
    }
    let past = next.view.past().await;
    let hours: Vec<i64> = past
        .images
        .iter()
        .map(|image| image.at.0 / (60 * MINUTE))
        .collect();
    assert!(hours.len() >= 6, "{hours:?}");
    assert!(hours.is_sorted_by(|a, b| a < b), "{hours:?}");
    for pair in past.images.windows(2) {
        let lists = &pair[1].lists;
        assert_eq!(lists.len(), 1, "merged");
        assert_eq!(lists[0].after, pair[0].generation);
        assert_eq!(lists[0].to, pair[1].generation);
        assert_eq!(pair[1].blocks, Some(1));
        let found = load_seal(&reader, pair[1].generation).await.unwrap();
        let number = seals
            .iter()
            .position(|s| s.generation == pair[1].generation);
        let byte = read(&reader, &found.unwrap(), ino).await;
        assert_eq!(Some(usize::from(byte)), number.map(|at| at + 1));
    }
    // Without a policy nothing is left of it.
    next.view.keep_past(None);
    next.view.reclaim().await.unwrap();
    assert!(kept(&next).await.is_empty());
    for number in 41..=44 {
        round(&next, ino, number).await;
    }
    assert!(reader.list_records("past/").await.unwrap().is_empty());
    let without = Volume::format().await;
    let other = without.open().await;
    let ino = other.create("f", NewInode::File).ino;
    for number in 1..=44 {
        round(&other, ino, number).await;
    }
    let left = |volume: &Volume, life: &Life| {
        (
            life.view.namespace().removed().count(),
            volume.cluster.stored_versions(),
        )
    };
    let (left, plain) = (left(&volume, &next), left(&without, &other));
    assert_eq!(left.0, plain.0);
    assert!(left.1 <= plain.1 + 6, "{left:?} and {plain:?}");
}

// An owner wrote the seal, and crashed before the index named it; or the other way round when an image went.
#[tokio::test]
async fn seals_that_the_index_does_not_name_are_removed_by_the_next_owner() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, policy("all for 1d")).await;
    let ino = life.create("f", NewInode::File).ino;
    for number in 1..=5 {
        round(&life, ino, number).await;
    }
    let storage: Arc<dyn Storage> = life.storage.clone();
    let put = storage.put_record("past/1/g77", "left".into(), Authority::Owner);
    put.await.unwrap();
    let next = open(&volume, &hand, policy("all for 1d")).await;
    round(&next, ino, 6).await;
    let reader = volume.reader();
    let records = reader.list_records("past/").await.unwrap();
    let mut left: Vec<String> = records.into_iter().map(|(name, _)| name).collect();
    let images = kept(&next).await.into_iter();
    let mut named: Vec<String> = images
        .map(|generation| format!("past/{generation}"))
        .collect();
    left.sort();
    named.sort();
    assert_eq!(left, named);
}

// A takeover began with a view that nobody had told the policy: its first reclaim would have taken all for unwanted.
// hazard: PAST-1
#[tokio::test]
async fn what_is_kept_stays_until_somebody_says_what_the_policy_is() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, policy("all for 1d")).await;
    let ino = life.create("f", NewInode::File).ino;
    for number in 1..=5 {
        round(&life, ino, number).await;
    }
    let before = kept(&life).await;
    assert_eq!(before.len(), 4, "the first one is that of an empty volume");
    let next = volume.open().await;
    next.view.use_clock(hand.clock());
    round(&next, ino, 6).await;
    assert_eq!(kept(&next).await, before);
    next.view.keep_past(None);
    next.view.reclaim().await.unwrap();
    assert!(kept(&next).await.is_empty());
}

// A pin that is put when its seal has left stood, if the reclaimer had seen it before its maker looked.
// hazard: PAST-2
#[tokio::test]
async fn a_pin_stands_only_if_its_seal_was_kept_after_it_was_put() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, None).await;
    let ino = life.create("f", NewInode::File).ino;
    let mut seals = Vec::new();
    for number in 1..=4 {
        seals.push(round(&life, ino, number).await);
    }
    let reader = volume.reader();
    let gone = Pin::make(&reader, "late", Some(seals[0].generation), false).await;
    assert!(matches!(gone, Err(Error::NotKept)));
    let pin = Pin::make(&reader, "test", Some(seals[2].generation), false)
        .await
        .unwrap();
    assert_eq!(pin.state, PinState::Making);
    for number in 5..=9 {
        seals.push(round(&life, ino, number).await);
    }
    let pin = pin.keep(&reader).await.unwrap();
    let image = life.view.past().await.images;
    assert_eq!(image.len(), 1);
    assert!(image[0].closed);
    // A second one on the same image comes too late, and takes nothing away.
    let late = Pin::make(&reader, "late", Some(seals[2].generation), false).await;
    assert!(matches!(late, Err(Error::NotKept)));
    assert_eq!(Pin::all(&reader).await.unwrap(), std::slice::from_ref(&pin));
    // The image outlives epochs.
    let next = open(&volume, &hand, None).await;
    for number in 10..=13 {
        round(&next, ino, number).await;
    }
    let seal = pin.load_seal(&reader).await.unwrap();
    assert_eq!(read(&reader, &seal, ino).await, 3);
    let with = volume.cluster.stored_versions();
    Pin::remove(&reader, &pin.name).await.unwrap();
    for number in 14..=15 {
        round(&next, ino, number).await;
    }
    assert!(kept(&next).await.is_empty());
    assert!(volume.cluster.stored_versions() < with);
}

/// A pin that lies there before it is looked at, as its maker left it who was asleep.
// hazard: PAST-2
#[tokio::test]
async fn a_maker_that_slept_finds_that_its_pin_was_given_up() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, None).await;
    let ino = life.create("f", NewInode::File).ino;
    for number in 1..=3 {
        round(&life, ino, number).await;
    }
    let reader = volume.reader();
    let silent = Pin::make(&reader, "silent", None, true).await.unwrap();
    let alive = Pin::make(&reader, "alive", None, true).await.unwrap();
    let done = Pin::make(&reader, "done", None, true).await.unwrap();
    let alive_now = alive.clone().refresh(&reader).await.unwrap();
    let kept_now = done.clone().keep(&reader).await.unwrap();
    for pin in [&silent, &alive, &done] {
        life.view.give_up_pin(pin).await.unwrap();
    }
    let names = |pins: Vec<Pin>| pins.into_iter().map(|pin| pin.purpose).collect::<Vec<_>>();
    let mut left = names(Pin::all(&reader).await.unwrap());
    left.sort();
    assert_eq!(left, ["alive", "done"]);
    for number in 4..=8 {
        round(&life, ino, number).await;
    }
    assert!(matches!(silent.keep(&reader).await, Err(Error::NotKept)));
    alive_now.keep(&reader).await.unwrap();
    kept_now.refresh(&reader).await.unwrap();
    assert_eq!(Pin::all(&reader).await.unwrap().len(), 2);
}

// hazard: PAST-3
#[tokio::test]
async fn a_pin_keeps_files_and_log_of_its_image_and_no_others() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, None).await;
    let wal = life.create("wal", NewInode::Directory).ino;
    let made = |path: &str| life.create(path, NewInode::File).ino;
    let fill = async |ino| life.write(ino, 0, vec![1; 8 * BLOCK]).await;
    let before = made("before");
    fill(before).await;
    let mut segments = Vec::new();
    for number in 1..=4 {
        let segment = made(&format!("wal/{number}"));
        fill(segment).await;
        segments.push(segment);
        life.view
            .unlink(wal, number.to_string().as_bytes(), Timestamp(3))
            .unwrap();
    }
    life.seal(2 * SEGMENT).await;
    let reader = volume.reader();
    let bare = Pin::make(&reader, "bare", None, false).await.unwrap();
    let after = made("after");
    fill(after).await;
    life.seal(2 * SEGMENT).await;
    for name in ["before", "after"] {
        life.view
            .unlink(Ino::ROOT, name.as_bytes(), Timestamp(3))
            .unwrap();
    }
    let log = Pin::make(&reader, "log", None, true).await.unwrap();
    for _ in 0..4 {
        life.seal(9 * SEGMENT).await;
        life.view.reclaim().await.unwrap();
    }
    let stored = async |ino: Ino| {
        let read = reader.read(BlockKey::new(FileId(ino.0), 0), Generation::MAX);
        read.await.unwrap().is_some()
    };
    let retained = || life.view.namespace().all_retained().count();
    assert!(stored(before).await);
    assert!(stored(after).await, "the second pin has it");
    assert_eq!(retained(), 3, "log from its redo on");
    // Both images were cut while the segment was there, and neither needs it.
    assert!(!stored(segments[0]).await);
    assert!(stored(segments[2]).await);
    Pin::remove(&reader, &log.name).await.unwrap();
    life.seal(9 * SEGMENT).await;
    life.view.reclaim().await.unwrap();
    assert!(stored(before).await);
    assert!(!stored(after).await, "it was made after the first one");
    assert_eq!(retained(), 0);
    for _ in 0..2 {
        life.seal(9 * SEGMENT).await;
        life.view.reclaim().await.unwrap();
    }
    for segment in segments {
        assert!(!stored(segment).await, "its log is needed by nobody");
    }
    Pin::remove(&reader, &bare.name).await.unwrap();
    life.view.reclaim().await.unwrap();
    assert!(!stored(before).await);
}

// hazard: PAST-4
#[tokio::test]
async fn nothing_is_kept_while_a_program_may_own_the_volume_that_does_not_look() {
    let volume = Volume::format().await;
    let life = volume.open().await;
    life.view.keep_past(policy("all for 1d"));
    let ino = life.create("f", NewInode::File).ino;
    for number in 1..=4 {
        round(&life, ino, number).await;
    }
    let reader = volume.reader();
    let refused = Pin::make(&reader, "early", None, false).await.unwrap_err();
    assert!(
        refused.to_string().contains("understudy upgrade finish"),
        "{refused}"
    );
    assert_eq!(Index::load(&reader).await.unwrap(), Index::default());
    assert!(reader.get_record("past").await.unwrap().is_none());
}

#[tokio::test]
async fn the_oldest_go_first_when_they_take_more_than_their_space() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let space = Some(4 * BLOCK as u64);
    let life = open(
        &volume,
        &hand,
        policy("all for 1d").map(|p| Policy { space, ..p }),
    )
    .await;
    let ino = life.create("f", NewInode::File).ino;
    let reader = volume.reader();
    let mut pinned = None;
    for number in 1..=12 {
        hand.pass(1);
        let seal = round(&life, ino, number).await;
        if number == 2 {
            pinned = Some(
                Pin::make(&reader, "test", Some(seal.generation), false)
                    .await
                    .unwrap(),
            );
        }
    }
    let past = life.view.past().await;
    assert!(
        past.used_bytes <= 4 * BLOCK as u64 + 8192,
        "{}",
        past.used_bytes
    );
    let kept = kept(&life).await;
    assert_eq!(
        kept[0],
        pinned.unwrap().generation(),
        "a pin counts more than room"
    );
    assert!(kept.len() >= 3, "{kept:?}");
}

/// Giving room back wrote merged lists, and a snapshot for a pin: full zones take neither, so none of the past ever went.
// hazard: PAST-6
#[tokio::test]
async fn full_zones_are_given_room_although_they_take_no_block() {
    let (volume, hand) = (Volume::format().await, Hand::default());
    let life = open(&volume, &hand, policy("all for 1d")).await;
    let ino = life.create("f", NewInode::File).ino;
    let reader = volume.reader();
    let mut pins = Vec::new();
    for number in 1..=10 {
        hand.pass(1);
        let seal = round(&life, ino, number).await;
        if [4, 8].contains(&number) {
            let pin = Pin::make(&reader, "test", Some(seal.generation), false);
            pins.push(pin.await.unwrap());
        }
    }
    volume.cluster.set_full(true);
    let given_back = tokio::time::timeout(Duration::from_secs(20), life.view.reclaim());
    given_back.await.expect("it waits for room").unwrap();
    volume.cluster.set_full(false);
    let pinned: Vec<Generation> = pins.iter().map(Pin::generation).collect();
    assert_eq!(kept(&life).await, pinned);
    for number in 11..=14 {
        round(&life, ino, number).await;
    }
    for (pin, number) in pins.iter().zip([4, 8]) {
        let seal = pin.load_seal(&reader).await.unwrap();
        assert_eq!(read(&reader, &seal, ino).await, number);
    }
}
