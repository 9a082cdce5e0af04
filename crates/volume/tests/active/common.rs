//! A small layout and a cluster in memory for all tests here.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::NodeName;
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Storage, VolumeSettings};
use tempfile::TempDir;
use volume::active::{ActiveView, Inherited, NoObserver, Options, WriteObserver};
use volume::latest::{self, Latest};
use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::{Attr, Ino, NewInode, Ownership, Timestamp, View};

/// Bytes in a block.
pub const BLOCK: usize = 4096;
/// Bytes in a log segment.
pub const SEGMENT: u64 = 1000;
/// Owner of everything.
pub const OWNER: Ownership = Ownership {
    mode: 0o700,
    uid: 0,
    gid: 0,
};

/// `wal` is log with segments `wal/<n>`, `conf` and the control file are live, `tmp` and names in it
/// private, the rest data.
pub struct TestLayout;

impl Layout for TestLayout {
    fn class(&self, path: &str) -> FileClass {
        match path.split('/').next() {
            Some("wal") => FileClass::Log,
            Some("conf" | "control") => FileClass::Live,
            Some("tmp") => FileClass::Private,
            _ if path.ends_with(".private") => FileClass::Private,
            _ => FileClass::Data,
        }
    }

    fn hidden_on_standby(&self, _: &str) -> bool {
        false
    }

    fn hidden_by(&self, _: &str) -> Option<String> {
        None
    }

    fn log_range(&self, path: &str) -> Option<Range<Lsn>> {
        let number: u64 = path.strip_prefix("wal/")?.parse().ok()?;
        Some(Lsn(number * SEGMENT)..Lsn((number + 1) * SEGMENT))
    }

    fn private_directories(&self, _: bool) -> Vec<String> {
        vec!["tmp".into()]
    }

    fn control_file(&self) -> &str {
        "control"
    }
}

/// A volume in memory and the place for private files.
pub struct Volume {
    pub cluster: Arc<MemoryCluster>,
    local: TempDir,
    clock: std::sync::atomic::AtomicI64,
}

/// A view and the client below it.
pub struct Life {
    pub storage: Arc<MemoryStorage>,
    pub view: ActiveView,
}

impl Volume {
    /// A formatted volume.
    pub async fn format() -> Volume {
        let settings = VolumeSettings {
            block_size_bytes: BLOCK as u32,
            ..VolumeSettings::default()
        };
        let volume = Volume {
            cluster: MemoryCluster::new(settings),
            local: TempDir::new().unwrap(),
            clock: 1.into(),
        };
        let storage = volume.owner().await;
        let storage: Arc<dyn Storage> = storage;
        latest::format(&storage, OWNER, volume.now()).await.unwrap();
        volume
    }

    pub fn now(&self) -> Timestamp {
        Timestamp(
            self.clock
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed),
        )
    }

    /// A new client that owns a new epoch.
    pub async fn owner(&self) -> Arc<MemoryStorage> {
        let client = self.cluster.client();
        client
            .own_epoch(&NodeName::new("a").unwrap())
            .await
            .unwrap();
        client
    }

    /// A client that only reads.
    pub fn reader(&self) -> Arc<dyn Storage> {
        self.cluster.client()
    }

    pub fn private(&self) -> Arc<PrivateDir> {
        Arc::new(PrivateDir::prepare(self.local.path(), &TestLayout, false, OWNER).unwrap())
    }

    /// A new owner opens the volume.
    pub async fn open(&self) -> Life {
        self.open_with(Arc::new(NoObserver), None).await
    }

    pub async fn open_with(
        &self,
        observer: Arc<dyn WriteObserver>,
        inherited: Option<Inherited>,
    ) -> Life {
        let storage = self.owner().await;
        let latest = Latest::recover(storage.clone(), self.now()).await.unwrap();
        self.open_latest(storage, latest, observer, inherited).await
    }

    pub async fn open_latest(
        &self,
        storage: Arc<MemoryStorage>,
        latest: Latest,
        observer: Arc<dyn WriteObserver>,
        inherited: Option<Inherited>,
    ) -> Life {
        let options = Options::default();
        self.open_by(storage, latest, observer, inherited, options)
            .await
    }

    pub async fn open_by(
        &self,
        storage: Arc<MemoryStorage>,
        latest: Latest,
        observer: Arc<dyn WriteObserver>,
        inherited: Option<Inherited>,
        options: Options,
    ) -> Life {
        let layout = Arc::new(TestLayout);
        let view = ActiveView::open(latest, layout, self.private(), observer, inherited, options);
        Life {
            storage,
            view: view.await.unwrap(),
        }
    }
}

impl Life {
    /// Creates a file or directory at a path whose directory exists.
    pub fn create(&self, path: &str, new: NewInode) -> Attr {
        let (parent, name) = self.place(path);
        self.view
            .create(parent, name.as_bytes(), new, OWNER, Timestamp(1))
            .unwrap()
    }

    /// The directory of a path, and the name in it.
    pub fn place<'a>(&self, path: &'a str) -> (Ino, &'a str) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (
            self.find(parent)
                .unwrap_or_else(|| panic!("no directory {parent}"))
                .ino,
            name,
        )
    }

    pub fn find(&self, path: &str) -> Option<Attr> {
        let mut at = self.view.attr(Ino::ROOT).unwrap();
        for name in path.split('/').filter(|c| !c.is_empty()) {
            at = self.view.lookup(at.ino, name.as_bytes()).ok()?;
        }
        Some(at)
    }

    pub async fn write(&self, ino: Ino, offset: u64, data: impl Into<Vec<u8>>) {
        let data = Bytes::from(data.into());
        self.view
            .write(ino, offset, data, Timestamp(2))
            .await
            .unwrap();
    }

    /// A file's whole contents.
    pub async fn contents(&self, ino: Ino) -> Vec<u8> {
        let size = self.view.attr(ino).unwrap().size;
        self.view
            .read(ino, 0, size as u32 + 1)
            .await
            .unwrap()
            .to_vec()
    }

    /// Cuts and seals.
    pub async fn seal(&self, redo: u64) -> volume::seal::Seal {
        let cut = self.view.cut().await.unwrap();
        self.view
            .commit_seal(cut, Lsn(redo), Lsn(redo + 1), vec![1, 2, 3])
            .await
            .unwrap()
    }
}
