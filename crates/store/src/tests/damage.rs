//! Damaged storage is reported, never shown.

use bytes::Bytes;
use dax::error::ErrorKind;
use dax::ids::Generation;
use tempfile::TempDir;

use super::client::{Client, g, key, kind, v, write};
use super::{TestZone, config, open};
use crate::engine::{Batch, DiskEngine, Engine};
use crate::keys::{Slot, VolumeId, decode_block, encode_block};
use crate::{OpenError, Zone};

/// Flips a byte of the data in a slot, behind the back of the zone.
pub(super) fn flip(engine: &dyn Engine, slot: &Slot) {
    let crate::engine::Found::Block(block) = engine.get(slot).unwrap().unwrap() else {
        panic!("damaged before")
    };
    let mut data = block.data.to_vec();
    // In the middle: a packed block may be short.
    let at = data.len() / 2;
    data[at] ^= 1;
    let mut batch = Batch::default();
    batch.put(slot, encode_block(block.version, block.checksum, &data));
    engine.commit(batch).unwrap();
}

/// Stops a zone, flips a bit in these blocks of file 1, and starts it again.
fn flipped(zone: TestZone, blocks: &[(u64, Generation)]) -> TestZone {
    let TestZone { zone, dir, .. } = zone;
    zone.stop().unwrap();
    drop(zone);
    let engine = DiskEngine::open(&dir.path().join("zone"), 1 << 20).unwrap();
    for (block, generation) in blocks {
        let slot = Slot {
            volume: VolumeId(1),
            key: key(1, *block),
            generation: *generation,
        };
        flip(&engine, &slot);
    }
    drop(engine);
    let (zone, address) = open(&dir, config());
    TestZone { zone, address, dir }
}

#[test]
fn a_damaged_block_is_said_to_be_and_can_be_written_again() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), Generation::SINGLE, v(1, 1)));
    c.write(write(key(1, 1), g(1, 1), v(1, 2)));
    c.write(write(key(1, 1), g(1, 2), v(1, 3)));
    c.flush();
    let t = flipped(t, &[(0, Generation::SINGLE), (1, g(1, 2))]);
    let address = t.address.clone();
    let mut c = Client::volume(&address, "v");
    for up_to in [Generation::SINGLE, Generation::MAX] {
        let answer = c.read(key(1, 0), up_to);
        assert_eq!(kind(&answer), Some(ErrorKind::Corrupt), "{answer:?}");
    }
    assert_eq!(
        kind(&c.read(key(1, 1), Generation::MAX)),
        Some(ErrorKind::Corrupt)
    );
    assert_eq!(c.version(key(1, 1), g(1, 1)), Some(v(1, 2)));
    // The same version again, as a repair sends it.
    c.write(write(key(1, 0), Generation::SINGLE, v(1, 1)));
    c.flush();
    assert_eq!(c.version(key(1, 0), Generation::SINGLE), Some(v(1, 1)));
}

/// What a client sent on a connection that it has given up since may still be on its way. It was sent again on the
/// next one, with what is newer; the damaged copy of that has no version any more that would tell.
// hazard: ZONE-38
#[test]
fn a_late_write_of_a_connection_given_up_does_not_replace_a_damaged_block() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), Generation::SINGLE, v(1, 2)));
    c.flush();
    let t = flipped(t, &[(0, Generation::SINGLE)]);
    let mut given_up = Client::volume(&t.address, "v");
    let mut next = Client::volume(&t.address, "v");
    next.write(write(key(1, 1), Generation::SINGLE, v(1, 3)));
    next.flush();
    given_up.write(write(key(1, 0), Generation::SINGLE, v(1, 1)));
    let sent = given_up.try_send(0, &dax::wire::Request::Flush);
    assert!(sent.is_err() || given_up.is_hung_up());
    assert_eq!(given_up.acked, 0);
    let read = next.read(key(1, 0), Generation::MAX);
    assert_eq!(kind(&read), Some(ErrorKind::Corrupt), "{read:?}");
    next.write(write(key(1, 0), Generation::SINGLE, v(1, 2)));
    next.flush();
    assert_eq!(next.version(key(1, 0), Generation::SINGLE), Some(v(1, 2)));
}

#[test]
fn a_value_cut_short_is_damage() {
    assert!(decode_block(Generation::SINGLE, Bytes::from_static(b"x")).is_none());
}

