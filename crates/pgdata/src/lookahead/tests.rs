//! The look-ahead against logs made here, and one that a server wrote.

use proptest::prelude::*;

use super::*;
use crate::relation::Relation;
use crate::timeline::TimelineId;
use crate::wal::testing::LogWriter;

const HEAP: u8 = 10;
const ALL: Limits = Limits {
    window_bytes: 64 << 20,
    waiting_max: 1 << 20,
    unused_max: usize::MAX,
    recent_blocks: 0,
};

/// What a block reference's header says besides its block.
#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    fork: u8,
    will_init: bool,
    same_relation: bool,
    /// The flags of an image, as of version 15.
    image: Option<u8>,
}

/// A block reference as log records hold it.
fn reference(id: u8, number: u32, block: u32, flags: Flags) -> Vec<u8> {
    let mut fork = flags.fork;
    fork |= if flags.image.is_some() { 0x10 } else { 0 };
    fork |= if flags.will_init { 0x40 } else { 0 };
    fork |= if flags.same_relation { 0x80 } else { 0 };
    let mut bytes = vec![id, fork, 0, 0];
    if let Some(image) = flags.image {
        bytes.extend([0, 0, 0, 0, image]);
        if image & 0x1C != 0 && image & 0x01 != 0 {
            bytes.extend([9, 0]);
        }
    }
    if !flags.same_relation {
        for word in [1663, 5, number] {
            bytes.extend(u32::to_le_bytes(word));
        }
    }
    bytes.extend(block.to_le_bytes());
    bytes
}

fn plain(number: u32, block: u32) -> Vec<u8> {
    reference(0, number, block, Flags::default())
}

fn size() -> SegmentSize {
    SegmentSize::new(1 << 20).unwrap()
}

fn empty_log() -> LogWriter {
    LogWriter::new(size(), Lsn(size().bytes()), TimelineId(1))
}

/// A record for each of so many blocks.
fn log_of(blocks: u32) -> LogWriter {
    let mut log = empty_log();
    for block in 0..blocks {
        log.append_record(HEAP, 0, &plain(7, block), b"some words");
    }
    log
}

fn named(number: u32, fork: Fork, block: u32) -> RelationBlock {
    let relation = Relation {
        tablespace: 1663,
        database: 5,
        number,
    };
    RelationBlock {
        relation,
        fork,
        block,
    }
}

fn end_of(log: &LogWriter) -> Lsn {
    Lsn(log.start().0 + log.bytes().len() as u64)
}

fn slice(log: &LogWriter, range: Range<Lsn>) -> &[u8] {
    let at = |lsn: Lsn| (lsn.bytes_since(log.start()) as usize).min(log.bytes().len());
    &log.bytes()[at(range.start)..at(range.end)]
}

/// Everything that is wanted of a log, with redo at its start; the last bytes pass by.
fn all(log: &LogWriter, limits: Limits) -> Vec<RelationBlock> {
    let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), limits);
    ahead.give(log.start(), log.bytes());
    drain(&mut ahead)
}

fn drain(ahead: &mut Lookahead) -> Vec<RelationBlock> {
    std::iter::from_fn(|| ahead.pop())
        .map(|wanted| wanted.block)
        .collect()
}

#[test]
fn blocks_that_redo_does_not_read_are_not_wanted() {
    let flags = |flags: Flags, expected: bool| {
        let mut log = empty_log();
        log.append_record(HEAP, 0, &reference(0, 7, 3, flags), b"x");
        let found = all(&log, ALL);
        let fork = Fork::from_number(flags.fork).unwrap();
        let wanted = if expected {
            vec![named(7, fork, 3)]
        } else {
            vec![]
        };
        assert_eq!(found, wanted, "{flags:?}");
    };
    let none = Flags::default();
    for fork in 0..3 {
        flags(Flags { fork, ..none }, true);
    }
    flags(Flags { fork: 3, ..none }, false);
    flags(
        Flags {
            will_init: true,
            ..none
        },
        false,
    );
    // Not applied, applied, with a hole, compressed with a hole, compressed without.
    for (image, expected) in [
        (0x00, true),
        (0x02, false),
        (0x03, false),
        (0x07, false),
        (0x06, false),
    ] {
        let image = Some(image);
        flags(Flags { image, ..none }, expected);
        flags(
            Flags {
                image,
                will_init: true,
                ..none
            },
            false,
        );
    }
}

