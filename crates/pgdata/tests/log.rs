//! The log decoder against a log that PostgreSQL wrote, with PostgreSQL itself as the judge.

#![allow(clippy::unwrap_used)] // in helpers, too

mod common;

use std::fs;
use std::ops::Range;
use std::time::Instant;

use common::Cluster;
use common::judge::{self, as_told};
use pgdata::control::{Capacity, ClusterState, ControlFile};
use pgdata::lookahead::{Limits, Lookahead};
use pgdata::parse_lsn;
use pgdata::relation::{Fork, Relation};
use pgdata::segment::{LOG_PAGE_BYTES, SegmentName, SegmentSize};
use pgdata::timeline::{History, TimelineId};
use pgdata::wal::{Detail, Follower, Record, Start, Stop, find_end};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use volume::lsn::Lsn;

const CONFIGURATION: &str = "wal_keep_size = 1GB\nmax_wal_size = 2GB\nwal_level = replica\n\
    max_prepared_transactions = 10\nwal_compression = on\nautovacuum_naptime = 1s\n";

/// Enough to meet every shape of record, page and segment boundary.
fn work(cluster: &Cluster) {
    cluster.pgbench(&["-i", "-q", "-s", "1", "--unlogged-tables"]);
    cluster.pgbench(&["-i", "-q", "-s", "1"]);
    cluster.pgbench(&["-n", "-t", "60", "-c", "4"]);
    cluster.sql(&[
        "CREATE TABLE t (i int PRIMARY KEY, x text)",
        "INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 3000) i",
        "SELECT pg_switch_wal()",
        "BEGIN; DELETE FROM t WHERE i % 3 = 0; PREPARE TRANSACTION 'p'",
        "CHECKPOINT",
        "COMMIT PREPARED 'p'",
        "SELECT pg_logical_emit_message(false, 'large', repeat('0123456789', 300000))",
        "VACUUM FREEZE t",
        "CREATE INDEX ON t USING gist (point(i, i))",
        "CREATE DATABASE copied STRATEGY file_copy",
        "TRUNCATE t",
        "DROP TABLE t",
        "SELECT pg_switch_wal()",
        "SELECT pg_switch_wal()",
    ]);
    cluster.pgbench(&["-n", "-t", "30", "-c", "2"]);
}

/// All of one timeline's log, from its first segment on.
struct Log {
    start: Lsn,
    bytes: Vec<u8>,
    size: SegmentSize,
}

impl Log {
    fn read(cluster: &Cluster, size: SegmentSize) -> Log {
        let names = fs::read_dir(cluster.wal()).unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            SegmentName::parse(&name, size)
        });
        let mut names: Vec<_> = names
            .filter(|name| name.timeline == TimelineId::FIRST)
            .collect();
        names.sort();
        let mut bytes = Vec::new();
        for name in &names {
            bytes.extend(fs::read(cluster.wal().join(name.file_name(size))).unwrap());
        }
        Log {
            start: names[0].range(size).start,
            bytes,
            size,
        }
    }

    fn slice(&self, range: Range<Lsn>) -> &[u8] {
        let end = (range.end.bytes_since(self.start) as usize).min(self.bytes.len());
        let from = (range.start.bytes_since(self.start) as usize).min(end);
        &self.bytes[from..end]
    }

    fn records(&self, start: Start) -> Vec<Record> {
        let mut records = Vec::new();
        let read = |range: Range<Lsn>| Ok::<_, ()>(self.slice(range).to_vec());
        find_end(self.size, start, read, &mut |record| {
            records.push(record.clone())
        })
        .unwrap();
        records
    }
}

/// Feeds the log as a server under load might write it: pieces of any size, neighbours swapped,
/// pages first half full and then again, some pieces twice.
fn feed_wildly(log: &Log, random: &mut SmallRng) -> (Vec<Record>, Follower) {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < log.bytes.len() {
        let pages = random.random_range(1..=24) * LOG_PAGE_BYTES;
        let len = if random.random_bool(0.3) {
            random.random_range(1..20_000)
        } else {
            pages
        };
        let end = (at + len).min(log.bytes.len());
        pieces.push(at..end);
        at = end;
    }
    for group in pieces.chunks_mut(8) {
        group.shuffle(random);
    }
    let mut records = Vec::new();
    let mut follower = Follower::new(log.size, Start::Page(log.start));
    let mut on_record = |record: &Record| records.push(record.clone());
    for piece in pieces {
        let at = Lsn(log.start.0 + piece.start as u64);
        let bytes = &log.bytes[piece.clone()];
        if random.random_bool(0.5) {
            let mut half = bytes.to_vec();
            half[random.random_range(0..bytes.len())..].fill(0);
            follower.feed(at, &half, &mut on_record);
        }
        follower.feed(at, bytes, &mut on_record);
        if random.random_bool(0.1) {
            follower.feed(at, bytes, &mut on_record);
        }
    }
    (records, follower)
}

