//! One small adapter per engine, each set up as the zone server would use it.

use std::path::Path;

use fjall::{KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use redb::ReadableDatabase;

/// Every engine built in.
pub const NAMES: &[&str] = &[
    "fjall",
    "fjall-blob",
    "redb",
    "heed",
    #[cfg(feature = "rocksdb")]
    "rocksdb",
];

/// What the comparison asks of an engine.
pub trait Kv: Sync {
    /// Writes all items atomically and durably.
    fn commit(&self, items: &[([u8; 24], &[u8])]);
    /// Reads one value and returns its length.
    fn get(&self, key: &[u8; 24]) -> usize;
}

/// Opens an empty store of the engine `name` in `dir`.
pub fn open(name: &str, dir: &Path) -> Box<dyn Kv> {
    match name {
        "fjall" => Box::new(Fjall::open(dir, None)),
        "fjall-blob" => Box::new(Fjall::open(dir, Some(KvSeparationOptions::default()))),
        "redb" => Box::new(Redb(redb::Database::create(dir.join("redb")).unwrap())),
        "heed" => Box::new(Heed::open(dir)),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(Rocks::open(dir)),
        other => panic!("no engine {other}"),
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Fjall {
    fn open(dir: &Path, blob: Option<KvSeparationOptions>) -> Fjall {
        let db = fjall::Database::builder(dir)
            .cache_size(64 << 20)
            .open()
            .unwrap();
        let options = || KeyspaceCreateOptions::default().with_kv_separation(blob);
        let keyspace = db.keyspace("blocks", options).unwrap();
        Fjall(db, keyspace)
    }
}

impl Kv for Fjall {
    fn commit(&self, items: &[([u8; 24], &[u8])]) {
        let mut batch = self.0.batch();
        for (key, value) in items {
            batch.insert(&self.1, *key, *value);
        }
        batch.commit().unwrap();
        self.0.persist(PersistMode::SyncData).unwrap();
    }
    fn get(&self, key: &[u8; 24]) -> usize {
        self.1.get(key).unwrap().unwrap().len()
    }
}

struct Redb(redb::Database);

const TABLE: redb::TableDefinition<&[u8; 24], &[u8]> = redb::TableDefinition::new("blocks");

impl Kv for Redb {
    fn commit(&self, items: &[([u8; 24], &[u8])]) {
        let tx = self.0.begin_write().unwrap();
        {
            let mut table = tx.open_table(TABLE).unwrap();
            for (key, value) in items {
                table.insert(key, *value).unwrap();
            }
        }
        tx.commit().unwrap();
    }
    fn get(&self, key: &[u8; 24]) -> usize {
        let table = self.0.begin_read().unwrap().open_table(TABLE).unwrap();
        table.get(key).unwrap().unwrap().value().len()
    }
}

struct Heed(
    &'static heed::Env,
    heed::Database<'static, heed::types::Bytes, heed::types::Bytes>,
);

impl Heed {
    fn open(dir: &Path) -> Heed {
        let mut options = heed::EnvOpenOptions::new();
        options.map_size(16 << 30);
        // SAFETY: nobody else touches the files of this benchmark.
        let env = unsafe { options.open(dir) }.unwrap();
        let env: &'static heed::Env = Box::leak(Box::new(env)); // a database borrows it
        let create = |opener: &heed::DatabaseOpener<'static, _>, tx: &mut heed::RwTxn<'static>| {
            let db = opener.create_database(tx, None)?;
            Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(db))
        };
        let db = env.create_databases_and_commit(env.write_txn().unwrap(), create);
        Heed(env, db.unwrap().unwrap_commit())
    }
}

impl Kv for Heed {
    fn commit(&self, items: &[([u8; 24], &[u8])]) {
        let mut tx = self.0.write_txn().unwrap();
        for (key, value) in items {
            self.1.put(&mut tx, key, value).unwrap();
        }
        tx.commit().unwrap();
    }
    fn get(&self, key: &[u8; 24]) -> usize {
        let tx = self.0.read_txn().unwrap();
        self.1.get(&tx, key).unwrap().unwrap().to_vec().len()
    }
}

#[cfg(feature = "rocksdb")]
struct Rocks(rocksdb::DB);

#[cfg(feature = "rocksdb")]
impl Rocks {
    fn open(dir: &Path) -> Rocks {
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        Rocks(rocksdb::DB::open(&options, dir).unwrap())
    }
}

#[cfg(feature = "rocksdb")]
impl Kv for Rocks {
    fn commit(&self, items: &[([u8; 24], &[u8])]) {
        let mut batch = rocksdb::WriteBatch::default();
        for (key, value) in items {
            batch.put(key, value);
        }
        let mut options = rocksdb::WriteOptions::default();
        options.set_sync(true);
        self.0.write_opt(&batch, &options).unwrap();
    }
    fn get(&self, key: &[u8; 24]) -> usize {
        self.0.get_pinned(key).unwrap().unwrap().len()
    }
}
