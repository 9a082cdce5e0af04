//! Who is sent its writes a tick later, and who never waits.

use super::super::*;
use super::harness::*;
use crate::storage::SyncScope;
use crate::wire::Base;
use crate::writer::differences::Contents;
use bytes::Bytes;

const TICK: Time = Time::from_millis(20);

/// Three replicas, two of which make a write durable; the third trails.
fn trailing() -> Harness {
    let mut d = Harness::owner();
    d.pass(TICK);
    d.run();
    d
}

#[test]
fn two_of_three_make_it_durable_and_the_lazy_one_gets_the_last_of_it_with_the_tick() {
    let mut d = trailing();
    for byte in 1..=5 {
        d.write(0, SINGLE, byte);
        let op = d.start(Call::Sync(SyncScope::Volume));
        assert_eq!([0, 1, 2].map(|z| d.sent(z)), [1, 1, 0]);
        d.deliver(0);
        d.deliver(1);
        assert!(d.result(op).is_some(), "two are enough");
    }
    assert_eq!(d.read(0, Generation::MAX), Some(5));
    d.pass(TICK);
    assert_eq!(d.sent(2), 1, "what was written over never leaves");
    d.run();
    let newest = d.peers[2].newest(key(0), SINGLE);
    assert_eq!(newest.unwrap().data[0], 5);
    assert_eq!(d.core.replicas()[2].pending_bytes, 0);
}

/// Writes a block that begins as ever and ends with `byte`s, as what follows on the write before.
fn grow(d: &mut Harness, byte: u8) {
    let base = Base {
        generation: SINGLE,
        bytes: 100,
    };
    let mut whole = vec![7; BLOCK as usize];
    whole[100..].fill(byte);
    let contents = Contents {
        base: Some(base),
        data: whole.into(),
    };
    d.core.write(key(0), SINGLE, contents).unwrap();
    d.collect();
}

// hazard: D2
#[test]
fn the_lazy_one_is_sent_the_whole_of_what_follows_on_a_write_that_was_left_out() {
    let mut d = trailing();
    d.core
        .write(key(0), SINGLE, Bytes::from(vec![7; BLOCK as usize]))
        .unwrap();
    d.run();
    d.pass(TICK);
    d.run();
    for byte in 1..=5 {
        grow(&mut d, byte);
        let op = d.start(Call::Sync(SyncScope::Volume));
        let whole = |request: &Request| matches!(request, Request::Write(w) if w.base.is_none());
        assert!(!d.asked(0, whole) && !d.asked(1, whole));
        d.deliver(0);
        d.deliver(1);
        assert!(d.result(op).is_some());
    }
    d.pass(TICK);
    d.run();
    let newest = d.peers[2].newest(key(0), SINGLE);
    assert_eq!(newest.unwrap().data[100], 5);
    assert_eq!(d.core.counters().bases_missed, 0, "it was not asked for");
    // Then it has what the others have.
    grow(&mut d, 6);
    d.pass(TICK);
    assert!(d.asked(2, |r| matches!(r, Request::Write(w) if w.base.is_some())));
    d.run();
    assert_eq!(d.core.counters().bases_missed, 0);
}

#[test]
fn the_lazy_one_is_needed_at_once_when_another_goes_down() {
    let mut d = trailing();
    d.write(0, SINGLE, 1);
    let op = d.start(Call::Sync(SyncScope::Volume));
    d.deliver(0);
    d.disconnect(1);
    assert_eq!(d.sent(2), 1);
    d.deliver(2);
    assert!(d.result(op).is_some());
    d.pass(TICK);
    d.write(0, SINGLE, 2);
    d.start(Call::Sync(SyncScope::Volume));
    assert_eq!(d.sent(2), 1, "nobody trails while one is away");
}

#[test]
fn replica_that_leaves_a_flush_unanswered_trails_instead() {
    let mut d = trailing();
    d.write(0, SINGLE, 1);
    let op = d.start(Call::Sync(SyncScope::Volume));
    d.deliver(0);
    d.pass(TICK);
    // The tick sends it to the lazy replica, long before anybody takes replica 1 for late.
    d.deliver(2);
    assert!(d.result(op).is_some());
    d.pass(TICK);
    assert_eq!(d.sent(1), 1);
    d.write(0, SINGLE, 2);
    let op = d.start(Call::Sync(SyncScope::Volume));
    assert_eq!(d.sent(1), 1, "it is not sent the second one yet");
    d.deliver(0);
    d.deliver(2);
    assert!(d.result(op).is_some());
}

/// Replica 1 leaves a flush unanswered for two ticks; then everything is delivered.
fn be_late(d: &mut Harness) {
    d.write(0, SINGLE, 1);
    d.start(Call::Sync(SyncScope::Volume));
    d.deliver(0);
    d.pass(TICK);
    d.deliver(2);
    d.pass(TICK);
    d.run();
}

/// True if replica 1 is one of those that everything waits for.
fn is_counted_on(d: &mut Harness) -> bool {
    d.write(0, SINGLE, 2);
    d.start(Call::Sync(SyncScope::Volume));
    let counted_on = d.sent(1) == 1;
    d.run();
    counted_on
}

/// Ticks until replica 1 is counted on again.
fn rest_ticks(d: &mut Harness) -> usize {
    (0..100)
        .find(|_| {
            d.pass(TICK);
            d.run();
            is_counted_on(d)
        })
        .expect("no rest is that long")
}

#[test]
fn a_slow_flush_is_soon_forgotten_and_a_slow_replica_is_not() {
    let mut d = trailing();
    be_late(&mut d);
    let first = rest_ticks(&mut d);
    assert!(first <= 5, "{first}");
    let again: Vec<usize> = (0..4)
        .map(|_| {
            be_late(&mut d);
            rest_ticks(&mut d)
        })
        .collect();
    assert!(again.is_sorted() && again[0] > first, "{again:?}");
    assert!((40..=50).contains(&again[3]), "a second at most: {again:?}");
    (0..100).for_each(|_| {
        d.pass(TICK);
        d.run();
    });
    be_late(&mut d);
    assert_eq!(
        rest_ticks(&mut d),
        first,
        "after a good second it is the first again"
    );
}

#[test]
fn much_does_not_wait() {
    let mut d = trailing();
    let blocks = (256 << 10) / u64::from(BLOCK);
    (1..blocks).for_each(|block| {
        d.write(block, SINGLE, 1);
    });
    assert_eq!(d.sent(2), 0);
    d.write(blocks, SINGLE, 1);
    assert_eq!(d.sent(2), blocks as usize);
}

#[test]
fn replicas_never_trail_where_every_one_counts() {
    let mut d = Harness::owner_with(VolumeSettings {
        sync_replicas: 3,
        ..VolumeSettings::default()
    });
    d.pass(TICK);
    d.run();
    d.write(0, SINGLE, 1);
    d.start(Call::Sync(SyncScope::Volume));
    assert_eq!([0, 1, 2].map(|z| d.sent(z)), [1, 1, 1]);
}