fn check_wild_order(log: &Log, records: &[Record]) {
    for seed in 0..3 {
        let (found, follower) = feed_wildly(log, &mut SmallRng::seed_from_u64(seed));
        assert_eq!(
            found.len(),
            records.len(),
            "seed {seed}: stopped at {:?}",
            follower.stop()
        );
        assert!(found == records, "seed {seed}");
        assert_eq!(follower.end(), records.last().unwrap().end);
        assert_eq!(follower.starved(), None);
    }
}

/// A log that ends anywhere is read to the last record that is all there.
fn check_cuts(log: &Log, records: &[Record], random: &mut SmallRng) {
    for _ in 0..60 {
        let near = records.choose(random).unwrap();
        let cut = Lsn(random.random_range(near.start.0..near.end.0));
        let from = records
            .iter()
            .rfind(|record| record.end.0 + 300_000 < cut.0);
        let start = from.map_or(Start::Page(log.start), |record| Start::Record(record.end));
        let mut follower = Follower::new(log.size, start);
        let mut end = follower.end();
        let page = Lsn(end.0 - end.0 % LOG_PAGE_BYTES as u64);
        follower.feed(page, log.slice(page..cut), &mut |record| end = record.end);
        let next = records.iter().find(|record| record.start >= end).unwrap();
        assert!(
            follower.end() == end && end.0 <= cut.0.next_multiple_of(8)
                || log.slice(cut..end).iter().all(|byte| *byte == 0),
            "{end} read, cut at {cut}"
        );
        assert!(
            next.end > cut,
            "{cut}: {next:?} is all there but was not read"
        );
    }
}

/// Reading can start at any record's start or end, and at any page.
fn check_starts(log: &Log, records: &[Record], random: &mut SmallRng) {
    for _ in 0..20 {
        let number = random.random_range(records.len().saturating_sub(3000)..records.len() - 1);
        let found = log.records(Start::Record(records[number].start));
        assert!(found == records[number..], "from {}", records[number].start);
        let found = log.records(Start::Record(records[number].end));
        assert!(
            found == records[number + 1..],
            "from {}",
            records[number].end
        );
        let page = records[number].start.0 / LOG_PAGE_BYTES as u64 * LOG_PAGE_BYTES as u64;
        let first = records
            .iter()
            .position(|record| record.start.0 >= page)
            .unwrap();
        assert!(
            log.records(Start::Page(Lsn(page))) == records[first..],
            "page {page:X}"
        );
    }
}

/// The look-ahead, given the log in the pieces in which a standby gets it, wants what redo reads: every
/// block that PostgreSQL names without an image to restore, in its order. Says what decoding costs.
fn check_lookahead(log: &Log, records: &[Record], told: &[judge::DumpedRecord]) {
    let limits = Limits {
        window_bytes: 16 << 20,
        waiting_max: 10_000,
        unused_max: usize::MAX,
        recent_blocks: 0,
    };
    let began = Instant::now();
    let mut ahead = Lookahead::new(log.size, records[0].start, limits);
    let mut wanted = Vec::new();
    for (number, piece) in log.bytes.chunks(100_000).enumerate() {
        ahead.give(Lsn(log.start.0 + number as u64 * 100_000), piece);
        wanted.extend(std::iter::from_fn(|| ahead.pop()));
    }
    let took = began.elapsed();
    let decoded = ahead.decoded();
    println!(
        "{} MB of log with {} records and {} references decoded in {took:?}",
        log.bytes.len() / 1_000_000,
        decoded.records,
        decoded.references
    );
    assert_eq!(decoded.records, records.len() as u64);
    let is_whole =
        |record: &Record| matches!(record.detail, Detail::FullPages | Detail::FullPageForHint);
    let mut expected = Vec::new();
    for (record, told) in records
        .iter()
        .zip(told)
        .filter(|(record, _)| !is_whole(record))
    {
        let names = told.blocks().zip(&record.blocks);
        // Images are there to be restored: this server does not check its redo.
        expected.extend(
            names
                .filter(|((.., image), block)| {
                    !image && !block.will_init && block.fork != Fork::Init
                })
                .map(|((name, fork, block, _), _)| (record.end, name.clone(), *fork, *block)),
        );
    }
    let wanted = wanted.iter().map(|wanted| {
        let Relation {
            tablespace,
            database,
            number,
        } = wanted.block.relation;
        let name = format!("{tablespace}/{database}/{number}");
        (wanted.before, name, wanted.block.fork, wanted.block.block)
    });
    let wanted: Vec<_> = wanted.collect();
    assert!(wanted.len() > 3_000, "only {} blocks", wanted.len());
    assert!(wanted == expected, "other blocks than PostgreSQL names");
}

