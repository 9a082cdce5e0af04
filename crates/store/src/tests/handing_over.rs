//! The engine is handed commits later than they are durable, and reads make no difference between what it has and what
//! it has not.

use bytes::Bytes;
use dax::ids::{Epoch, Generation};
use dax::wire::checksum;

use super::client::{key, v};
use crate::engine::{Batch, DiskEngine, Engine, Found};
use crate::keys::{Slot, VolumeId, encode_block};

fn slot(block: u64, number: u32) -> Slot {
    Slot {
        volume: VolumeId(1),
        key: key(1, block),
        generation: Generation {
            epoch: Epoch(1),
            number,
        },
    }
}

fn put(batch: &mut Batch, slot: &Slot, seq: u64) {
    let data = vec![seq as u8; 100];
    let version = v(1, seq);
    let sum = checksum(slot.key, slot.generation, version, &data);
    batch.put(slot, encode_block(version, sum, &data));
}

/// Everything that a reader can find out.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The version in each slot, and whether it holds anything.
    slots: Vec<(Option<u64>, bool)>,
    /// The newest version of each block up to each generation, with its own.
    newest: Vec<Option<(u64, Generation)>>,
    metas: Vec<Option<Bytes>>,
}

fn seen(engine: &DiskEngine) -> Seen {
    let version = |found: Option<Found>| match found? {
        Found::Block(block) => Some((block.version.seq, block.generation)),
        Found::Corrupt(_) => panic!("damaged"),
    };
    let (mut slots, mut newest) = (Vec::new(), Vec::new());
    for (block, number) in (0..4).flat_map(|block| (0..6).map(move |number| (block, number))) {
        let slot = slot(block, number);
        let found = version(engine.get(&slot).unwrap());
        slots.push((found.map(|f| f.0), engine.contains(&slot).unwrap()));
        let found = engine.newest(slot.volume, slot.key, slot.generation);
        newest.push(version(found.unwrap()));
    }
    let metas = ["a", "b", "c"].map(|name| engine.meta(name.as_bytes()).unwrap());
    Seen {
        slots,
        newest,
        metas: metas.into(),
    }
}

/// Some of it in the engine, some not.
fn engine(dir: &std::path::Path) -> DiskEngine {
    let engine = DiskEngine::open(dir, 1 << 20).unwrap();
    let mut batch = Batch::default();
    for (block, number, seq) in [(0, 1, 1), (0, 3, 2), (1, 2, 3), (2, 1, 4), (2, 4, 5)] {
        put(&mut batch, &slot(block, number), seq);
    }
    batch.put_meta(b"a", Bytes::from_static(b"1"));
    batch.put_meta(b"b", Bytes::from_static(b"1"));
    engine.commit(batch).unwrap();
    engine.settle_all().unwrap();
    let mut batch = Batch::default();
    for (block, number, seq) in [(0, 2, 6), (1, 2, 7), (2, 5, 8), (3, 1, 9)] {
        put(&mut batch, &slot(block, number), seq);
    }
    batch.remove(&slot(0, 3));
    batch.remove(&slot(2, 4));
    batch.remove_meta(b"a");
    batch.put_meta(b"c", Bytes::from_static(b"2"));
    engine.commit(batch).unwrap();
    engine
}

// hazard: ZONE-42
#[test]
fn reads_find_the_same_before_and_after_and_when_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let before = seen(&engine);
    let at = |number| Generation {
        epoch: Epoch(1),
        number,
    };
    assert_eq!(
        before.newest[3],
        Some((6, at(2))),
        "what is newer was removed"
    );
    assert_eq!(before.newest[2 * 6 + 4], Some((4, at(1))));
    assert_eq!(before.newest[2 * 6 + 5], Some((8, at(5))));
    assert_eq!(before.metas[0], None);
    drop(engine);
    let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(seen(&engine), before, "from the log");
    let dir = tempfile::tempdir().unwrap();
    let engine = self::engine(dir.path());
    engine.settle_all().unwrap();
    assert_eq!(seen(&engine), before);
}

#[test]
fn scans_find_what_was_just_committed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let range = Slot::range(VolumeId(1), (key(1, 0), key(1, 9)));
    let slots: Vec<Slot> = engine.slots(range).map(Result::unwrap).collect();
    let expected = [(0, 1), (0, 2), (1, 2), (2, 1), (2, 5), (3, 1)];
    assert_eq!(slots, expected.map(|(block, number)| slot(block, number)));
    let mut batch = Batch::default();
    batch.remove_meta(b"b");
    engine.commit(batch).unwrap();
    let left = engine.meta_after(b"", b"a").map(|entry| entry.unwrap().0);
    assert!(left.eq([Bytes::from_static(b"c"), Bytes::from_static(b"log")]));
}

#[test]
fn many_commits_are_handed_over_when_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
    let mut handed_over = Vec::new();
    for seq in 1..=100 {
        let mut batch = Batch::default();
        put(&mut batch, &slot(0, 1), seq);
        engine.commit(batch).unwrap();
        let before = engine.is_behind();
        engine.settle().unwrap();
        if before && !engine.is_behind() {
            handed_over.push(seq);
        }
    }
    assert_eq!(handed_over, [32, 64, 96]);
}
