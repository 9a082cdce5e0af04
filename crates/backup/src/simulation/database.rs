//! A database in memory: a volume with data files and a log, and what each image of it must have.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coordination::records::{ActiveState, Cluster, Heartbeat, Record};
use dax::ids::{Generation, NodeName};
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Storage, VolumeSettings};
use pgdata::layout::{LOG, PostgresLayout};
use pgdata::segment::{SegmentName, SegmentSize};
use pgdata::timeline::TimelineId;
use tempfile::TempDir;
use volume::active::{ActiveView, NoObserver, Options};
use volume::latest::{self, Latest};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::{Ino, NewInode, Ownership, Timestamp, View};

use crate::repository::CHUNK_BYTES;

/// Bytes in a segment.
pub const SEGMENT: usize = 1 << 20;
/// Log before and after the seal of a round: a round fills a segment, and a little more.
const LOG_OF_A_ROUND: usize = 600 << 10;
/// Pieces of the large file.
const PIECES: usize = 2;

const OWNER: Ownership = Ownership {
    mode: 0o700,
    uid: 0,
    gid: 0,
};

/// Contents of files by their paths.
pub type Files = BTreeMap<String, Vec<u8>>;

/// See the module.
pub struct Database {
    /// The zones.
    pub zones: Arc<MemoryCluster>,
    storage: Arc<MemoryStorage>,
    view: ActiveView,
    rounds: u8,
    files: Files,
    /// All of its log, from the beginning on.
    pub log: Vec<u8>,
    /// The data files of each image.
    pub images: BTreeMap<Generation, Files>,
    _local: TempDir,
}

/// A real control file, with short segments.
fn control() -> Vec<u8> {
    let mut bytes = include_bytes!("../../../pgdata/tests/control/16.pg_control").to_vec();
    bytes[228..232].copy_from_slice(&(SEGMENT as u32).to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..288]);
    bytes[288..292].copy_from_slice(&sum.to_le_bytes());
    bytes
}

impl Database {
    /// A database with one image.
    pub async fn new() -> Database {
        let zones = MemoryCluster::new(VolumeSettings::default());
        let storage = zones.client();
        let node = NodeName::new("north").unwrap();
        storage.own_epoch(&node).await.unwrap();
        let shared: Arc<dyn Storage> = storage.clone();
        latest::format(&shared, OWNER, Timestamp(1)).await.unwrap();
        let latest = Latest::recover(shared.clone(), Timestamp(1)).await.unwrap();
        let local = tempfile::tempdir().unwrap();
        let size = SegmentSize::new(SEGMENT as u32).unwrap();
        let layout = PostgresLayout::new(size);
        let private = PrivateDir::prepare(local.path(), &layout, false, OWNER).unwrap();
        let view = ActiveView::open(
            latest,
            Arc::new(layout),
            Arc::new(private),
            Arc::new(NoObserver),
            None,
            Options::default(),
        );
        let mut database = Database {
            view: view.await.unwrap(),
            zones,
            storage,
            rounds: 0,
            files: Files::new(),
            log: Vec::new(),
            images: BTreeMap::new(),
            _local: local,
        };
        for directory in ["base", "base/5", "global", LOG] {
            database.make(directory, NewInode::Directory);
        }
        let version = database.make("PG_VERSION", NewInode::File);
        database.write(version, 0, b"16\n".to_vec()).await;
        database
            .add("base/5/1000", 1, PIECES * CHUNK_BYTES - 8192)
            .await;
        Cluster {
            system_identifier: 7,
            postgres_major: 16,
            wal_segment_bytes: SEGMENT as u32,
            page_bytes: 8192,
            data_checksums: false,
            superuser: "postgres".to_owned(),
            created_unix_ms: 1,
            libraries: None,
        }
        .store(database.storage.as_ref())
        .await
        .unwrap();
        database.round().await;
        database
    }

    /// Reader of the zones.
    pub fn reader(&self) -> Arc<dyn Storage> {
        self.zones.client()
    }