#[test]
fn pages_logged_whole_and_hints_are_not_wanted() {
    for info in [0xA0, 0xB0] {
        let mut log = empty_log();
        log.append_record(0, info, &plain(7, 3), b"");
        assert_eq!(all(&log, ALL), []);
    }
}

#[test]
fn a_record_may_name_several_blocks_of_the_same_relation() {
    let mut log = empty_log();
    let same = Flags {
        same_relation: true,
        ..Flags::default()
    };
    let mut blocks = plain(7, 1);
    blocks.extend(reference(1, 0, 2, same));
    blocks.extend(reference(
        2,
        0,
        3,
        Flags {
            will_init: true,
            ..same
        },
    ));
    blocks.extend(reference(3, 8, 4, Flags::default()));
    blocks.extend(reference(4, 0, 5, Flags { fork: 2, ..same }));
    log.append_record(HEAP, 0, &blocks, b"x");
    let expected = [
        named(7, Fork::Main, 1),
        named(7, Fork::Main, 2),
        named(8, Fork::Main, 4),
        named(8, Fork::Visibility, 5),
    ];
    assert_eq!(all(&log, ALL), expected);
}

#[test]
fn a_record_is_taken_when_all_of_it_is_there() {
    let mut log = empty_log();
    log.append(LOG_PAGE_BYTES - 300);
    log.append_record(HEAP, 0, &plain(7, 1), &[9; 20_000]);
    let (start, end) = (log.start(), log.bytes().len());
    let mut ahead = Lookahead::new(size(), Lsn(start.0 + 40), ALL);
    for at in (0..end).step_by(100) {
        let to = (at + 100).min(end);
        ahead.give(Lsn(start.0 + at as u64), &log.bytes()[at..to]);
        assert_eq!(ahead.pop().is_some(), to == end, "{to} of {end} bytes");
    }
}

#[test]
fn blocks_that_redo_has_passed_are_not_returned() {
    let mut log = empty_log();
    for block in 0..5000 {
        log.append_record(HEAP, 0, &plain(7, block), b"x");
    }
    let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), ALL);
    ahead.give(log.start(), log.bytes());
    let redo = Lsn(log.start().0 + 3 * PAGE);
    ahead.redo_at(redo);
    let ends: Vec<Lsn> = log.records().iter().map(|(_, end)| *end).collect();
    let passed = ends.iter().filter(|end| **end <= redo).count();
    assert!(passed > 100);
    let first = ahead.pop().unwrap();
    assert_eq!(first.block.block as usize, passed);
    assert_eq!(first.before, ends[passed]);
    assert_eq!(ahead.decoded().late, passed as u64);
}

#[test]
fn a_block_that_redo_read_lately_is_not_wanted_again() {
    let mut log = empty_log();
    for block in [1, 2, 1, 2, 3, 1] {
        log.append_record(HEAP, 0, &plain(7, block), b"x");
    }
    let limits = Limits {
        recent_blocks: 100,
        ..ALL
    };
    let found: Vec<u32> = all(&log, limits).iter().map(|block| block.block).collect();
    assert_eq!(found, [1, 2, 3]);
}

