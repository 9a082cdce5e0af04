//! A storage whose reads take a while: whoever waits for one lets others run.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::Result;
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
use dax::memory::MemoryStorage;
use dax::storage::{
    Authority, Block, Difference, EpochGrant, ReplicaStatus, Retention, ScrubCursor, ScrubPage,
    Space, Storage, StorageCounters, SyncScope, VolumeSettings,
};

/// See the module.
pub struct Yielding(pub Arc<MemoryStorage>);

#[async_trait]
impl Storage for Yielding {
    fn settings(&self) -> &VolumeSettings {
        self.0.settings()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.0.epoch()
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        self.0.accepted_epoch().await
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        self.0.own_epoch(owner).await
    }

    fn next_version(&self) -> Result<Version> {
        self.0.next_version()
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.0.write(key, generation, data)
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        self.0.write_room(bytes).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        self.0.csync(scope).await
    }

    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        let found = self.0.read(key, up_to).await;
        tokio::task::yield_now().await;
        found
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        let found = self.0.read_promote(key).await;
        tokio::task::yield_now().await;
        found
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        self.0.put_record(name, value, authority).await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.0.get_record(name).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.0.promote_record(name).await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.0.list_records(prefix).await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        self.0.remove_record(name, authority).await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.0.retain(retention).await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.0.remove_files(files).await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.0.remove_blocks_before(file, block).await
    }

    async fn space(&self) -> Result<Space> {
        self.0.space().await
    }

    async fn scrub(&self, after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.0.scrub(after).await
    }

    async fn mend(&self, differences: Vec<Difference>) -> Result<()> {
        self.0.mend(differences).await
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        self.0.end_scrub().await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.0.replicas()
    }

    fn counters(&self) -> StorageCounters {
        self.0.counters()
    }

    async fn fenced(&self) {
        self.0.fenced().await
    }
}
