//! Writing, syncing and reading, one situation at a time.

use super::super::*;
use super::harness::*;
use crate::ids::FileId;
use crate::storage::SyncScope;

#[test]
fn a_sync_needs_k_replicas_and_says_flush() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    let op = d.start(Call::Sync(SyncScope::Volume));
    assert!(
        d.outbox
            .iter()
            .all(|o| matches!(o.last(), Some((_, Request::Flush))))
    );
    d.deliver(2);
    assert!(d.result(op).is_none(), "one of three is too few");
    d.deliver(0);
    assert_eq!(d.result(op).unwrap().unwrap(), Output::Unit);
    assert_eq!(d.core.replicas()[1].pending_bytes, u64::from(BLOCK));
    d.deliver(1);
    assert_eq!(d.core.replicas()[1].pending_bytes, 0);
}

#[test]
fn a_sync_covers_what_was_written_before_it_and_no_more() {
    let mut d = Harness::owner();
    let version = d.write(0, SINGLE, 1);
    let upto = d.start(Call::Sync(SyncScope::FileUpTo(FileId(5), version)));
    let other = d.start(Call::Sync(SyncScope::File(FileId(6))));
    assert!(d.result(other).is_some(), "nothing of that file is pending");
    (0..2).for_each(|z| {
        d.deliver(z);
    });
    d.write(1, SINGLE, 2);
    assert!(d.result(upto).is_some());
    let all = d.start(Call::Sync(SyncScope::Volume));
    assert!(d.result(all).is_none());
    d.run();
    assert!(d.result(all).is_some());
}

#[test]
fn pending_blocks_are_read_from_memory_and_known_ones_from_one_zone() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    assert_eq!(d.read(0, Generation::MAX), Some(1));
    assert_eq!(d.core.counters().reads_pending, 1);
    d.run();
    let op = d.start(Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    });
    assert_eq!(d.outbox.iter().map(Vec::len).sum::<usize>(), 1);
    d.run();
    assert_eq!(byte_of(d.result(op).unwrap()), Some(1));
    assert_eq!(d.core.counters().reads_one, 1);
}

#[test]
fn a_stale_answer_is_retried_elsewhere() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.write(0, SINGLE, 2);
    d.run();
    // The nearest replica has lost its mind: it shows the version before.
    let old = d.peers[0].blocks[&(key(0), SINGLE)].clone();
    let version = Version {
        seq: 1,
        ..old.version
    };
    let block = crate::wire::StoredBlock::new(key(0), SINGLE, version, data(1));
    d.peers[0].blocks.insert((key(0), SINGLE), block);
    assert_eq!(d.read(0, Generation::MAX), Some(2));
    assert_eq!(d.core.counters().reads_stale, 1);
}

/// A client that owns nothing, in front of the replicas of one that wrote 1 and 2 in a generation.
fn listed() -> (Harness, Generation, Version) {
    let mut d = Harness::owner();
    let generation = Generation {
        epoch: Epoch(1),
        number: 1,
    };
    d.write(0, generation, 1);
    d.run();
    let newest = d.write(0, generation, 2);
    d.run();
    let mut reader = Harness::new(3, 2);
    std::mem::swap(&mut reader.peers, &mut d.peers);
    reader.run();
    (reader, generation, newest)
}

/// The replica has missed the last write of the generation.
fn make_stale(d: &mut Harness, replica: usize, generation: Generation) {
    let newest = d.peers[replica].blocks[&(key(0), generation)].clone();
    let version = Version {
        seq: newest.version.seq - 1,
        ..newest.version
    };
    let old = crate::wire::StoredBlock::new(key(0), generation, version, data(1));
    d.peers[replica].blocks.insert((key(0), generation), old);
}

fn expect(up_to: Generation, version: Version) -> Call {
    Call::ReadExpected {
        key: key(0),
        up_to,
        version,
    }
}

#[test]
fn a_listed_version_is_read_from_one_replica() {
    let (mut d, generation, newest) = listed();
    let op = d.start(expect(generation, newest));
    assert_eq!(d.outbox.iter().map(Vec::len).sum::<usize>(), 1);
    d.run();
    assert_eq!(byte_of(d.result(op).unwrap()), Some(2));
    assert_eq!(d.core.counters().reads_one, 1);
    assert_eq!(d.core.counters().reads_quorum, 0);
}

