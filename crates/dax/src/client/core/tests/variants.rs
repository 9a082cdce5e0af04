//! What the paper's variants wait for, and whom they ask (DAX 7.1).

use super::super::*;
use super::harness::{Harness, SINGLE, key};
use crate::ids::FileId;
use crate::storage::{Protocol, SyncScope};

fn owner(protocol: Protocol) -> Harness {
    Harness::owner_with(VolumeSettings {
        protocol,
        ..VolumeSettings::default()
    })
}

/// How many replicas must have a write before a sync completes.
fn copies_for_a_sync(protocol: Protocol) -> usize {
    let mut d = owner(protocol);
    (0..3).for_each(|r| d.disconnect(r));
    d.write(0, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::File(FileId(5))));
    for replica in 0..3 {
        d.connect(replica);
        d.run();
        if d.result(sync).is_some() {
            return usize::from(replica) + 1;
        }
    }
    panic!("it never ends");
}

#[test]
fn syncs_wait_for_as_many_copies_as_the_variant_says() {
    let copies = Protocol::ALL.map(copies_for_a_sync);
    assert_eq!(copies, [3, 2, 1, 2]);
}

/// How many replicas are asked for a block that the owner wrote and all have.
fn asked_for_a_read(protocol: Protocol) -> usize {
    let mut d = owner(protocol);
    d.write(0, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.run();
    let read = Call::Read {
        key: key(0),
        up_to: SINGLE,
    };
    d.start(read);
    let asked = d.outbox.iter().flatten();
    asked
        .filter(|(_, request)| matches!(request, Request::Read { .. }))
        .count()
}

#[test]
fn known_blocks_are_read_from_as_many_as_the_variant_says() {
    let asked = Protocol::ALL.map(asked_for_a_read);
    assert_eq!(asked, [1, 2, 1, 1]);
}

/// How many replicas are asked for a block of which the version list knows nothing.
fn asked_for_an_unknown_block(protocol: Protocol) -> usize {
    let mut d = owner(protocol);
    d.start(Call::Read {
        key: key(7),
        up_to: SINGLE,
    });
    let asked = d.outbox.iter().flatten();
    asked
        .filter(|(_, request)| matches!(request, Request::Read { .. }))
        .count()
}

#[test]
fn unknown_blocks_are_read_from_enough_to_meet_every_sync() {
    let asked = Protocol::ALL.map(asked_for_an_unknown_block);
    assert_eq!(asked, [1, 2, 3, 2]);
}

#[test]
fn stale_answers_are_retried_and_escalated_and_counted() {
    let mut d = owner(Protocol::StrongOptimistic);
    d.write(0, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.run();
    // The nearest has lost the write behind everybody's back.
    d.peers[0].blocks.clear();
    assert_eq!(d.read(0, SINGLE), Some(1));
    let counters = d.core.counters();
    assert_eq!((counters.reads_stale, counters.reads_escalated), (1, 1));
    assert_eq!(counters.reads_one, 0);
}