fn check_details(records: &[Record]) {
    let count = |wanted: fn(&Detail) -> bool| records.iter().filter(|r| wanted(&r.detail)).count();
    assert!(count(|detail| matches!(detail, Detail::Switch)) >= 2);
    assert!(count(|detail| matches!(detail, Detail::Checkpoint(c) if !c.shutdown)) >= 2);
    assert!(count(|detail| matches!(detail, Detail::Checkpoint(c) if c.shutdown)) >= 2);
    assert!(
        count(|detail| matches!(detail, Detail::FullPages)) >= 1,
        "indexes are logged whole"
    );
    let copies = |detail: &Detail| {
        matches!(
            detail,
            Detail::FileCopy {
                source_database: 1,
                tablespace: 1663,
                ..
            }
        )
    };
    assert!(count(copies) >= 1, "initdb makes some, too");
    let large = records
        .iter()
        .filter(|record| record.end.bytes_since(record.start) > 3_000_000);
    assert_eq!(large.count(), 1, "a record over several segments");
    let parameters = records.iter().find_map(|record| match record.detail {
        Detail::Parameters { capacity, .. } => Some(capacity),
        _ => None,
    });
    assert_eq!(parameters.unwrap().max_prepared_transactions, 10);
    let bytes = |record: &Record| record.blocks.iter().any(|b| b.will_init && !b.has_image);
    assert!(records.iter().any(bytes), "new pages");
}

fn parse_control(cluster: &Cluster) -> ControlFile {
    ControlFile::parse(&fs::read(cluster.data().join("global/pg_control")).unwrap()).unwrap()
}

/// What is read from the control file of a running server is what that server says.
fn check_control(cluster: &Cluster) {
    let control = parse_control(cluster);
    assert_eq!(control.state, ClusterState::InProduction);
    let told = judge::control(cluster);
    let Capacity {
        max_connections,
        max_worker_processes,
        max_wal_senders,
        max_prepared_transactions,
        max_locks_per_transaction,
    } = control.capacity;
    let hints = if control.wal_log_hints { "on" } else { "off" };
    for (name, value) in [
        ("pg_control_version", control.control_version.to_string()),
        ("catalog_version_no", control.catalog_version.to_string()),
        ("system_identifier", control.system_identifier.to_string()),
        ("checkpoint_lsn", control.checkpoint.to_string()),
        ("redo_lsn", control.redo.to_string()),
        ("timeline_id", control.timeline.to_string()),
        ("prev_timeline_id", control.previous_timeline.to_string()),
        (
            "min_recovery_end_lsn",
            control.min_recovery_point.to_string(),
        ),
        (
            "min_recovery_end_timeline",
            control.min_recovery_timeline.to_string(),
        ),
        (
            "wal_level",
            format!("{:?}", control.wal_level).to_lowercase(),
        ),
        ("wal_log_hints", hints.to_owned()),
        ("max_connections", max_connections.to_string()),
        ("max_worker_processes", max_worker_processes.to_string()),
        ("max_wal_senders", max_wal_senders.to_string()),
        (
            "max_prepared_transactions",
            max_prepared_transactions.to_string(),
        ),
        (
            "max_locks_per_transaction",
            max_locks_per_transaction.to_string(),
        ),
        ("database_block_size", control.block_size_bytes.to_string()),
        ("blocks_per_segment", control.blocks_per_segment.to_string()),
        (
            "bytes_per_wal_segment",
            control.segment_size.bytes().to_string(),
        ),
        (
            "data_page_checksum_version",
            control.data_checksum_version.to_string(),
        ),
    ] {
        assert_eq!(told.get(name), Some(&value), "{name}");
    }
}

