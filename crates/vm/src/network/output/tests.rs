//! Output that waits, and output that does not.

use super::super::segment::{ACK, end};
use super::*;

pub(super) const PORT: u16 = 5432;
pub(super) const LATER: Duration = Duration::from_secs(3600);

pub(super) fn says(seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (end(1, PORT), end(2, 40_000));
    Segment {
        from,
        to,
        seq,
        ack: 500,
        flags,
        payload,
    }
    .build()
}

pub(super) const BEGIN: &[u8] = b"C\0\0\0\x0aBEGIN\0Z\0\0\0\x05T";
pub(super) const COMMIT: &[u8] = b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I";
pub(super) const READY: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

/// A connection with a transaction, all of it released.
pub(super) fn connected() -> (Output, u32) {
    let mut output = Output::new(Protection::Commits, PORT);
    output.hold();
    assert_eq!(output.leaves(says(99, SYN | ACK, b"")), None);
    assert_eq!(output.leaves(says(100, ACK, READY)), None);
    output.made(Number(1));
    assert_eq!(output.release(Number(1), LATER).len(), 2);
    (output, 100 + READY.len() as u32)
}

#[test]
fn everything_waits_for_its_checkpoint() {
    let mut output = Output::new(Protection::Everything, PORT);
    output.hold();
    let frame = says(100, ACK, b"");
    assert_eq!(output.leaves(frame.clone()), None);
    output.made(Number(1));
    assert_eq!(output.leaves(says(100, ACK, BEGIN)), None);
    assert_eq!(output.release(Number(1), LATER), [frame]);
    assert_eq!(output.open().len(), 1);
    assert!(output.leaves(says(100, ACK, b"")).is_some());
}

#[test]
fn without_protection_nothing_waits_and_connections_are_known() {
    let mut output = Output::new(Protection::Nothing, PORT);
    output.hold();
    assert!(output.leaves(says(99, SYN | ACK, b"")).is_some());
    assert!(output.leaves(says(100, ACK, READY)).is_some());
    assert_eq!(output.made(Number(1)).len(), 1);
}

#[test]
fn with_commit_protection_outcomes_wait_and_the_rest_stays_in_order() {
    let (mut output, mut seq) = connected();
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
    // Once more: it may be what waits.
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
    output.made(Number(2));
    output.release(Number(2), LATER);
    seq += BEGIN.len() as u32;
    assert!(output.leaves(says(seq, ACK, COMMIT)).is_none());
    seq += COMMIT.len() as u32;
    assert!(
        output.leaves(says(seq, ACK, BEGIN)).is_none(),
        "behind what waits"
    );
    output.made(Number(3));
    assert_eq!(output.release(Number(2), LATER).len(), 0);
    assert_eq!(output.release(Number(3), LATER).len(), 2);
    seq += BEGIN.len() as u32;
    assert!(output.leaves(says(seq, ACK, b"")).is_some());
}

// hazard: VM-16
#[test]
fn connections_that_have_ended_are_forgotten() {
    let mut output = Output::new(Protection::Commits, PORT);
    let segment = |port, flags| Segment {
        from: end(1, PORT),
        to: end(2, port),
        seq: 7,
        ack: 500,
        flags,
        payload: &[],
    };
    for port in 1..=1000 {
        output.leaves(segment(port, SYN | ACK).build());
        assert_eq!(output.made(Number(u64::from(port))).len(), 1);
        output.leaves(segment(port, FIN | ACK).build());
    }
    assert_eq!(output.flows.len(), ENDED_KEPT);
    // One whose client goes without a word, and one with a number that was used before.
    output.leaves(segment(1000, SYN | ACK).build());
    output.leaves(segment(2000, SYN | ACK).build());
    assert_eq!(output.made(Number(2000)).len(), 2);
    let reset = Segment {
        from: end(2, 2000),
        to: end(1, PORT),
        ..segment(0, RST)
    };
    output.comes(&reset.build());
    assert_eq!(output.made(Number(2001)).len(), 1);
}

