//! Volumes of one zone have nothing in common: the same names, keys and epochs, side by side.

use bytes::Bytes;
use dax::ids::{Epoch, FileId, Generation};
use dax::storage::{Lineage, Retention, Traffic, Usage};
use dax::wire::{Request, Response};

use super::TestZone;
use super::client::{BLOCK, Client, g, key, v, write};

const MAX: Generation = Generation::MAX;

fn put(c: &mut Client, name: &str, value: &'static str) {
    let put = Request::PutRecord {
        epoch: None,
        name: name.into(),
        version: v(1, 1),
        value: Some(Bytes::from_static(value.as_bytes())),
    };
    assert!(matches!(c.ask(put), Response::RecordStored { .. }));
}

fn values(c: &mut Client, prefix: &str) -> Vec<(String, Bytes)> {
    let list = Request::ListRecords {
        prefix: prefix.into(),
        after: None,
    };
    match c.ask(list) {
        Response::Records { entries, .. } => entries
            .into_iter()
            .filter_map(|entry| Some((entry.name, entry.record.value?)))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_epoch_fences_its_own_volume_only() {
    let t = TestZone::new();
    let mut a = Client::owner(&t.address, "a", 1);
    let mut b = Client::owner(&t.address, "b", 1);
    assert!(Client::volume(&t.address, "a").own(7, "other/1"));
    a.write(write(key(1, 0), g(1, 1), v(1, 1)));
    b.write(write(key(1, 0), g(1, 1), v(1, 1)));
    a.flush();
    b.flush();
    assert_eq!((a.refused.len(), b.refused.len()), (1, 0));
    assert!(b.fenced.is_none(), "nobody told b of a's new owner");
    let t = t.restart();
    let mut b = Client::volume(&t.address, "b");
    let Response::Epoch(grant) = b.ask(Request::Epoch) else {
        panic!()
    };
    assert_eq!(grant.epoch, Epoch(1));
}

#[test]
fn records_of_the_same_name_are_different_records() {
    let t = TestZone::new();
    // Their numbers are neighbours, and so are their keys in the engine.
    let mut tenants = ["a", "b", "c"].map(|name| Client::volume(&t.address, name));
    let values_of = ["of a", "of b", "of c"];
    for (c, value) in tenants.iter_mut().zip(values_of) {
        put(c, "node/north", value);
    }
    put(&mut tenants[1], "only-b", "b");
    for (c, value) in tenants.iter_mut().zip(values_of) {
        let found = values(c, "node/");
        assert_eq!(found, [("node/north".to_owned(), Bytes::from(value))]);
    }
    let counts = tenants.map(|mut c| values(&mut c, "").len());
    assert_eq!(counts, [1, 2, 1]);
}

fn usage(c: &mut Client) -> Usage {
    match c.ask(Request::Usage) {
        Response::Usage(usage) => *usage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn usage_is_counted_by_volume() {
    let t = TestZone::new();
    let mut a = Client::owner(&t.address, "a", 1);
    let mut b = Client::owner(&t.address, "b", 1);
    for number in 1..=3 {
        a.write(write(key(1, 0), g(1, number), v(1, u64::from(number))));
    }
    a.flush();
    // An older version has no effect and is not counted.
    a.write(write(key(1, 0), g(1, 3), v(1, 1)));
    a.flush();
    assert!(a.block(key(1, 0), MAX).is_some());
    assert!(a.block(key(1, 1), MAX).is_none());
    let block = BLOCK as u64;
    let done = Traffic {
        writes: 3,
        write_bytes: 3 * block,
        reads: 2,
        read_bytes: block,
        syncs: 2,
    };
    let of_a = usage(&mut a);
    assert_eq!((of_a.blocks, of_a.used_bytes), (3, 3 * block));
    assert_eq!(of_a.since_start, done);
    assert!(of_a.recent.writes <= 3 && of_a.recent_ms <= 10_000);
    let of_b = usage(&mut b);
    assert_eq!((of_b.blocks, of_b.since_start), (0, Traffic::default()));
    // Whoever asks: the volume's clients are counted together.
    assert_eq!(
        usage(&mut Client::volume(&t.address, "a")).since_start,
        done
    );
    // What is stored is known after a restart, what was done is not.
    let t = t.restart();
    let of_a = usage(&mut Client::volume(&t.address, "a"));
    assert_eq!((of_a.blocks, of_a.since_start), (3, Traffic::default()));
}

#[test]
fn retention_and_removal_leave_other_volumes_alone() {
    let t = TestZone::new();
    let mut tenants = ["a", "b", "c"].map(|name| Client::owner(&t.address, name, 1));
    for c in &mut tenants {
        for number in 1..=3 {
            c.write(write(key(1, 0), g(1, number), v(1, u64::from(number))));
        }
        c.write(write(key(2, 0), Generation::SINGLE, v(1, 9)));
        c.flush();
    }
    let [a, b, c] = &mut tenants;
    let images = vec![Lineage::up_to(g(1, 3))];
    let retain = Request::Retain {
        epoch: Epoch(1),
        retention: Retention { images },
    };
    assert_eq!(b.ask(retain), Response::Done);
    let remove = Request::RemoveFiles {
        epoch: Epoch(1),
        files: vec![FileId(2)],
    };
    assert_eq!(b.ask(remove), Response::Done);
    while b.used_blocks() > 1 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!((a.used_blocks(), c.used_blocks()), (4, 4));
    for other in [a, c] {
        assert_eq!(other.version(key(1, 0), g(1, 1)), Some(v(1, 1)));
        assert_eq!(other.version(key(2, 0), MAX), Some(v(1, 9)));
    }
    assert_eq!(b.version(key(1, 0), g(1, 1)), None);
}
