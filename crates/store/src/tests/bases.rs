//! Writes that begin with what the zone has of the block already.

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::ids::Generation;
use dax::wire::{Base, BlockWrite, checksum};

use super::TestZone;
use super::client::{Client, data, g, key, v, write};
use crate::engine::memory::MemoryEngine;

const MAX: Generation = Generation::MAX;
/// So much of a block stays as it was.
const KEPT: usize = 100;

/// The block as version `from` was in its first bytes, and as version `to` is otherwise: what is sent of it to a zone
/// that has the first in `generation`.
fn onto(from: u64, generation: Generation, to: u64, at: Generation) -> (BlockWrite, Bytes) {
    let whole: Bytes = [&data(v(1, from))[..KEPT], &data(v(1, to))[KEPT..]]
        .concat()
        .into();
    let sent = BlockWrite {
        checksum: checksum(key(1, 0), at, v(1, to), &whole),
        base: Some(Base {
            generation,
            bytes: KEPT as u32,
        }),
        data: whole.slice(KEPT..),
        ..write(key(1, 0), at, v(1, to))
    };
    (sent, whole)
}

#[test]
fn stored_beginning_is_put_before_the_sent_rest_wherever_it_is() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), g(1, 1), v(1, 1)));
    // In the round that is decided, in the log, and, later, in the engine.
    let (sent, whole) = onto(1, g(1, 1), 2, g(1, 2));
    c.write(sent);
    c.flush();
    assert_eq!(c.block(key(1, 0), MAX).unwrap().data, whole);
    for seq in 3..100 {
        let (sent, whole) = onto(1, g(1, seq as u32 - 1), seq, g(1, seq as u32));
        c.write(sent);
        c.flush();
        assert_eq!(c.block(key(1, 0), MAX).unwrap().data, whole);
    }
    // In place of the version that it begins with.
    let (sent, whole) = onto(1, g(1, 99), 100, g(1, 99));
    c.write(sent);
    c.flush();
    assert_eq!(c.block(key(1, 0), MAX).unwrap().data, whole);
    assert!(c.refused.is_empty(), "{:?}", c.refused);
}

#[test]
fn write_with_another_beginning_than_the_stored_one_is_refused_and_changes_nothing() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), g(1, 1), v(1, 1)));
    c.flush();
    let nothing_there = onto(1, g(1, 7), 2, g(1, 8)).0;
    let another = onto(5, g(1, 1), 3, g(1, 8)).0;
    let longer = BlockWrite {
        base: Some(Base {
            generation: g(1, 1),
            bytes: data(v(1, 1)).len() as u32,
        }),
        data: Bytes::new(),
        ..write(key(1, 0), g(1, 8), v(1, 4))
    };
    let numbers = [nothing_there, another, longer].map(|sent| c.write(sent));
    c.flush();
    let refused = numbers.map(|number| (number, ErrorKind::NotFound));
    assert_eq!(c.refused, refused);
    assert_eq!(c.version(key(1, 0), MAX), Some(v(1, 1)));
    // As a whole it is taken.
    c.write(write(key(1, 0), g(1, 8), v(1, 2)));
    c.flush();
    assert_eq!(c.version(key(1, 0), MAX), Some(v(1, 2)));
}

#[test]
fn overwritten_write_is_done_whatever_it_begins_with() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), g(1, 2), v(1, 9)));
    c.write(onto(1, g(1, 1), 2, g(1, 2)).0);
    c.flush();
    assert!(c.refused.is_empty());
    assert_eq!(c.version(key(1, 0), MAX), Some(v(1, 9)));
}

#[test]
fn more_than_a_block_is_refused_before_memory_is_taken_for_it() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let number = c.write(BlockWrite {
        base: Some(Base {
            generation: g(1, 1),
            bytes: u32::MAX,
        }),
        ..write(key(1, 0), g(1, 1), v(1, 1))
    });
    c.flush();
    assert_eq!(c.refused, [(number, ErrorKind::Invalid)]);
    assert_eq!(c.block(key(1, 0), MAX), None);
}

/// A sector of the disk went bad under a block that a write began with. The write was refused as one whose block cannot be
/// told for now, and sent again for ever, although as a whole it needs nothing of what is there.
// hazard: D4
#[test]
fn a_base_that_cannot_be_read_is_answered_as_a_missing_one() {
    let engine = MemoryEngine::default();
    let t = TestZone::over(engine.clone());
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), g(1, 1), v(1, 1)));
    c.flush();
    // Only what is there already is looked for in the engine: the new slot is empty, which is known.
    c.write(write(key(1, 0), g(1, 2), v(1, 2)));
    c.flush();
    engine.fail_reads(u32::MAX, 1);
    let number = c.write(onto(1, g(1, 1), 3, g(1, 2)).0);
    c.flush();
    assert_eq!(c.refused, [(number, ErrorKind::NotFound)]);
    c.write(write(key(1, 0), g(1, 2), v(1, 3)));
    c.flush();
    engine.fail_reads(0, 1);
    assert_eq!(c.version(key(1, 0), MAX), Some(v(1, 3)));
    t.zone.failure().unwrap();
}