/// After a move of the base redo once waited for every block that had been in the overlay when its
/// reference was looked at, one after the other.
#[test]
fn blocks_ahead_of_redo_are_returned_again_after_a_move() {
    let mut log = empty_log();
    for block in 1..=4 {
        log.append_record(HEAP, 0, &plain(100, block), b"x");
    }
    let limits = Limits {
        recent_blocks: 10,
        ..ALL
    };
    let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), limits);
    ahead.give(log.start(), log.bytes());
    let first = ahead.pop().unwrap();
    let second = ahead.pop().unwrap();
    ahead.redo_at(first.before);
    ahead.look_again();
    let block = |block| named(100, Fork::Main, block);
    assert_eq!(drain(&mut ahead), [2, 3, 4].map(block));
    ahead.redo_at(second.before);
    ahead.look_again();
    assert_eq!(drain(&mut ahead), [3, 4].map(block));
}

/// Reads as wanted, with redo following in steps of a page.
#[test]
fn lookahead_stays_within_its_window_and_reaches_the_end() {
    let log = log_of(20_000);
    let limits = Limits {
        window_bytes: 256 << 10,
        waiting_max: 2000,
        ..ALL
    };
    let replay_limit = end_of(&log);
    let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), limits);
    let (mut redo, mut found) = (log.start(), 0);
    while redo < replay_limit {
        while let Some(range) = ahead.wants(replay_limit) {
            assert!(range.end.0 <= redo.0 + limits.window_bytes, "{range:?}");
            assert_eq!(
                size().number(range.start),
                size().number(Lsn(range.end.0 - 1))
            );
            ahead.give(range.start, slice(&log, range));
        }
        let popped = drain(&mut ahead).len();
        assert!(popped < limits.waiting_max + (CHUNK_BYTES / 40) as usize);
        found += popped;
        ahead.redo_at(redo);
        redo = Lsn(redo.0 + PAGE);
    }
    assert_eq!(ahead.decoded().late, 0);
    assert_eq!(ahead.wants(replay_limit), None);
    assert_eq!(ahead.decoded_to(), log.records().last().unwrap().1);
    assert_eq!(found, 20_000);
}

#[test]
fn the_tail_is_left_to_what_passes_by() {
    let log = log_of(20_000);
    let (start, end) = (log.start(), end_of(&log));
    let first = start..Lsn(start.0 + PAGE);
    let mut ahead = Lookahead::new(size(), Lsn(start.0 + 40), ALL);
    assert_eq!(ahead.wants(first.end), Some(first.clone()), "nobody is fed");
    ahead.pass(start, slice(&log, first.clone()));
    assert_eq!(ahead.wants(Lsn(start.0 + TAIL_BYTES)), None);
    while let Some(range) = ahead.wants(end) {
        ahead.give(range.start, slice(&log, range));
    }
    let tail = end.bytes_since(ahead.decoded_to());
    assert!(
        (TAIL_BYTES..TAIL_BYTES + 2 * PAGE).contains(&tail),
        "{tail}"
    );
}

#[test]
fn wal_behind_a_gap_makes_lookahead_read_the_gap() {
    let log = log_of(3000);
    let (start, end) = (log.start(), end_of(&log));
    let mut ahead = Lookahead::new(size(), Lsn(start.0 + 40), ALL);
    let at = Lsn(start.0 + 5 * PAGE + 100);
    ahead.pass(at, slice(&log, at..end));
    assert_eq!(ahead.pop(), None);
    let gap = ahead.wants(end).unwrap();
    assert_eq!(gap, start..at);
    ahead.give(start, slice(&log, gap));
    assert_eq!(drain(&mut ahead).len(), 3000);
    assert_eq!(ahead.wants(end), None);
}

