//! A client tries to fill the zone's memory: by what it sends, by answers that it does not read, by connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::ids::{BlockIndex, Epoch, FileId, Generation};
use dax::wire::{MAX_RECORD_BYTES, Request, Response};

use super::client::{Client, key, kind, v, write};
use super::{TestZone, config};
use crate::StoreConfig;
use crate::engine::memory::MemoryEngine;

const SINGLE: Generation = Generation::SINGLE;

/// How many requests a zone takes from a client that reads no answers, at most `most`: until it takes no more for a
/// while, or hangs up.
fn taken(c: &mut Client, most: u64, request: impl Fn(u64) -> Request) -> u64 {
    c.give_up_sending_after(Duration::from_secs(3));
    let taken = (0..most).find(|n| c.try_send(n + 1, &request(*n)).is_err());
    taken.unwrap_or(most)
}

/// The zone still serves others of the volume, and other volumes.
fn serves_others(t: &TestZone) {
    t.zone.failure().unwrap();
    for volume in ["v", "well"] {
        let mut c = Client::volume(&t.address, volume);
        assert!(matches!(c.ask(Request::Ping), Response::Pong { .. }));
    }
}

/// A record of a mebibyte weighed 256 bytes in the queue: as many as a client sent were taken.
// hazard: ZONE-43
#[test]
fn records_that_wait_for_the_disk_are_weighed() {
    let engine = MemoryEngine::default();
    let config = StoreConfig {
        queue_bytes: 4 << 20,
        ..config()
    };
    let t = TestZone::over_with(engine.clone(), config);
    let mut c = Client::owner(&t.address, "v", 1);
    let mut other = Client::owner(&t.address, "other", 1);
    let slow = engine.commits.lock();
    let begun = engine.begun.load(Ordering::Relaxed);
    // Whoever commits reads no requests meanwhile; so that is somebody else.
    other.write(write(key(1, 1), SINGLE, v(1, 1)));
    other.send(0, &Request::Flush);
    while engine.begun.load(Ordering::Relaxed) == begun {
        std::thread::sleep(Duration::from_millis(1));
    }
    let value = Bytes::from(vec![7; MAX_RECORD_BYTES]);
    let taken = taken(&mut c, 60, |n| Request::PutRecord {
        epoch: Some(Epoch(1)),
        name: format!("r{n}"),
        version: v(1, n + 1),
        value: Some(value.clone()),
    });
    // As many as the queue holds, and what is on its way.
    assert!((2..=8).contains(&taken), "{taken} MiB were taken");
    drop(slow);
    serves_others(&t);
}

/// Answers were counted, up to 100,000, each with a block.
// hazard: ZONE-43
#[test]
fn blocks_that_nobody_takes_are_weighed() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 1), SINGLE, v(1, 1)));
    c.flush();
    let most = 30_000;
    let taken = taken(&mut c, most, |_| Request::Promote {
        epoch: Epoch(1),
        key: key(1, 1),
    });
    assert!(taken < most, "it is disconnected");
    serves_others(&t);
}

// hazard: ZONE-43
#[test]
fn inventories_that_nobody_takes_are_bounded() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let most = 40_000;
    let taken = taken(&mut c, most, |_| Request::Inventory {
        epoch: Epoch(1),
        after: None,
    });
    assert!(taken < most, "its own thread waits for it");
    serves_others(&t);
}

#[test]
fn removals_that_wait_for_the_janitor_are_weighed() {
    let engine = MemoryEngine::default();
    let t = TestZone::over(engine.clone());
    let mut c = Client::owner(&t.address, "v", 1);
    let busy = engine.scans.lock();
    let mut remove = |n: u64| {
        c.ask(Request::RemoveFiles {
            epoch: Epoch(1),
            files: (0..60_000).map(|file| FileId(n * 60_000 + file)).collect(),
        })
    };
    let refused = (0..20).map(&mut remove).find(|a| *a != Response::Done);
    let refused = refused.expect("they take ten mebibytes");
    assert_eq!(kind(&refused), Some(ErrorKind::Unavailable), "{refused:?}");
    drop(busy);
    // Asked for again, it is done.
    while remove(20) != Response::Done {
        std::thread::sleep(Duration::from_millis(20));
    }
    let one = Request::RemoveBlocksBefore {
        epoch: Epoch(1),
        file: FileId(1),
        block: BlockIndex(5),
    };
    assert_eq!(c.ask(one), Response::Done);
    serves_others(&t);
}

#[test]
fn connections_of_a_volume_are_bounded() {
    let config = StoreConfig {
        connections_max: 3,
        ..config()
    };
    let t = TestZone::with(config);
    let mut seated: Vec<_> = (0..3).map(|_| Client::volume(&t.address, "v")).collect();
    let mut fourth = Client::silent(&t.address);
    let answer = fourth.hello("v", dax::credentials::Nonce([9; 32]));
    assert_eq!(kind(&answer), Some(ErrorKind::Unavailable), "{answer:?}");
    assert!(fourth.is_hung_up());
    let mut other = Client::volume(&t.address, "other");
    assert!(matches!(other.ask(Request::Ping), Response::Pong { .. }));
    // A place that is left is free again.
    seated.pop();
    loop {
        let mut again = Client::silent(&t.address);
        let answer = again.hello("v", dax::credentials::Nonce([9; 32]));
        if matches!(answer, Response::Welcome { .. }) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// After a start the janitor looks at every block of every volume. A scrub of another zone's rebuild waited for it.
// hazard: ZONE-44
#[test]
fn an_inventory_waits_for_no_scan() {
    let engine = MemoryEngine::default();
    {
        let t = TestZone::over(engine.clone());
        let mut c = Client::owner(&t.address, "v", 1);
        c.write(write(key(1, 1), SINGLE, v(1, 1)));
        c.flush();
        t.zone.stop().unwrap();
    }
    let scanning = engine.scans.lock();
    let t = TestZone::over(engine.clone());
    let mut c = Client::owner(&t.address, "v", 1);
    let answer = c.ask(Request::Inventory {
        epoch: Epoch(1),
        after: None,
    });
    match answer {
        Response::Inventory { entries, .. } => assert_eq!(entries.len(), 1),
        other => panic!("{other:?}"),
    }
    drop(scanning);
}
