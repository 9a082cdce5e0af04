//! Writes wait until somebody needs them.

use super::super::*;
use super::harness::*;
use crate::storage::SyncScope;

const TICK: Time = Time::from_millis(20);

fn sent(d: &Harness) -> [usize; 3] {
    [0, 1, 2].map(|replica| d.sent(replica))
}

#[test]
fn a_write_goes_out_with_the_flush_that_needs_it() {
    let mut d = Harness::owner();
    (0..3).for_each(|block| {
        d.write(block, SINGLE, 1);
    });
    assert_eq!(sent(&d), [0; 3]);
    d.start(Call::Sync(SyncScope::Volume));
    assert_eq!(sent(&d), [3; 3]);
    d.write(3, SINGLE, 1);
    assert_eq!(sent(&d), [3; 3], "nobody needs this one");
    let flushes = |(_, request): &&(u64, Request)| matches!(request, Request::Flush);
    let flushed = |o: &Vec<(u64, Request)>| o.iter().filter(flushes).count();
    assert_eq!(d.outbox.iter().map(flushed).sum::<usize>(), 3);
}

#[test]
fn needed_writes_continue_as_soon_as_the_window_has_room() {
    let mut d = Harness::owner();
    d.core.distort(None, 2 * BLOCK as usize);
    (0..5).for_each(|block| {
        d.write(block, SINGLE, 1);
    });
    let op = d.start(Call::Sync(SyncScope::Volume));
    assert_eq!(sent(&d), [2; 3]);
    d.settle();
    assert!(d.result(op).is_some());
}

#[test]
fn a_write_that_nobody_needs_goes_out_with_the_tick() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.pass(TICK);
    assert_eq!(sent(&d), [1; 3]);
}

#[test]
fn much_does_not_wait() {
    let mut d = Harness::owner();
    let blocks = (128 << 10) / u64::from(BLOCK);
    (1..blocks).for_each(|block| {
        d.write(block, SINGLE, 1);
    });
    assert_eq!(sent(&d), [0; 3]);
    d.write(blocks, SINGLE, 1);
    assert_eq!(sent(&d), [blocks as usize; 3]);
}

#[test]
fn awaited_writes_of_a_broken_connection_are_sent_again_at_once() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    let op = d.start(Call::Sync(SyncScope::Volume));
    d.write(1, SINGLE, 1);
    d.disconnect(0);
    d.disconnect(1);
    d.connect(0);
    assert_eq!(d.sent(0), 2);
    d.deliver(0);
    d.deliver(2);
    assert!(d.result(op).is_some());
}

#[test]
fn unawaited_writes_wait_on_a_new_connection_too() {
    let mut d = Harness::owner();
    d.write(0, SINGLE, 1);
    d.disconnect(0);
    d.connect(0);
    assert_eq!(d.sent(0), 0);
    d.pass(TICK);
    assert_eq!(d.sent(0), 1);
}

/// Replica 2 is back, and misses much.
fn back_with_much_missing() -> Harness {
    let mut d = Harness::owner();
    d.write_without(2);
    d.connect(2);
    d
}

#[test]
fn repairs_go_on_while_writes_linger() {
    let mut d = back_with_much_missing();
    d.core.send_lingering();
    d.collect();
    let missed = d.core.replicas()[2].missed_blocks;
    d.write(200, SINGLE, 1);
    d.settle();
    assert!(d.core.replicas()[2].missed_blocks < missed);
    assert!(
        d.peers[2].newest(key(200), SINGLE).is_none(),
        "it still waits"
    );
}

/// Each repair that was under way when its connection broke was once counted as pending for ever, so that in the
/// end nothing lingered any more.
#[test]
fn a_repair_that_is_cut_off_is_pending_no_more() {
    let mut d = back_with_much_missing();
    d.pass(TICK);
    (0..2).for_each(|replica| {
        d.deliver(replica);
    });
    assert!(d.sent(2) > 0, "repairs are under way");
    d.disconnect(2);
    d.connect(2);
    while d.core.replicas()[2].missed_blocks > 0 {
        d.pass(TICK);
        d.run();
    }
    assert_eq!(d.core.replicas()[2].pending_bytes, 0);
}
