//! Checkpoints on the active, through the view that it writes to.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::NodeName;
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use pgdata::control::ControlFile;
use pgdata::layout::PostgresLayout;
use pgdata::sealer::Sealer;
use tempfile::TempDir;
use volume::active::{ActiveView, NoObserver, Options, WriteObserver};
use volume::latest::{self, Latest};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::{Ino, NewInode, Ownership, Timestamp, View};

const NOW: Timestamp = Timestamp(1);
const OWNER: Ownership = Ownership {
    mode: 0o700,
    uid: 0,
    gid: 0,
};
const PAGE: usize = 8192;
const LOG_END: Lsn = Lsn(0x1000_0000);

/// A real control file, as if a checkpoint had been completed that is this far.
fn control(redo: u64) -> Bytes {
    const CHECKSUM_AT: usize = 288;
    let mut bytes = include_bytes!("control/16.pg_control").to_vec();
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &6u32.to_le_bytes()); // in production
    put(32, &(redo + 0x100).to_le_bytes());
    put(40, &redo.to_le_bytes());
    put(136, &0u64.to_le_bytes()); // no recovery
    let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    Bytes::from(bytes)
}

/// An active whose log was followed to [`LOG_END`], and its sealer.
async fn active(place: &TempDir) -> (ActiveView, Arc<Sealer>) {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let storage = cluster.client();
    let shared: Arc<dyn Storage> = storage.clone();
    storage
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    latest::format(&shared, OWNER, NOW).await.unwrap();
    let recovered = Latest::recover(storage, NOW).await.unwrap();
    let parsed = ControlFile::parse(&control(0x100_0000)).unwrap();
    let layout = Arc::new(PostgresLayout::new(parsed.segment_size));
    let private = PrivateDir::prepare(place.path(), &*layout, false, OWNER).unwrap();
    let view = ActiveView::open(
        recovered,
        layout.clone(),
        Arc::new(private),
        Arc::new(NoObserver),
        None,
        Options::default(),
    );
    let view = view.await.unwrap();
    let create = |parent, name: &[u8], new| view.create(parent, name, new, OWNER, NOW).unwrap().ino;
    let global = create(Ino::ROOT, b"global", NewInode::Directory);
    create(global, b"pg_control", NewInode::File);
    let sealer = Sealer::new(
        layout,
        LOG_END,
        parsed.timeline,
        None,
        parsed.blocks_per_segment,
        view.epoch(),
    );
    (view, sealer)
}

/// A vacuum or a count of a large table sets hint bits, which are not logged. More of its pages than were
/// remembered was the end of sealing, for good.
// hazard: WAL-5
#[tokio::test]
async fn checkpoints_are_sealed_however_many_pages_were_written() {
    const PAGES: usize = (4 << 20) + 1;
    const AT_ONCE: usize = 128;
    const SEGMENT_PAGES: usize = 131_072;
    let place = TempDir::new().unwrap();
    let (view, sealer) = active(&place).await;
    let pages = Bytes::from(vec![0; AT_ONCE * PAGE]);
    for first in (0..PAGES).step_by(AT_ONCE) {
        let path = format!("base/5/16384.{}", first / SEGMENT_PAGES + 1);
        let offset = (first % SEGMENT_PAGES * PAGE) as u64;
        sealer.data_written(&path, offset, &pages, view.open_generation());
    }
    for redo in [0x200_0000, 0x300_0000] {
        let written = sealer.control_written(&view, control(redo), NOW).await;
        written.unwrap();
        assert_eq!(view.seals().last().unwrap().redo, Lsn(redo));
    }
}
