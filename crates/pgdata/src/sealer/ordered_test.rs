//! The sealer of an ordered log, without a server: what is answered early, and what waits until it is durable.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dax::ids::NodeName;
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use tempfile::TempDir;
use volume::active::{NoObserver, Options};
use volume::latest::{self, Latest};
use volume::private::PrivateDir;
use volume::view::{Ino, NewInode, Ownership, View};

use super::*;
use crate::segment::{SegmentName, SegmentSize};
use crate::wal::testing::LogWriter;

const NOW: Timestamp = Timestamp(1);
const START: Lsn = Lsn(0x1000_0000);
const SEGMENT: u64 = 1 << 20;

/// A sealer, and the log that its database writes.
struct Server {
    sealer: Arc<Sealer>,
    log: LogWriter,
    written: usize,
}

impl Server {
    fn new(ordered: bool) -> Server {
        let size = SegmentSize::new(SEGMENT as u32).unwrap();
        let layout = Arc::new(PostgresLayout::new(size));
        let sealer = Sealer::new(layout, START, TimelineId::FIRST, None, 131_072, Epoch(1));
        sealer.order_log(ordered);
        Server {
            sealer,
            log: LogWriter::new(size, START, TimelineId::FIRST),
            written: 0,
        }
    }

    fn path(at: Lsn) -> String {
        let size = SegmentSize::new(SEGMENT as u32).unwrap();
        let name = SegmentName::holding(TimelineId::FIRST, at, size);
        format!("pg_wal/{}", name.file_name(size))
    }

    /// Writes up to so many bytes of the log, which are in one segment; the path of its file.
    fn write_up_to(&mut self, end: usize) -> String {
        let at = Lsn(START.0 + self.written as u64);
        let path = Server::path(at);
        let data = Bytes::copy_from_slice(&self.log.bytes()[self.written..end]);
        self.sealer
            .log_written(&path, at.0 - at.0 / SEGMENT * SEGMENT, &data);
        self.written = end;
        path
    }

    /// Writes what is new of `bytes`, which are the log as somebody has it.
    fn write_as(&mut self, bytes: &[u8]) {
        let at = Lsn(START.0 + self.written as u64);
        let data = Bytes::copy_from_slice(&bytes[self.written..]);
        let offset = at.0 - at.0 / SEGMENT * SEGMENT;
        self.sealer.log_written(&Server::path(at), offset, &data);
        self.written = bytes.len();
    }

    fn sync(&self) -> u64 {
        let at = Lsn(START.0 + self.written as u64);
        self.sealer.log_sync_started(&Server::path(at))
    }

    /// One more record, written and being synced: its end, the sync, and whether that is answered early.
    fn commit(&mut self) -> (Lsn, u64, bool) {
        self.log.append(200);
        let end = self.log.bytes().len();
        let path = self.write_up_to(end);
        let token = self.sealer.log_sync_started(&path);
        let early = self.sealer.may_answer_early(token);
        (Lsn(START.0 + end as u64), token, early)
    }

    fn synced(&self) -> Lsn {
        self.sealer.synced().borrow().end
    }

    fn answered(&self) -> Lsn {
        self.sealer.log.lock().syncs.answered()
    }
}

#[test]
fn a_strict_log_answers_nothing_early() {
    let mut server = Server::new(false);
    let (end, token, early) = server.commit();
    assert!(!early);
    assert_eq!((server.synced(), server.answered()), (START, START));
    server.sealer.log_synced("", token);
    assert_eq!((server.synced(), server.answered()), (end, end));
}

// hazard: ORDER-1
#[test]
fn syncs_of_an_ordered_log_overlap_and_are_durable_in_order() {
    let mut server = Server::new(true);
    let (first, one, early) = server.commit();
    assert!(early);
    let (second, two, early) = server.commit();
    assert!(early);
    assert_eq!((server.synced(), server.answered()), (START, second));
    server.sealer.log_synced("", two);
    assert_eq!(server.synced(), START, "the first is still under way");
    server.sealer.log_synced("", one);
    assert_eq!(server.synced(), second);
    assert!(first < second);
}

#[test]
fn to_be_strict_again_keeps_what_was_answered_in_mind() {
    let mut server = Server::new(true);
    let (_, one, _) = server.commit();
    server.sealer.order_log(false);
    let (second, two, early) = server.commit();
    assert!(!early);
    server.sealer.log_synced("", two);
    assert_eq!((server.synced(), server.answered()), (START, second));
    server.sealer.log_synced("", one);
    assert_eq!(server.synced(), second);
}