#[test]
fn an_earlier_version_of_the_listed_generation_is_stale() {
    for replica in 0..3 {
        let (mut d, generation, newest) = listed();
        make_stale(&mut d, replica, generation);
        assert_eq!(byte_of(d.finish(expect(generation, newest))), Some(2));
        let counters = d.core.counters();
        assert_eq!(counters.reads_stale, counters.reads_escalated);
        assert_eq!(counters.reads_one + counters.reads_escalated, 1);
    }
}

#[test]
fn a_listed_version_is_found_past_lost_and_damaged_replicas() {
    let (mut d, generation, newest) = listed();
    make_stale(&mut d, 0, generation);
    d.disconnect(1);
    assert_eq!(byte_of(d.finish(expect(generation, newest))), Some(2));
    d.connect(1);
    d.peers[2].damaged.push(key(0));
    assert_eq!(byte_of(d.finish(expect(generation, newest))), Some(2));
    // Two of three have lost it: the third is asked, and if it is away there is nobody to wait for.
    make_stale(&mut d, 2, generation);
    d.peers[2].damaged.clear();
    assert_eq!(byte_of(d.finish(expect(generation, newest))), Some(2));
    d.disconnect(1);
    let error = d.finish(expect(generation, newest)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_variant_without_a_version_list_believes_no_listed_version() {
    let mut d = Harness::with(VolumeSettings {
        protocol: crate::storage::Protocol::Quorum,
        ..VolumeSettings::default()
    });
    let (mut from, generation, newest) = listed();
    std::mem::swap(&mut from.peers, &mut d.peers);
    assert_eq!(byte_of(d.finish(expect(generation, newest))), Some(2));
    assert_eq!(d.core.counters().reads_quorum, 1);
}

#[test]
fn a_version_that_every_replica_lost_is_an_error() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.peers.iter_mut().for_each(|p| p.blocks.clear());
    let read = Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    };
    let error = d.finish(read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn damaged_replicas_are_passed_over_and_too_many_are_an_error() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.peers[0].damaged.push(key(0));
    assert_eq!(d.read(0, Generation::MAX), Some(1), "known version");
    let mut reader = Harness::new(3, 2);
    std::mem::swap(&mut reader.peers, &mut d.peers);
    assert_eq!(reader.read(0, Generation::MAX), Some(1), "quorum");
    reader.peers[1].damaged.push(key(0));
    let read = Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    };
    let error = reader.finish(read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn reads_as_of_an_image_leave_the_list_alone() {
    let mut d = Harness::owner();
    let g = |number| Generation {
        epoch: Epoch(1),
        number,
    };
    d.write(0, g(1), 1);
    d.write(0, g(3), 3);
    assert_eq!(d.read(0, g(2)), Some(1), "pending of that image");
    d.run();
    assert_eq!(d.read(0, g(2)), Some(1));
    assert_eq!(d.core.counters().reads_quorum, 1);
    assert_eq!(d.read(0, Generation::MAX), Some(3));
    assert_eq!(d.core.counters().reads_one, 1);
}

#[test]
fn a_quorum_read_asks_another_replica_when_one_is_slow() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.run();
    let mut reader = Harness::new(3, 2);
    std::mem::swap(&mut reader.peers, &mut d.peers);
    reader.run();
    let op = reader.start(Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    });
    let asked: Vec<u8> = (0..3)
        .filter(|z| !reader.outbox[usize::from(*z)].is_empty())
        .collect();
    assert_eq!(asked.len(), 2);
    reader.deliver(asked[0]);
    reader.pass(Time::from_millis(1100));
    let third = (0..3).find(|z| !asked.contains(z)).unwrap();
    reader.deliver(third);
    assert_eq!(byte_of(reader.result(op).unwrap()), Some(1));
}

