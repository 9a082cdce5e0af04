//! The follower against logs made here: any lengths, any order, any window.

use proptest::prelude::*;
use volume::lsn::Lsn;

use super::testing::LogWriter;
use super::*;
use crate::relation::Fork;
use crate::segment::{LOG_PAGE_BYTES, SegmentSize};
use crate::timeline::TimelineId;

const PAGE: usize = LOG_PAGE_BYTES;

fn size() -> SegmentSize {
    SegmentSize::new(1 << 20).unwrap()
}

fn log_of(lengths: &[usize]) -> LogWriter {
    let mut log = LogWriter::new(size(), Lsn(size().bytes()), TimelineId(1));
    for length in lengths {
        log.append(*length);
    }
    log
}

fn starts(records: &[Record]) -> Vec<(Lsn, Lsn)> {
    records
        .iter()
        .map(|record| (record.start, record.end))
        .collect()
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let length = prop_oneof![
        8 => 0usize..200,
        2 => PAGE - 200..PAGE + 200,
        1 => 0usize..5 * PAGE,
        1 => Just(PAGE - 24 - 24),
    ];
    proptest::collection::vec(length, 1..60)
}

proptest! {
    #[test]
    fn every_record_once_in_order_however_it_is_fed(
        lengths in lengths(),
        mut order in proptest::collection::vec((any::<prop::sample::Index>(), 1usize..40_000), 0..40),
    ) {
        let log = log_of(&lengths);
        let mut follower = Follower::new(size(), Start::Page(log.start()));
        let mut records = Vec::new();
        // Random pieces first, then all in order.
        for (at, length) in order.drain(..) {
            let from = at.index(log.bytes().len());
            let to = (from + length).min(log.bytes().len());
            let piece = &log.bytes()[from..to];
            let at = Lsn(log.start().0 + from as u64);
            follower.feed(at, piece, &mut |record| records.push(record.clone()));
        }
        follower.feed(log.start(), log.bytes(), &mut |record| records.push(record.clone()));
        prop_assert_eq!(starts(&records), log.records());
        prop_assert_eq!(follower.end(), log.records().last().unwrap().1);
        prop_assert_eq!(follower.starved(), None);
    }

    /// With a window of a few pages, feeding again from `starved` on always gets to the end.
    #[test]
    fn bytes_that_did_not_fit_are_asked_for(lengths in lengths(), backwards in any::<bool>()) {
        let log = log_of(&lengths);
        let mut follower =
            Follower::new(size(), Start::Page(log.start())).with_window(2 * PAGE as u64);
        let mut records = Vec::new();
        let mut pages: Vec<_> = log.bytes().chunks(PAGE).enumerate().collect();
        if backwards {
            pages.reverse();
        }
        for (number, page) in pages {
            let at = Lsn(log.start().0 + (number * PAGE) as u64);
            follower.feed(at, page, &mut |record| records.push(record.clone()));
        }
        let mut asked = 0;
        while let Some(at) = follower.starved() {
            let from = (at.0 - log.start().0) as usize;
            let to = (from + PAGE).min(log.bytes().len());
            if from >= to {
                break;
            }
            follower.feed(at, &log.bytes()[from..to], &mut |record| records.push(record.clone()));
            asked += 1;
            prop_assert!(asked <= log.bytes().len() / PAGE + 1, "asks for the same for ever");
        }
        prop_assert_eq!(starts(&records), log.records());
    }

    /// Damage to a byte of a record hides it and all behind it, and nothing before it.
    #[test]
    fn damage_ends_the_log(lengths in lengths(), at in any::<prop::sample::Index>()) {
        let log = log_of(&lengths);
        let at = at.index(log.bytes().len());
        let mut bytes = log.bytes().to_vec();
        bytes[at] ^= 0x55;
        let mut records = Vec::new();
        let mut follower = Follower::new(size(), Start::Page(log.start()));
        follower.feed(log.start(), &bytes, &mut |record| records.push(record.clone()));
        let all = log.records();
        prop_assert_eq!(&starts(&records)[..], &all[..records.len()]);
        let page = log.start().0 + (at / PAGE * PAGE) as u64;
        let before = all.iter().filter(|(_, end)| end.0 <= page).count();
        prop_assert!(records.len() >= before, "only what shares the damaged page is lost");
    }
}

#[test]
fn the_first_record_is_found_behind_one_larger_than_the_window() {
    let log = log_of(&[10, 60 * PAGE, 20, 30]);
    let from = Lsn(log.start().0 + 3 * PAGE as u64);
    let mut follower = Follower::new(size(), Start::Page(from)).with_window(2 * PAGE as u64);
    let mut records = Vec::new();
    for (number, page) in log.bytes().chunks(PAGE).enumerate() {
        let at = Lsn(log.start().0 + (number * PAGE) as u64);
        follower.feed(at, page, &mut |record| records.push(record.clone()));
    }
    assert_eq!(starts(&records), log.records()[2..]);
}

/// PostgreSQL writes a record that is larger than its buffers page by page. It was put together anew with
/// each of them, on the thread that answers the database: minutes for this one.
// hazard: WAL-4
#[test]
fn a_large_record_that_comes_page_by_page_is_put_together_once() {
    let log = log_of(&[10, 64 << 20, 20]);
    let mut follower = Follower::new(size(), Start::Page(log.start()));
    let mut records = Vec::new();
    let began = std::time::Instant::now();
    for (number, page) in log.bytes().chunks(PAGE).enumerate() {
        let at = Lsn(log.start().0 + (number * PAGE) as u64);
        follower.feed(at, page, &mut |record| records.push(record.clone()));
    }
    assert_eq!(starts(&records), log.records());
    let took = began.elapsed();
    assert!(took.as_secs() < 10, "{took:?}");
}