// hazard: ORDER-5
#[test]
fn segments_alone_are_ordered_and_only_inside() {
    let mut server = Server::new(true);
    for other in ["pg_wal/00000002.history", "pg_wal/xlogtemp.7", "pg_wal"] {
        let token = server.sealer.log_sync_started(other);
        assert!(!server.sealer.may_answer_early(token), "{other}");
    }
    while server.log.bytes().len() < SEGMENT as usize + 100 {
        server.log.append(50_000);
    }
    // The archiver takes a segment once its last sync is answered.
    let path = server.write_up_to(SEGMENT as usize);
    let token = server.sealer.log_sync_started(&path);
    assert!(!server.sealer.may_answer_early(token));
    server.sealer.log_synced(&path, token);
    assert!(server.synced() > START);
    let (_, _, early) = server.commit();
    assert!(early, "the next segment is");
}

/// A segment's file is made and synced ahead, while log before it is being synced.
// hazard: ORDER-6
#[test]
fn a_sync_of_a_segment_made_ahead_says_nothing_of_the_log_before_it() {
    let mut server = Server::new(false);
    let (_, _, _) = server.commit();
    let ahead = Server::path(Lsn(START.0 + SEGMENT));
    let token = server.sealer.log_sync_started(&ahead);
    server.sealer.log_synced(&ahead, token);
    assert_eq!(server.synced(), START);
}

#[test]
fn a_log_that_cannot_be_followed_is_not_ordered() {
    let mut server = Server::new(true);
    let (_, _, early) = server.commit();
    assert!(early);
    // A record begins on the first page, and the pages behind that are missing.
    server.log.append(100_000);
    server.write_up_to(LOG_PAGE);
    server.written = 5 * LOG_PAGE;
    let (_, _, early) = server.commit();
    assert!(!early);
}

/// Nothing behind is confirmed, so commits would wait for ever.
// hazard: ORDER-19
#[test]
fn a_log_that_is_stuck_is_known() {
    let mut server = Server::new(true);
    let (end, token, _) = server.commit();
    server.sealer.log_synced("", token);
    assert_eq!(server.sealer.stuck(), None);
    server.log.append(100_000);
    server.write_up_to(LOG_PAGE);
    server.written = 5 * LOG_PAGE;
    let (_, token, _) = server.commit();
    assert_eq!(server.sealer.stuck(), None, "its sync is not done");
    server.sealer.log_synced("", token);
    assert_eq!(server.sealer.stuck(), Some(end));
}

/// PostgreSQL writes a page while other sessions still copy into it.
// hazard: ORDER-19
#[test]
fn copy_in_progress_on_the_last_page_is_not_stuck() {
    let mut server = Server::new(true);
    let (_, token, _) = server.commit();
    server.sealer.log_synced("", token);
    server.log.append(100);
    let damaged = |server: &Server, at: usize| {
        let mut bytes = server.log.bytes().to_vec();
        bytes[at] ^= 1;
        bytes
    };
    let at = server.log.bytes().len() - 10;
    let bytes = damaged(&server, at);
    server.write_as(&bytes);
    let token = server.sync();
    server.sealer.log_synced("", token);
    assert_eq!(server.sealer.stuck(), None);
    // Pages later it is.
    let end = server.sealer.log.lock().follower.end();
    server.log.append(3 * LOG_PAGE);
    let bytes = damaged(&server, at);
    server.write_as(&bytes);
    let token = server.sync();
    server.sealer.log_synced("", token);
    assert_eq!(server.sealer.stuck(), Some(end));
}

/// A large record is written page by page while it is copied.
// hazard: ORDER-19
#[test]
fn a_record_whose_end_is_to_come_is_not_stuck() {
    let mut server = Server::new(true);
    server.log.append(100_000);
    server.write_up_to(5 * LOG_PAGE);
    let token = server.sync();
    server.sealer.log_synced("", token);
    assert_eq!(server.sealer.stuck(), None);
}

const LOG_PAGE: usize = crate::segment::LOG_PAGE_BYTES;

#[test]
fn after_a_failed_sync_nothing_is_durable_and_nothing_early() {
    let mut server = Server::new(true);
    let (_, one, _) = server.commit();
    let (_, two, _) = server.commit();
    server.sealer.log_sync_failed("", one);
    server.sealer.log_synced("", two);
    assert_eq!(server.synced(), START);
    assert!(server.sealer.log_has_failed());
    let (_, _, early) = server.commit();
    assert!(!early);
}