#[test]
fn reads_and_syncs_wait_for_replicas_and_go_on() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    (0..3).for_each(|z| d.disconnect(z));
    d.write(0, SINGLE, 2);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.pass(Time::from_secs(100));
    assert!(d.result(sync).is_none());
    d.connect(1);
    d.run();
    assert!(d.result(sync).is_none());
    d.connect(2);
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
    assert_eq!(d.peers[2].newest(key(0), SINGLE).unwrap().data[0], 2);
    let reader = Harness::new(3, 2);
    assert!(
        reader
            .outbox
            .iter()
            .flatten()
            .all(|(_, r)| matches!(r, Request::Ping))
    );
}

#[test]
fn missed_blocks_are_sent_when_a_replica_returns() {
    let mut d = Harness::owner();
    d.disconnect(2);
    for block in 0..5 {
        d.write(block, SINGLE, block as u8);
    }
    d.write(0, SINGLE, 100);
    d.run();
    assert!(d.peers[2].blocks.is_empty());
    d.connect(2);
    d.run();
    assert_eq!(d.peers[2].blocks, d.peers[0].blocks);
    assert_eq!(d.core.replicas()[2].pending_bytes, 0);
}

#[test]
fn memory_is_bounded_while_a_replica_is_away() {
    let mut d = Harness::owner();
    d.write_without(2);
    assert!(d.core.replicas()[2].pending_bytes <= 16 * u64::from(BLOCK));
    d.connect(2);
    assert!(d.core.replicas()[2].missed_blocks > 50, "they are counted");
    d.run();
    while d.peers[2].blocks.len() < 100 {
        d.pass(Time::from_millis(20));
        d.run();
    }
    assert_eq!(d.peers[2].blocks, d.peers[0].blocks, "and made good");
    assert_eq!(d.core.replicas()[2].missed_blocks, 0);
}

#[test]
fn writers_wait_while_too_much_is_unsynced() {
    let mut d = Harness::owner();
    (1..3).for_each(|z| d.disconnect(z));
    for block in 0..16 {
        d.write(block, SINGLE, 1);
    }
    let room = d.start(Call::Room(BLOCK as usize));
    d.run();
    assert!(d.result(room).is_none(), "one replica cannot sync it");
    d.connect(1);
    d.run();
    assert!(d.result(room).unwrap().is_ok());
}

#[test]
fn a_full_replica_is_tried_again() {
    let mut d = Harness::owner();
    d.peers[0].full = true;
    d.peers[1].full = true;
    d.write(0, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.result(sync).is_none());
    assert_eq!(d.core.replicas()[0].trouble.as_deref(), Some("Full"));
    d.peers[0].full = false;
    d.pass(Time::from_secs(1));
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
    assert_eq!(d.core.replicas()[0].trouble, None);
}

/// A full zone answers each write, so it was never one that is not waited for. What it lacked filled the writer's memory, and everybody
/// waited for room until that zone had some.
// hazard: ZONE-23
#[test]
fn writers_go_on_while_one_replica_is_full() {
    let mut d = Harness::owner();
    d.peers[2].full = true;
    for block in 0..100 {
        let room = d.start(Call::Room(BLOCK as usize));
        while d.result(room).is_none() {
            assert!(d.now < Time::from_secs(60), "block {block} waits");
            d.pass(Time::from_millis(500));
            d.run();
        }
        d.write(block, SINGLE, 1);
        d.run();
    }
    assert!(d.core.replicas()[2].pending_bytes <= 16 * u64::from(BLOCK));
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.peers[2].full = false;
    while d.peers[2].blocks.len() < 100 {
        d.pass(Time::from_millis(500));
        d.run();
    }
    assert_eq!(d.peers[2].blocks, d.peers[0].blocks);
}

/// The refused write rests while the one after it arrives: it is pending, but not the newest.
#[test]
fn a_refused_write_is_not_read_for_the_one_that_followed() {
    let mut d = Harness::owner();
    let g = |number| Generation {
        epoch: Epoch(1),
        number,
    };
    d.peers[0].full = true;
    d.write(0, SINGLE, 1);
    d.write(1, g(1), 1);
    d.run();
    d.peers[0].full = false;
    d.write(0, SINGLE, 2);
    d.write(1, g(2), 2);
    d.run();
    assert_eq!(byte_of(d.finish(Call::Promote(key(0)))), Some(2));
    d.write(1, g(3), 3);
    assert_eq!(d.read(1, g(2)), Some(2));
    assert_eq!(d.read(1, g(1)), Some(1));
}
