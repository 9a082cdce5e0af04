//! Writes that a replica refuses, for a while or for good, and what the writer makes of that.

use super::super::*;
use super::harness::*;
use crate::storage::{Difference, SyncScope};
use crate::wire::Base;

/// One bad sector of a zone kept every write of a block, all that was written after it, and each scrub waiting.
// hazard: D4
#[test]
fn a_write_that_a_replica_refuses_for_long_is_missed() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.pass(Time::from_millis(20));
    d.run();
    d.peers[2].bad.insert((key(1), SINGLE));
    d.write(1, SINGLE, 2);
    d.write(2, SINGLE, 7);
    d.wait_secs(1);
    assert_eq!(d.peers[2].newest(key(2), SINGLE).unwrap().data[0], 7);
    assert!(
        d.core.replicas()[2].pending_bytes > 0,
        "it is sent again for a while"
    );
    d.wait_secs(8);
    let status = d.core.replicas()[2].clone();
    assert_eq!((status.pending_bytes, status.missed_blocks), (0, 1));
    assert_eq!(d.peers[2].newest(key(1), SINGLE).unwrap().data[0], 1);
    // Nobody waits for what it does not take.
    let scrub = d.start(Call::Scrub(None));
    d.wait_secs(15);
    let scrubbed = d.result(scrub).expect("a scrub goes on with the others");
    assert!(matches!(scrubbed, Ok(Output::Scrubbed(_))));
    let difference = Difference {
        replica: ReplicaId(2),
        key: key(1),
        generation: SINGLE,
    };
    let mend = d.start(Call::Mend(vec![difference]));
    d.wait_secs(8);
    assert_eq!(d.result(mend).unwrap().unwrap(), Output::Unit);
    // It gets the block as soon as it takes it.
    d.peers[2].bad.clear();
    d.wait_secs(8);
    assert_eq!(d.peers[2].newest(key(1), SINGLE).unwrap().data[0], 2);
    assert_eq!(d.core.replicas()[2].missed_blocks, 0);
}

/// What only the zone that refuses it could make durable is not given up.
// hazard: D4
#[test]
fn a_refused_write_that_is_not_durable_is_kept() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    d.wait_secs(1);
    d.disconnect(1);
    d.peers[2].bad.insert((key(1), SINGLE));
    d.write(1, SINGLE, 2);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.wait_secs(20);
    assert!(d.result(sync).is_none(), "one zone has it");
    d.peers[2].bad.clear();
    d.wait_secs(2);
    assert_eq!(d.result(sync).unwrap().unwrap(), Output::Unit);
}

/// A bit flipped in the writer's memory: every zone refused the block as damaged, it was sent again for ever, and commits
/// hung, although the active was there and nobody took over.
// hazard: D5
#[test]
fn a_writer_whose_copy_of_a_write_has_changed_stops() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    assert!(d.core.flip_bit(0));
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    let error = d.result(sync).unwrap().unwrap_err();
    assert!(
        error.is_fenced() && error.to_string().contains("memory"),
        "{error}"
    );
    assert!(d.fenced);
    assert_eq!(d.peers[0].newest(key(1), SINGLE), None);
}

// hazard: D5
#[test]
fn blocks_changed_in_memory_are_not_read() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    assert!(d.core.flip_bit(0));
    let read = Call::Read {
        key: key(1),
        up_to: SINGLE,
    };
    let error = d.finish(read).unwrap_err();
    assert!(error.is_fenced(), "{error}");
    assert_eq!(d.core.read_at_once(key(1), SINGLE), None);
}

/// A block that was damaged on its way is sent again.
#[test]
fn a_write_that_arrives_damaged_and_is_sound_here_is_sent_again() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    for outbox in &mut d.outbox {
        for (_, request) in outbox {
            if let Request::Write(write) = request {
                write.checksum ^= 1;
            }
        }
    }
    d.settle();
    assert!(d.result(sync).is_none() && !d.fenced);
    d.wait_secs(1);
    assert_eq!(d.result(sync).unwrap().unwrap(), Output::Unit);
}

/// The whole was sent behind later writes, and the flush that somebody waited for went out with the next tick.
#[test]
fn a_whole_block_behind_a_refusal_is_flushed_at_once() {
    let mut d = Harness::owner();
    let is_flush = |request: &Request| matches!(request, Request::Flush);
    let contents = Contents {
        base: Some(Base {
            generation: SINGLE,
            bytes: 8,
        }),
        data: data(1),
    };
    d.core.write(key(1), SINGLE, contents).unwrap();
    d.start(Call::Sync(SyncScope::Volume));
    let first = std::mem::take(&mut d.outbox[0]);
    assert!(first.iter().any(|(_, request)| is_flush(request)));
    d.write(2, SINGLE, 2);
    d.core.send_lingering();
    d.collect();
    let later = std::mem::replace(&mut d.outbox[0], first);
    assert_eq!(later.len(), 1, "another write is on its way");
    d.deliver(0);
    assert_eq!(d.sent(0), 1, "it does not have what the block begins with");
    assert!(d.asked(0, is_flush));
}