/// A control file that says what a completed checkpoint does.
fn control(redo: u64) -> Bytes {
    const CHECKSUM_AT: usize = 288;
    let mut bytes = include_bytes!("../../tests/control/16.pg_control").to_vec();
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &6u32.to_le_bytes()); // in production
    put(32, &(redo + 0x100).to_le_bytes());
    put(40, &redo.to_le_bytes());
    put(136, &0u64.to_le_bytes()); // no recovery
    let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    Bytes::from(bytes)
}

async fn view(place: &TempDir) -> ActiveView {
    let owner = Ownership {
        mode: 0o700,
        uid: 0,
        gid: 0,
    };
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let storage = cluster.client();
    let shared: Arc<dyn Storage> = storage.clone();
    let name = NodeName::new("a").unwrap();
    storage.own_epoch(&name).await.unwrap();
    latest::format(&shared, owner, NOW).await.unwrap();
    let recovered = Latest::recover(storage, NOW).await.unwrap();
    let layout = Arc::new(PostgresLayout::new(SegmentSize::DEFAULT));
    let private = PrivateDir::prepare(place.path(), &*layout, false, owner).unwrap();
    let observer = Arc::new(NoObserver);
    let options = Options::default();
    let view = ActiveView::open(
        recovered,
        layout,
        Arc::new(private),
        observer,
        None,
        options,
    );
    let view = view.await.unwrap();
    let create = |parent, name: &[u8], new| view.create(parent, name, new, owner, NOW).unwrap().ino;
    let global = create(Ino::ROOT, b"global", NewInode::Directory);
    create(global, b"pg_control", NewInode::File);
    view
}

fn is_pending<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    matches!(future.poll(&mut cx), Poll::Pending)
}

// hazard: ORDER-2
#[tokio::test]
async fn a_seal_covers_what_was_answered_and_waits_until_that_is_durable() {
    let place = TempDir::new().unwrap();
    let view = view(&place).await;
    let mut server = Server::new(true);
    let (_, one, _) = server.commit();
    let before = view.seals().len();
    let sealer = Arc::clone(&server.sealer);
    let mut seals = pin!(sealer.seal_of(&view, 0x200_0000));
    for _ in 0..20 {
        assert!(is_pending(seals.as_mut()), "its log is not durable");
        tokio::task::yield_now().await;
    }
    // Answered after the cut: not in the image, and W need not cover it.
    let (_, two, _) = server.commit();
    server.sealer.log_synced("", one);
    seals.await.unwrap();
    assert_eq!(view.seals().len(), before + 1);
    let w = view.seals().last().unwrap().end;
    assert_eq!(w, server.synced(), "what was answered at the cut");
    server.sealer.log_synced("", two);
    assert!(server.synced() > w);
}

// hazard: ORDER-3
#[tokio::test]
async fn a_control_file_waits_until_the_log_is_durable_that_it_may_name() {
    let place = TempDir::new().unwrap();
    let view = view(&place).await;
    let mut server = Server::new(true);
    let (_, one, _) = server.commit();
    let sealer = Arc::clone(&server.sealer);
    let mut written = pin!(sealer.control_written(&view, control(0x200_0000), NOW));
    for _ in 0..20 {
        assert!(is_pending(written.as_mut()));
        tokio::task::yield_now().await;
    }
    server.sealer.log_synced("", one);
    written.await.unwrap();
    assert_eq!(view.seals().last().unwrap().end, server.synced());
}

// hazard: ORDER-23
#[tokio::test]
async fn nothing_waits_for_a_log_that_failed() {
    let place = TempDir::new().unwrap();
    let view = view(&place).await;
    let mut server = Server::new(true);
    let (_, one, _) = server.commit();
    let before = view.seals().len();
    server.sealer.log_sync_failed("", one);
    let sealer = Arc::clone(&server.sealer);
    let written = sealer.control_written(&view, control(0x200_0000), NOW);
    assert!(written.await.is_err());
    assert_eq!(view.seals().len(), before, "and nothing is sealed");
}

impl Sealer {
    /// Seals as a checkpoint with this redo pointer does.
    async fn seal_of(&self, view: &ActiveView, redo: u64) -> Result<()> {
        let control = control(redo);
        self.seal(view, &parse(&control)?, &control).await
    }
}