#[test]
fn redo_elsewhere_is_followed() {
    let log = log_of(6000);
    let (start, end) = (log.start(), end_of(&log));
    let mut ahead = Lookahead::new(size(), Lsn(start.0 + 40), ALL);
    // Further than anything that was read.
    let far = Lsn(start.0 + 20 * PAGE);
    ahead.redo_at(far);
    let range = ahead.wants(end).unwrap();
    assert_eq!(range.start, far);
    ahead.give(far, slice(&log, range));
    let first = ahead.pop().unwrap();
    assert!(first.before > far);
    // Back to where it really begins.
    let near = Lsn(start.0 + 2 * PAGE);
    ahead.redo_at(near);
    let range = ahead.wants(end).unwrap();
    assert_eq!(range.start, near);
    ahead.give(near, slice(&log, range));
    let again = ahead.pop().unwrap();
    assert!(again.before > near && again.before < first.before);
}

/// PostgreSQL reads its checkpoint's record before it goes back to where redo begins. What had been fetched behind that record
/// counted as unused until redo came there, and nothing was fetched for all the log before.
// hazard: WAL-6
#[test]
fn blocks_fetched_for_redo_elsewhere_no_longer_count() {
    let log = log_of(6000);
    let (start, end) = (log.start(), end_of(&log));
    let limits = Limits {
        unused_max: 3,
        ..ALL
    };
    let mut ahead = Lookahead::new(size(), Lsn(start.0 + 40), limits);
    let mut fetches_from = |at: Lsn| {
        ahead.redo_at(at);
        let range = ahead.wants(end).unwrap();
        assert_eq!(range.start, at);
        ahead.give(at, slice(&log, range));
        let popped: Vec<_> = std::iter::from_fn(|| {
            let wanted = ahead.pop()?;
            ahead.fetching(&wanted);
            Some(wanted)
        })
        .collect();
        assert_eq!(popped.len(), 3, "as many as there may be");
        ahead.redo_at(popped[0].before);
        assert!(ahead.pop().is_some(), "one was used");
    };
    fetches_from(Lsn(start.0 + 20 * PAGE));
    fetches_from(Lsn(start.0 + 2 * PAGE));
}

#[test]
fn a_damaged_page_is_passed_with_redo() {
    let log = log_of(3000);
    let mut bytes = log.bytes().to_vec();
    bytes[3 * LOG_PAGE_BYTES + 4000] ^= 0x55;
    let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), ALL);
    ahead.give(log.start(), &bytes);
    let before = drain(&mut ahead).len();
    assert!(before > 100);
    ahead.redo_at(Lsn(log.start().0 + 4 * PAGE));
    assert_eq!(
        ahead.wants(end_of(&log)),
        None,
        "redo may be in a long record"
    );
    let redo = Lsn(log.start().0 + 5 * PAGE);
    ahead.redo_at(redo);
    ahead.give(redo, &bytes[5 * LOG_PAGE_BYTES..]);
    let behind = drain(&mut ahead).len();
    assert!(
        (2500..3000).contains(&(before + behind)),
        "{before} and {behind}"
    );
}

proptest! {
    /// However the log comes, what is wanted is what its records name, in their order.
    #[test]
    fn pieces_of_any_length_make_no_difference(
        lengths in prop::collection::vec(0usize..3000, 1..80),
        pieces in prop::collection::vec(1usize..30_000, 1..80),
    ) {
        let mut log = empty_log();
        for (block, length) in lengths.iter().enumerate() {
            let main = vec![1; *length];
            log.append_record(HEAP, 0, &plain(7, block as u32), &main);
        }
        let mut ahead = Lookahead::new(size(), Lsn(log.start().0 + 40), ALL);
        let (mut at, mut found, mut next) = (0, Vec::new(), pieces.iter().cycle());
        while at < log.bytes().len() {
            let to = (at + next.next().unwrap()).min(log.bytes().len());
            ahead.give(Lsn(log.start().0 + at as u64), &log.bytes()[at..to]);
            found.extend(drain(&mut ahead));
            at = to;
        }
        let expected: Vec<RelationBlock> =
            (0..lengths.len()).map(|block| named(7, Fork::Main, block as u32)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(ahead.decoded_to(), log.records().last().unwrap().1);
    }
}