/// The pages of a record were looked at when one of them was not all there, as when PostgreSQL syncs
/// what is before it.
// hazard: WAL-4
#[test]
fn pages_that_were_looked_at_may_come_again_with_more_on_them() {
    let log = log_of(&[10, 3 * PAGE, 20]);
    let mut follower = Follower::new(size(), Start::Page(log.start()));
    let mut records = Vec::new();
    let half = |page: &[u8]| [&page[..PAGE / 2], &vec![0; PAGE / 2]].concat();
    let pages: Vec<&[u8]> = log.bytes().chunks(PAGE).collect();
    for (number, page) in pages.iter().enumerate().take(3) {
        let at = Lsn(log.start().0 + (number * PAGE) as u64);
        follower.feed(at, &half(page), &mut |record| records.push(record.clone()));
    }
    for (number, page) in pages.iter().enumerate().rev() {
        let at = Lsn(log.start().0 + (number * PAGE) as u64);
        follower.feed(at, page, &mut |record| records.push(record.clone()));
    }
    assert_eq!(starts(&records), log.records());
}

#[test]
fn zeros_ahead_of_the_log_are_not_kept() {
    let log = log_of(&[100; 10]);
    let mut follower = Follower::new(size(), Start::Page(log.start()));
    let zeros = vec![0; size().bytes() as usize];
    follower.feed(log.start(), &zeros, &mut |_| panic!("no record"));
    assert_eq!(follower.stop(), Stop::Missing(log.start()));
    assert_eq!(follower.starved(), None, "nothing was lost");
    let mut count = 0;
    follower.feed(log.start(), log.bytes(), &mut |_| count += 1);
    assert_eq!(count, 10);
}

#[test]
fn the_end_finder_asks_for_each_range_once_and_within_a_segment() {
    let log = log_of(&[9000; 300]);
    let mut finder = EndFinder::new(size(), Start::Page(log.start()));
    let (mut asked, mut count) = (Lsn::ZERO, 0);
    while let Some(range) = finder.wants() {
        assert!(range.start >= asked && !range.is_empty());
        assert_eq!(
            size().number(range.start),
            size().number(Lsn(range.end.0 - 1))
        );
        asked = range.end;
        let at = |lsn: Lsn| (lsn.bytes_since(log.start()) as usize).min(log.bytes().len());
        let bytes = &log.bytes()[at(range.start)..at(range.end)];
        finder.give(range.start, bytes, &mut |_| count += 1);
    }
    assert_eq!(count, 300);
    assert_eq!(finder.end().end, log.records().last().unwrap().1);
    assert_eq!(finder.end().timeline, TimelineId(1));
}

#[test]
fn an_empty_log_ends_where_it_starts() {
    let end = find_end(
        size(),
        Start::Record(Lsn(0x200_0028)),
        |_| Ok::<_, ()>(Vec::new()),
        &mut |_| panic!("no record"),
    );
    let end = end.unwrap();
    assert_eq!((end.end, end.last_record), (Lsn(0x200_0028), None));
}

/// The start of a log segment as a server of each version wrote it, and what the same server said of
/// it (`pg_walinspect`: start, end, resource manager, transaction, blocks).
const REAL: [(u8, &[u8], &str); 4] = [
    (
        15,
        include_bytes!("../../tests/wal/15.wal"),
        include_str!("../../tests/wal/15.told"),
    ),
    (
        16,
        include_bytes!("../../tests/wal/16.wal"),
        include_str!("../../tests/wal/16.told"),
    ),
    (
        17,
        include_bytes!("../../tests/wal/17.wal"),
        include_str!("../../tests/wal/17.told"),
    ),
    (
        18,
        include_bytes!("../../tests/wal/18.wal"),
        include_str!("../../tests/wal/18.told"),
    ),
];

fn as_told(record: &Record) -> String {
    let fork = |fork| match fork {
        Fork::Main => "main",
        Fork::FreeSpace => "fsm",
        Fork::Visibility => "vm",
        Fork::Init => "init",
    };
    let blocks = record.blocks.iter().map(|block| {
        let at = block.relation;
        let (fork, block) = (fork(block.fork), block.block);
        format!(
            "{}/{}/{} {fork} {block}",
            at.tablespace, at.database, at.number
        )
    });
    let blocks: Vec<String> = blocks.collect();
    format!(
        "{}|{}|{}|{}|{}",
        record.start,
        record.end,
        record.rmid,
        record.xid,
        blocks.join(";")
    )
}

#[test]
fn logs_of_every_version_are_read_as_their_servers_read_them() {
    for (version, log, told) in REAL {
        let first = told.split('|').next().and_then(crate::parse_lsn).unwrap();
        let mut records = Vec::new();
        let mut follower = Follower::new(size(), Start::Page(size().start(first)));
        follower.feed(size().start(first), log, &mut |r| records.push(r.clone()));
        let read: Vec<String> = records.iter().map(as_told).collect();
        assert_eq!(read, told.lines().collect::<Vec<_>>(), "{version}");
        let Detail::Checkpoint(checkpoint) = records.last().unwrap().detail else {
            panic!("{version}: the last record is no checkpoint");
        };
        // Since 17 a record of its own stands at the redo point of an online checkpoint.
        let redo = records.iter().find(|r| r.start == checkpoint.redo).unwrap();
        assert_eq!((redo.rmid, redo.info) == (0, 0xE0), version >= 17);
    }
}
