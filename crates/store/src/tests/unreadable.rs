//! Reads that fail and may succeed when they are tried again: nobody knows what is stored, and nobody guesses.

use std::time::{Duration, Instant};

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::ids::{Epoch, FileId, Generation};
use dax::wire::{Request, Response};

use super::TestZone;
use super::client::{Client, key, kind, v, write};
use crate::engine::Engine;
use crate::engine::memory::MemoryEngine;
use crate::keys::VolumeId;
use crate::meta::removals_key;

const SINGLE: Generation = Generation::SINGLE;

/// A zone that has ten blocks and a record, and remembers no versions.
fn stored() -> (MemoryEngine, TestZone, Client) {
    let engine = MemoryEngine::default();
    let t = TestZone::over(engine.clone());
    let mut c = Client::owner(&t.address, "v", 1);
    for block in 0..10 {
        c.write(write(key(1, block), SINGLE, v(1, 100 + block)));
    }
    c.flush();
    let put = put_record(1);
    assert!(matches!(c.ask(put), Response::RecordStored { .. }));
    t.zone.stop().unwrap();
    drop(t);
    let t = TestZone::over(engine.clone());
    let c = Client::owner(&t.address, "v", 1);
    (engine, t, c)
}

fn put_record(seq: u64) -> Request {
    Request::PutRecord {
        epoch: Some(Epoch(1)),
        name: "r".into(),
        version: v(1, seq),
        value: Some(Bytes::from(seq.to_string())),
    }
}

/// The read of the stored version failed, the block counted as missing, and an older write that was sent again took
/// the place of the newer one, which had been acknowledged.
// hazard: ZONE-36
#[test]
fn an_older_write_does_not_replace_what_cannot_be_read() {
    let (engine, t, mut c) = stored();
    engine.fail_reads(u32::MAX, 1);
    let number = c.write(write(key(1, 3), SINGLE, v(1, 50)));
    c.flush();
    assert_eq!(c.refused, [(number, ErrorKind::Unavailable)]);
    engine.fail_reads(0, 1);
    c.write(write(key(1, 3), SINGLE, v(1, 50)));
    c.flush();
    assert_eq!(c.version(key(1, 3), SINGLE), Some(v(1, 103)));
    // The newer one is taken as soon as the zone can tell that it is.
    c.write(write(key(1, 3), SINGLE, v(1, 200)));
    c.flush();
    assert_eq!(c.version(key(1, 3), SINGLE), Some(v(1, 200)));
    t.zone.failure().unwrap();
}

// hazard: ZONE-36
#[test]
fn reader_of_an_unreadable_block_is_told_to_ask_again() {
    let (engine, t, mut c) = stored();
    let questions = [
        Request::Read {
            key: key(1, 3),
            up_to: SINGLE,
        },
        Request::Read {
            key: key(1, 3),
            up_to: Generation::MAX,
        },
        Request::Promote {
            epoch: Epoch(1),
            key: key(1, 3),
        },
        Request::GetRecord { name: "r".into() },
        Request::ListRecords {
            prefix: String::new(),
            after: None,
        },
        Request::Inventory {
            epoch: Epoch(1),
            after: None,
        },
        put_record(2),
    ];
    for question in questions {
        engine.fail_reads(u32::MAX, 1);
        let answer = c.ask(question.clone());
        assert_eq!(kind(&answer), Some(ErrorKind::Unavailable), "{answer:?}");
        engine.fail_reads(0, 1);
        let answer = c.ask(question);
        assert_eq!(kind(&answer), None, "{answer:?}");
    }
    t.zone.failure().unwrap();
}

// hazard: ZONE-36
#[test]
fn space_is_given_back_once_files_can_be_read() {
    let (engine, t, mut c) = stored();
    engine.fail_reads(12, 2);
    let remove = Request::RemoveFiles {
        epoch: Epoch(1),
        files: vec![FileId(1)],
    };
    assert_eq!(c.ask(remove), Response::Done);
    let started = Instant::now();
    let left = |engine: &MemoryEngine| {
        let engine: &dyn Engine = engine;
        engine.meta_prefix(&removals_key(VolumeId(1)))
    };
    while c.used_blocks() > 0 || left(&engine).map_or(true, |left| !left.is_empty()) {
        assert!(started.elapsed() < Duration::from_secs(20), "given back");
        std::thread::sleep(Duration::from_millis(5));
    }
    t.zone.failure().unwrap();
}
