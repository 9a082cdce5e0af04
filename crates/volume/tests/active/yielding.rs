//! A storage whose reads take a while, and which may have no room: whoever waits lets others run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::Result;
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
use dax::memory::MemoryStorage;
use dax::storage::{
    Authority, Block, Difference, EpochGrant, Prepared, ReplicaStatus, Retention, ScrubCursor,
    ScrubPage, Space, Storage, StorageCounters, SyncScope, VolumeSettings,
};
use tokio::sync::watch;

pub struct Yielding {
    pub memory: Arc<MemoryStorage>,
    /// How often a block was read for good in a new epoch.
    pub promotions: AtomicU64,
    /// Whoever wants room waits.
    pub is_full: watch::Sender<bool>,
    /// Called where blocks are packed.
    pub packing: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Yielding {
    pub fn over(memory: Arc<MemoryStorage>) -> Arc<Yielding> {
        Arc::new(Yielding {
            memory,
            promotions: AtomicU64::new(0),
            is_full: watch::Sender::new(false),
            packing: Mutex::default(),
        })
    }
}

#[async_trait]
impl Storage for Yielding {
    fn settings(&self) -> &VolumeSettings {
        self.memory.settings()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.memory.epoch()
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        self.memory.accepted_epoch().await
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        self.memory.own_epoch(owner).await
    }

    fn next_version(&self) -> Result<Version> {
        self.memory.next_version()
    }

    fn prepare(&self, _: BlockKey, _: Generation, data: Bytes) -> Prepared {
        if let Some(packing) = self.packing.lock().unwrap().as_ref() {
            packing();
        }
        Prepared::plain(data)
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.memory.write(key, generation, data)
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        let mut full = self.is_full.subscribe();
        full.wait_for(|full| !full)
            .await
            .expect("it lives as long as this");
        self.memory.write_room(bytes).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        self.memory.csync(scope).await
    }

    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        let found = self.memory.read(key, up_to).await;
        tokio::task::yield_now().await;
        found
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        self.promotions.fetch_add(1, Ordering::Relaxed);
        let found = self.memory.read_promote(key).await;
        tokio::task::yield_now().await;
        found
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        self.memory.put_record(name, value, authority).await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.memory.get_record(name).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.memory.promote_record(name).await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.memory.list_records(prefix).await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        self.memory.remove_record(name, authority).await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.memory.retain(retention).await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.memory.remove_files(files).await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.memory.remove_blocks_before(file, block).await
    }

    async fn space(&self) -> Result<Space> {
        self.memory.space().await
    }

    async fn scrub(&self, after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.memory.scrub(after).await
    }

    async fn mend(&self, differences: Vec<Difference>) -> Result<()> {
        self.memory.mend(differences).await
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        self.memory.end_scrub().await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.memory.replicas()
    }

    fn counters(&self) -> StorageCounters {
        self.memory.counters()
    }

    async fn fenced(&self) {
        self.memory.fenced().await
    }
}
