//! A volume in memory with an active and standbys, and files by path.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use dax::ids::NodeName;
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Storage, VolumeSettings};
use proptest::prelude::ProptestConfig;
use tempfile::TempDir;
use volume::active::{ActiveView, NoObserver, Options};
use volume::error::{Error, Result};
use volume::latest::{Latest, format};
use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::seal::{Base, Seal, load_seals};
use volume::standby::{ClaimWatch, StandbyOptions, StandbyView};
use volume::view::{
    Attr, AttrChange, FileKind, Ino, NewInode, Ownership, RenameMode, Timestamp, View,
};

pub const BLOCK: usize = 4096;
/// Bytes of a log segment.
pub const SEGMENT: u64 = 4 * BLOCK as u64;
pub const NOW: Timestamp = Timestamp(1_000_000);

/// The user who runs the tests, so that private files can belong to it.
pub fn owner(mode: u16) -> Ownership {
    Ownership {
        mode,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// Like PostgreSQL's, with numbers for the names of log segments.
pub struct TestLayout;

impl Layout for TestLayout {
    fn class(&self, path: &str) -> FileClass {
        match path {
            "postmaster.pid" => FileClass::Private,
            "global/pg_control" => FileClass::Live,
            p if p.ends_with("pg_internal.init") => FileClass::Private,
            p if p.ends_with(".conf") => FileClass::Live,
            p if p == "pg_wal" || p.starts_with("pg_wal/") => FileClass::Log,
            _ => FileClass::Data,
        }
    }

    fn standby_class(&self, path: &str) -> FileClass {
        let private = ["global/pg_control", "pg_twophase", "pg_logical/snapshots"];
        let inside = |p: &&str| path == *p || path.starts_with(&format!("{p}/"));
        match private.iter().any(inside) {
            true => FileClass::Private,
            false => self.class(path),
        }
    }

    fn hidden_on_standby(&self, path: &str) -> bool {
        path == "backup_label"
    }

    fn hidden_by(&self, name: &str) -> Option<String> {
        let digits = name.bytes().take_while(u8::is_ascii_digit).count();
        let (number, fork) = name.split_at(digits);
        (digits > 0 && fork != "_init").then(|| format!("{number}_init"))
    }

    fn log_range(&self, path: &str) -> Option<Range<Lsn>> {
        let number: u64 = path.strip_prefix("pg_wal/")?.parse().ok()?;
        Some(Lsn(number * SEGMENT)..Lsn((number + 1) * SEGMENT))
    }

    fn private_directories(&self, standby: bool) -> Vec<String> {
        match standby {
            true => vec![
                "global".into(),
                "pg_twophase".into(),
                "pg_logical/snapshots".into(),
            ],
            false => Vec::new(),
        }
    }

    fn published_at_switch(&self) -> Vec<String> {
        vec!["global/pg_control".into(), "pg_twophase".into()]
    }

    fn added_at_switch(&self) -> Vec<String> {
        vec!["pg_logical/snapshots".into()]
    }

    fn needed_directories(&self) -> Vec<String> {
        vec!["slots.conf".into()]
    }
}

/// One volume and its nodes' local disks.
pub struct Volume {
    pub cluster: Arc<MemoryCluster>,
    pub disk: TempDir,
    nodes: std::cell::Cell<u32>,
}

pub fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub fn shared(storage: &Arc<MemoryStorage>) -> Arc<dyn Storage> {
    storage.clone()
}

impl Volume {
    /// Reads of an expected version find any that was ever durable: the nearest replica has missed all
    /// that came after it.
    pub fn new() -> Volume {
        let settings = VolumeSettings {
            block_size_bytes: BLOCK as u32,
            ..VolumeSettings::default()
        };
        let cluster = MemoryCluster::new(settings);
        cluster.set_stale_replica(true);
        Volume {
            cluster,
            disk: tempfile::tempdir().unwrap(),
            nodes: std::cell::Cell::new(0),
        }
    }

    /// A new volume's first active, with the directories of a database.
    pub async fn init(&self) -> (Arc<MemoryStorage>, Database) {
        let storage = self.owning("first").await;
        format(&shared(&storage), owner(0o700), NOW).await.unwrap();
        let database = self.open_again(Arc::clone(&storage)).await;
        for dir in [
            "base",
            "base/5",
            "global",
            "pg_twophase",
            "pg_logical",
            "pg_wal",
        ] {
            database.mkdir(dir).unwrap();
        }
        database.mkdir("pg_logical/snapshots").unwrap();
        (storage, database)
    }

    /// The owner of an epoch opens the volume.
    pub async fn open_again(&self, storage: Arc<MemoryStorage>) -> Database {
        let latest = Latest::recover(storage, NOW).await.unwrap();
        let active = ActiveView::open(
            latest,
            Arc::new(TestLayout),
            self.private(false),
            Arc::new(NoObserver),
            None,
            Options::default(),
        );
        Database::of(active.await.unwrap())
    }

    /// A client that owns a new epoch.
    pub async fn owning(&self, name: &str) -> Arc<MemoryStorage> {
        let storage = self.cluster.client();
        storage.own_epoch(&node(name)).await.unwrap();
        storage
    }

    pub fn private(&self, standby: bool) -> Arc<PrivateDir> {
        self.nodes.set(self.nodes.get() + 1);
        let place = self.disk.path().join(self.nodes.get().to_string());
        std::fs::create_dir_all(&place).unwrap();
        let dir = PrivateDir::prepare(&place, &TestLayout, standby, owner(0o700));
        Arc::new(dir.unwrap())
    }

    /// A standby at the last seal.
    pub async fn attach(&self) -> (Arc<StandbyView>, Database) {
        let storage = shared(&self.cluster.client());
        let seal = load_seals(&storage).await.unwrap().pop().unwrap();
        self.attach_at(&seal, 1 << 20).await
    }

    pub async fn attach_at(
        &self,
        seal: &Seal,
        memory_bytes_max: u64,
    ) -> (Arc<StandbyView>, Database) {
        self.attach_claiming(seal, memory_bytes_max, None).await
    }

    pub async fn attach_claiming(
        &self,
        seal: &Seal,
        memory_bytes_max: u64,
        claim: Option<ClaimWatch>,
    ) -> (Arc<StandbyView>, Database) {
        let storage = shared(&self.cluster.client());
        let base = Base::load(&storage, seal).await.unwrap();
        let live = base.namespace.clone();
        let options = StandbyOptions {
            spill_dir: self.disk.path().to_owned(),
            memory_bytes_max,
            cache_bytes: 1 << 20,
            claim,
        };
        let private = self.private(true);
        let layout = Arc::new(TestLayout);
        let view = StandbyView::attach(storage, layout, base, live, private, options).unwrap();
        let database = Database::new(view.clone());
        (view, database)
    }

    /// The standby takes over with a new epoch.
    pub async fn take_over(&self, view: &Arc<StandbyView>) -> (Arc<MemoryStorage>, Database) {
        let storage = self.owning("next").await;
        let latest = Latest::recover(storage.clone(), NOW).await.unwrap();
        let observer = Arc::new(NoObserver);
        let active = view
            .become_active(latest, observer, Options::default(), NOW)
            .await
            .unwrap();
        (storage, Database::of(active))
    }
}

/// A view, used by path.
#[derive(Clone)]
pub struct Database {
    pub view: Arc<dyn View>,
    pub active: Option<ActiveView>,
}

impl Database {
    pub fn new(view: Arc<dyn View>) -> Database {
        Database { view, active: None }
    }

    fn of(active: ActiveView) -> Database {
        Database {
            view: Arc::new(active.clone()),
            active: Some(active),
        }
    }

    pub fn ino(&self, path: &str) -> Result<Ino> {
        let mut parts = path.split('/').filter(|p| !p.is_empty());
        parts.try_fold(Ino::ROOT, |dir, name| {
            self.view.lookup(dir, name.as_bytes()).map(|a| a.ino)
        })
    }

    pub fn at<'a>(&self, path: &'a str) -> Result<(Ino, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.ino(dir)?, name.as_bytes()))
    }

    pub fn create(&self, path: &str) -> Result<Attr> {
        let (dir, name) = self.at(path)?;
        self.view
            .create(dir, name, NewInode::File, owner(0o600), NOW)
    }

    pub fn mkdir(&self, path: &str) -> Result<Attr> {
        let (dir, name) = self.at(path)?;
        self.view
            .create(dir, name, NewInode::Directory, owner(0o700), NOW)
    }

    pub async fn write(&self, path: &str, offset: u64, data: &[u8]) -> Result<()> {
        let data = Bytes::copy_from_slice(data);
        self.view.write(self.ino(path)?, offset, data, NOW).await
    }

    /// Creates a file with this content.
    pub async fn put(&self, path: &str, data: &[u8]) -> Ino {
        let ino = self
            .create(path)
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .ino;
        self.write(path, 0, data).await.unwrap();
        ino
    }

    pub async fn truncate(&self, path: &str, size: u64) -> Result<Attr> {
        let change = AttrChange {
            size: Some(size),
            ..AttrChange::default()
        };
        self.view.set_attr(self.ino(path)?, change, NOW).await
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path)?;
        self.view.unlink(dir, name, NOW)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.at(path)?;
        self.view.rmdir(dir, name, NOW)
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.at(from)?, self.at(to)?);
        self.view.rename(from, to, RenameMode::Replace, NOW)
    }

    pub async fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.read_ino(self.ino(path)?).await
    }

    pub async fn read_ino(&self, ino: Ino) -> Result<Vec<u8>> {
        let size = self.view.attr(ino)?.size;
        Ok(self.view.read(ino, 0, size as u32 + 1).await?.to_vec())
    }

    pub fn exists(&self, path: &str) -> bool {
        match self.ino(path) {
            Ok(_) => true,
            Err(Error::NotFound) => false,
            Err(e) => panic!("lookup of {path}: {e}"),
        }
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = self.view.read_dir(self.ino(path).unwrap()).unwrap();
        let names = entries
            .into_iter()
            .map(|e| String::from_utf8(e.name).unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Everything below a directory: files with their contents, directories with `None`.
    pub async fn tree(&self, path: &str) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut tree = BTreeMap::new();
        let mut left = vec![path.to_owned()];
        while let Some(dir) = left.pop() {
            let ino = self.ino(&dir).unwrap();
            for entry in self.view.read_dir(ino).unwrap() {
                let path = format!("{dir}/{}", String::from_utf8(entry.name.clone()).unwrap());
                let found = self.view.lookup(ino, &entry.name).unwrap();
                assert_eq!((found.ino, found.kind), (entry.ino, entry.kind), "{path}");
                let content = match entry.kind {
                    FileKind::Directory => {
                        assert_eq!(self.view.parent(entry.ino).unwrap(), ino, "{path}");
                        left.push(path.clone());
                        None
                    }
                    _ => Some(self.read_ino(entry.ino).await.unwrap()),
                };
                tree.insert(path, content);
            }
        }
        tree
    }

    /// The active seals what it has, with this redo pointer and end.
    pub async fn seal(&self, at: u64) -> Seal {
        let active = self.active.as_ref().unwrap();
        let cut = active.cut().await.unwrap();
        active
            .commit_seal(cut, Lsn(at), Lsn(at), Vec::new())
            .await
            .unwrap()
    }
}

/// As many cases as PROPTEST_CASES says, else `few`.
pub fn cases(few: u32) -> ProptestConfig {
    let said = std::env::var("PROPTEST_CASES").ok();
    let cases = said.and_then(|n| n.parse().ok()).unwrap_or(few);
    ProptestConfig {
        cases,
        max_shrink_iters: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Blocks of one byte each.
pub fn blocks(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|b| vec![*b; BLOCK]).collect()
}