    /// Changes a piece, makes a file and removes one, writes log, and seals.
    pub async fn round(&mut self) {
        self.rounds += 1;
        let round = self.rounds;
        let place = usize::from(round) % PIECES;
        let path = "base/5/1000";
        let ino = self.find(path);
        self.change(path, ino, place * CHUNK_BYTES + 8192, &[round; 8192])
            .await;
        self.add(&format!("base/5/{}", 2000 + u32::from(round)), round, 8192)
            .await;
        let old = format!("base/5/{}", 2000 + u32::from(round) - 1);
        if self.files.remove(&old).is_some() {
            let (parent, name) = self.place(&old);
            self.view
                .unlink(parent, name.as_bytes(), Timestamp(2))
                .unwrap();
        }
        let redo = Lsn(self.log.len() as u64);
        self.append(round).await;
        let cut = self.view.cut().await.unwrap();
        let end = Lsn(self.log.len() as u64);
        let seal = self.view.commit_seal(cut, redo, end, control());
        let generation = seal.await.unwrap().generation;
        self.images.insert(generation, self.files.clone());
        self.append(round).await;
        self.view.sync_all().await.unwrap();
        self.beat().await;
    }

    async fn beat(&self) {
        let beat = Heartbeat {
            epoch: self.view.epoch(),
            counter: u64::from(self.rounds),
            node: NodeName::new("north").unwrap(),
            synced_lsn: Lsn(self.log.len() as u64),
            journal_synced: self.view.journal_synced().0,
            timeline: 1,
            starts: 0,
            configured: 0,
            interval_ms: 0,
            state: ActiveState::Serving,
        };
        beat.store(self.storage.as_ref()).await.unwrap();
    }

    async fn append(&mut self, round: u8) {
        let size = SegmentSize::new(SEGMENT as u32).unwrap();
        let mut rest = vec![round; LOG_OF_A_ROUND];
        while !rest.is_empty() {
            let at = self.log.len();
            let name = SegmentName::holding(TimelineId(1), Lsn(at as u64), size);
            let path = format!("{LOG}/{}", name.file_name(size));
            let ino = match at % SEGMENT {
                0 => self.make(&path, NewInode::File),
                _ => self.find(&path),
            };
            let room = SEGMENT - at % SEGMENT;
            let later = rest.split_off(rest.len().min(room));
            self.log.extend_from_slice(&rest);
            self.write(ino, at % SEGMENT, rest).await;
            rest = later;
        }
    }

    async fn add(&mut self, path: &str, contents: u8, len: usize) {
        let ino = self.make(path, NewInode::File);
        self.files.insert(path.to_owned(), Vec::new());
        self.change(path, ino, 0, &vec![contents; len]).await;
    }

    async fn change(&mut self, path: &str, ino: Ino, at: usize, bytes: &[u8]) {
        let file = self.files.get_mut(path).unwrap();
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        self.write(ino, at, bytes.to_vec()).await;
    }

    async fn write(&self, ino: Ino, at: usize, bytes: Vec<u8>) {
        let written = self
            .view
            .write(ino, at as u64, Bytes::from(bytes), Timestamp(2));
        written.await.unwrap();
    }

    fn place<'a>(&self, path: &'a str) -> (Ino, &'a str) {
        match path.rsplit_once('/') {
            Some((parent, name)) => (self.find(parent), name),
            None => (Ino::ROOT, path),
        }
    }

    fn find(&self, path: &str) -> Ino {
        let parts = path.split('/');
        parts.fold(Ino::ROOT, |at, name| {
            self.view.lookup(at, name.as_bytes()).unwrap().ino
        })
    }

    fn make(&self, path: &str, new: NewInode) -> Ino {
        let (parent, name) = self.place(path);
        let made = self
            .view
            .create(parent, name.as_bytes(), new, OWNER, Timestamp(1));
        made.unwrap().ino
    }
}