#[test]
fn a_real_log_is_read_as_postgresql_reads_it() {
    let cluster = Cluster::init(54011, 1, CONFIGURATION);
    cluster.start(&[]);
    work(&cluster);
    cluster.stop("fast");
    let size = SegmentSize::new(1 << 20).unwrap();
    let log = Log::read(&cluster, size);
    let records = log.records(Start::Page(log.start));
    let end = records.last().unwrap();
    let control = parse_control(&cluster);
    assert_eq!(control.state, ClusterState::ShutDown);
    assert_eq!(end.start, control.checkpoint);
    assert!(matches!(end.detail, Detail::Checkpoint(c) if c.shutdown && c.redo == control.redo));

    cluster.start(&[]);
    let told = judge::records(&cluster, log.start, end.end);
    check_control(&cluster);
    cluster.stop("fast");
    assert!(told.len() > 5_000, "only {} records", told.len());
    for (record, told) in records.iter().zip(&told) {
        assert_eq!(&as_told(record), told);
    }
    assert_eq!(records.len(), told.len());
    check_lookahead(&log, &records, &told);
    check_details(&records);
    check_wild_order(&log, &records);
    let mut random = SmallRng::seed_from_u64(7);
    check_cuts(&log, &records, &mut random);
    check_starts(&log, &records, &mut random);
}

/// Reads the log of a history, each byte from the file that PostgreSQL would take it from.
fn records_of(cluster: &Cluster, history: &History, from: Lsn, size: SegmentSize) -> Vec<Record> {
    let mut records = Vec::new();
    let read = |range: Range<Lsn>| {
        let name = SegmentName::to_read(history, range.start, size);
        let bytes = fs::read(cluster.wal().join(name.file_name(size))).unwrap_or_default();
        let at = |lsn: Lsn| (lsn.bytes_since(name.range(size).start) as usize).min(bytes.len());
        Ok::<_, ()>(bytes[at(range.start)..at(range.end)].to_vec())
    };
    let end = find_end(size, Start::Record(from), read, &mut |record| {
        records.push(record.clone())
    });
    let end = end.unwrap();
    assert_eq!(end.last_record, records.last().map(|record| record.start));
    assert_eq!(end.timeline, history.timeline());
    assert!(
        matches!(end.stop, Stop::Missing(_) | Stop::Invalid(_, "no record")),
        "{end:?}"
    );
    records
}

#[test]
fn a_broken_record_and_a_new_timeline_are_followed() {
    let cluster = Cluster::init(54012, 1, CONFIGURATION);
    let size = SegmentSize::new(1 << 20).unwrap();
    cluster.start(&[]);
    cluster.sql(&["CREATE TABLE t (i int)", "CHECKPOINT"]);
    let redo = parse_control(&cluster).redo;
    let whole = parse_lsn(&cluster.sql(&["SELECT pg_current_wal_insert_lsn()"])).unwrap();
    cluster.sql(&["SELECT pg_logical_emit_message(true, 'large', repeat('0123456789', 300000))"]);
    cluster.stop("immediate");
    // The middle of the large record is lost with all behind it.
    for after in 2..6 {
        let lost = SegmentName {
            timeline: TimelineId(1),
            number: size.number(whole) + after,
        };
        drop(fs::remove_file(cluster.wal().join(lost.file_name(size))));
    }
    cluster.start(&[]);
    cluster.sql(&["INSERT INTO t SELECT generate_series(1, 100)"]);
    cluster.stop("fast");
    let history = History::of_first(TimelineId(1));
    let before = records_of(&cluster, &history, redo, size);
    let broken = Lsn((size.number(whole) + 2) * size.bytes());
    let after = before
        .iter()
        .find(|record| record.start >= broken)
        .expect("log goes on");
    let overwrites = (after.rmid, after.info) == (0, 0xD0);
    assert!(overwrites && after.start.0 == broken.0 + 40, "{after:?}");
    assert!(
        before
            .iter()
            .all(|record| record.end <= broken || record.start > broken)
    );

    cluster.signal("standby.signal");
    cluster.start(&[]);
    cluster.promote();
    cluster.sql(&["INSERT INTO t SELECT generate_series(1, 100)"]);
    cluster.stop("fast");
    let text = fs::read_to_string(cluster.wal().join("00000002.history")).unwrap();
    let history = History::parse(TimelineId(2), &text).unwrap();
    let all = records_of(&cluster, &history, redo, size);
    assert!(all.len() > before.len() && all[..before.len()] == before[..]);
    assert_eq!(history.began(), before.last().unwrap().end);
    let ended = Detail::EndOfRecovery {
        timeline: TimelineId(2),
        previous_timeline: TimelineId(1),
    };
    assert!(all.iter().any(|record| record.detail == ended));
    assert_eq!(
        parse_control(&cluster).checkpoint,
        all.last().unwrap().start
    );
}