/// A zone's directory in whose journal one of nine acknowledged blocks is damaged.
fn damaged_journal() -> TempDir {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    for seq in 1..=8 {
        c.write(write(key(1, seq), Generation::SINGLE, v(1, seq)));
    }
    c.flush();
    c.write(write(key(1, 0), Generation::SINGLE, v(1, 9)));
    c.flush();
    let TestZone { zone, dir, .. } = t;
    zone.stop().unwrap();
    drop(zone);
    damage(&dir, "jnl");
    dir
}

/// Flips a byte of a block in the zone's file with that extension.
fn damage(dir: &TempDir, extension: &str) {
    let files = std::fs::read_dir(dir.path().join("zone")).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    let path = files.find(|p| p.extension().is_some_and(|e| e == extension));
    let path = path.expect("there is one");
    let mut bytes = std::fs::read(&path).unwrap();
    let pattern = super::client::data(v(1, 5));
    let at = bytes.windows(256).position(|w| w == &pattern[1024..1280]);
    bytes[at.expect("the block is in it") + 7] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_damaged_journal_is_made_good_from_the_log() {
    let dir = damaged_journal();
    let (_zone, address) = open(&dir, config());
    let mut c = Client::volume(&address, "v");
    for seq in 1..=8 {
        let version = c.version(key(1, seq), Generation::SINGLE);
        assert_eq!(version, Some(v(1, seq)));
    }
}

#[test]
fn a_damaged_store_is_refused_with_what_to_do() {
    let dir = damaged_journal();
    damage(&dir, "log");
    let zone = dir.path().join("zone");
    let error = Zone::open(&zone, config()).err().unwrap();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("move the directory away"));
    let mut files = std::fs::read_dir(&zone).unwrap().map(|e| e.unwrap().path());
    let kept = files.any(|path| path.extension().is_some_and(|e| e == "cut"));
    assert!(kept, "what was cut off is left for whoever looks into it");
}

// hazard: ZONE-40
#[test]
fn a_directory_of_a_format_before_is_taken_up() {
    for before in ["understudy-zone 2", "understudy-zone 3"] {
        let dir = tempfile::tempdir().unwrap();
        {
            let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
            let mut batch = Batch::default();
            batch.put_meta(b"format", Bytes::from_static(before.as_bytes()));
            engine.commit(batch).unwrap();
            // The number of the commit is nowhere but in `meta`.
            engine.forget_number_in_blocks();
        }
        drop(Zone::open(dir.path(), config()).unwrap());
        let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
        let format = engine.meta(b"format").unwrap();
        assert_eq!(format.as_deref(), Some(&b"understudy-zone 4"[..]));
    }
}

#[test]
fn a_directory_of_another_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put_meta(b"format", Bytes::from_static(b"understudy-zone 9"));
        engine.commit(batch).unwrap();
    }
    let error = Zone::open(dir.path(), config()).err().unwrap();
    assert!(matches!(error, OpenError::Format { .. }), "{error:?}");
}

/// A record of the directory that a newer release had written was called damage, with the advice to throw the zone away.
// hazard: U3
#[test]
fn unknown_formats_are_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    drop(Zone::open(dir.path(), config()).unwrap());
    {
        let engine = DiskEngine::open(dir.path(), 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put_meta(b"runs", Bytes::from_static(b"{\"form\": 2}"));
        engine.commit(batch).unwrap();
    }
    let error = Zone::open(dir.path(), config()).err().unwrap();
    assert!(
        matches!(error, OpenError::NotUnderstood { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("newer") && !text.contains("move the directory away"),
        "{text}"
    );
}

/// A newer release's files were looked at with the rules of this one, which may cut off what they do not understand, before
/// anybody asked which format it has.
// hazard: U3
#[test]
fn a_directory_of_a_newer_format_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    drop(Zone::open(dir.path(), config()).unwrap());
    let (format, journal) = (dir.path().join("FORMAT"), dir.path().join("9.jnl"));
    assert_eq!(
        std::fs::read(&format).unwrap(),
        b"understudy-zone 4\n",
        "it is noted"
    );
    std::fs::write(&format, "understudy-zone 5\n").unwrap();
    std::fs::write(&journal, "of another kind").unwrap();
    let error = Zone::open(dir.path(), config()).err().unwrap();
    assert!(matches!(error, OpenError::Format { .. }), "{error:?}");
    assert!(error.to_string().contains("newer"), "{error}");
    assert_eq!(std::fs::read(&journal).unwrap(), b"of another kind");
}