/// A flood of requests for connections that nobody completed made the list of connections longer than a packet may be, and no standby
/// could be had any more.
// hazard: VM-25
#[test]
fn of_too_many_connections_those_that_nobody_completed_go_first() {
    let mut output = Output::new(Protection::Commits, PORT);
    let segment = |client, port, flags| Segment {
        from: end(1, PORT),
        to: end(client, port),
        seq: 7,
        ack: 500,
        flags,
        payload: &[],
    };
    for port in 1..=100 {
        output.leaves(segment(2, port, SYN | ACK).build());
        output.leaves(segment(2, port, ACK).build());
    }
    for port in 1..=30_000 {
        output.leaves(segment(3, port, SYN | ACK).build());
    }
    let flows = output.made(Number(1));
    assert!(flows.len() <= FLOWS_KEPT);
    let known = flows
        .iter()
        .filter(|flow| flow.client == end(2, flow.client.port));
    assert_eq!(known.count(), 100);
}

// hazard: VM-26
#[test]
fn frames_that_are_too_many_are_lost_like_in_any_queue() {
    let mut output = Output::new(Protection::Everything, PORT);
    output.hold();
    let frame = vec![0; 1 << 20];
    for _ in 0..100 {
        assert_eq!(output.leaves(frame.clone()), None);
    }
    assert_eq!((output.waiting(), output.lost()), (64, 36));
    output.made(Number(1));
    assert_eq!(output.release(Number(1), LATER).len(), 64);
    assert_eq!(output.leaves(frame), None);
    assert_eq!((output.waiting(), output.lost()), (1, 36));
}

/// A host that had lost its standby and the zones went on answering: to who asked for the machine's address, and within transactions.
/// Its successor had the same address.
// hazard: VM-22
#[test]
fn a_host_that_may_have_a_successor_says_nothing() {
    let (mut output, seq) = connected();
    let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    assert!(output.leaves(arp.clone()).is_some());
    output.hold_all();
    assert!(output.leaves(arp.clone()).is_none());
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
    assert_eq!(output.open().len(), 2);
    assert!(output.leaves(arp).is_some());
}

// hazard: VM-17
#[test]
fn protection_changes_with_a_checkpoint() {
    let (mut output, mut seq) = connected();
    output.protect(Protection::Everything);
    // Until then nothing has changed.
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
    seq += BEGIN.len() as u32;
    assert!(output.made(Number(2)).iter().all(|flow| flow.waits));
    assert!(output.leaves(says(seq, ACK, b"")).is_none());
    output.protect(Protection::Commits);
    assert!(output.made(Number(3)).iter().all(|flow| !flow.waits));
    // The connection was followed meanwhile, and what waits goes first.
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
    assert_eq!(output.release(Number(3), LATER).len(), 1);
    output.made(Number(4));
    assert_eq!(output.release(Number(4), LATER).len(), 1);
    seq += BEGIN.len() as u32;
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
    output.protect(Protection::Nothing);
    seq += BEGIN.len() as u32;
    output.made(Number(5));
    assert!(output.leaves(says(seq, ACK, COMMIT)).is_some());
    output.protect(Protection::Everything);
    output.made(Number(6));
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
}

#[test]
fn protection_changes_at_once_if_no_checkpoints_are_made() {
    let mut output = Output::new(Protection::Everything, PORT);
    output.open();
    output.protect(Protection::Nothing);
    output.hold();
    assert!(output.leaves(says(1, ACK, b"")).is_some());
}

/// A host that was stopped for longer than its standby waits woke up, and said what its machine had to say, beside its successor.
// hazard: VM-33
#[test]
fn a_host_that_stood_still_for_too_long_says_nothing() {
    let (mut output, mut seq) = connected();
    let second = Duration::from_secs(1);
    output.made(Number(2));
    output.release(Number(2), second);
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_some());
    seq += BEGIN.len() as u32;
    assert!(output.leaves(says(seq, ACK, COMMIT)).is_none());
    output.made(Number(3));
    output.at(second);
    seq += COMMIT.len() as u32;
    assert!(output.leaves(says(seq, ACK, BEGIN)).is_none());
    let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    assert!(output.leaves(arp).is_none());
    // What its standby said before the host stood still.
    assert!(output.release(Number(3), second).is_empty());
    // It has not taken over, and says so.
    output.made(Number(4));
    assert_eq!(output.release(Number(4), 2 * second).len(), 3);
    output.at(2 * second);
    assert!(output.leaves(says(seq, ACK, b"")).is_none());
    // There is none any more.
    assert_eq!(output.open().len(), 1);
    assert!(output.leaves(says(seq, ACK, b"")).is_some());
}
