//! A volume with blocks beneath it that are not in its zones yet.
//!
//! ```text
//!   read ──▶ the zones ── have it ──▶ done
//!                 └── have nothing ──▶ what lies beneath: the block as it will be there, or nothing ──▶ the zones once more
//! ```
//!
//! Blocks beneath never change, and are copied into the zones meanwhile. So it does not matter from where a block comes.
//!
//! Invariants: blocks of one version never come from beneath; a block from beneath is older than everything that the volume has
//! written, so that truncation marks cover it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Result;
use crate::forms::Forms;
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version};
use crate::membership::{Change, Membership};
use crate::storage::{
    Authority, Block, Difference, EpochGrant, Prepared, ReplicaStatus, Retention, ScrubCursor,
    ScrubPage, Space, Storage, StorageCounters, SyncScope, Usage, VolumeSettings,
};

/// Blocks that a volume shows where its zones have nothing.
#[async_trait]
pub trait Beneath: Send + Sync + 'static {
    /// The block; `None` if there is none, or all are in the zones by now. Waits while it cannot be reached.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged or missing there.
    async fn block(&self, key: BlockKey) -> Result<Option<Block>>;
}

/// The version of every block that comes from beneath. The zones have another one when it was copied.
pub const VERSION: Version = Version {
    epoch: Epoch(1),
    seq: 0,
};

/// A handle to the volume that shows what lies beneath.
pub struct Over {
    inner: Arc<dyn Storage>,
    beneath: Arc<dyn Beneath>,
}

impl Over {
    /// The handle `inner`, with blocks beneath it.
    pub fn shared(inner: Arc<dyn Storage>, beneath: Arc<dyn Beneath>) -> Arc<dyn Storage> {
        Arc::new(Over { inner, beneath })
    }
}

#[async_trait]
impl Storage for Over {
    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        match self.inner.read(key, up_to).await? {
            None if up_to != Generation::SINGLE => {}
            found => return Ok(found),
        }
        match self.beneath.block(key).await? {
            // It may have been copied meanwhile, and what lies beneath may know nothing any more.
            None => self.inner.read(key, up_to).await,
            found => Ok(found),
        }
    }

    async fn read_expected(
        &self,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        match version == VERSION {
            // It may be in the zones by now, under the version that it has there.
            true => self.read(key, up_to).await,
            false => self.inner.read_expected(key, up_to, version).await,
        }
    }

    fn settings(&self) -> &VolumeSettings {
        self.inner.settings()
    }

    fn epoch(&self) -> Option<Epoch> {
        self.inner.epoch()
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        self.inner.accepted_epoch().await
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        self.inner.own_epoch(owner).await
    }

    fn is_leased(&self) -> bool {
        self.inner.is_leased()
    }

    async fn release(&self) -> Result<()> {
        self.inner.release().await
    }

    async fn confirm(&self) -> Result<Epoch> {
        self.inner.confirm().await
    }

    fn use_forms(&self, forms: Forms) {
        self.inner.use_forms(forms);
    }

    fn next_version(&self) -> Result<Version> {
        self.inner.next_version()
    }

    fn membership(&self) -> Option<Membership> {
        self.inner.membership()
    }

    fn sync_replicas(&self) -> u8 {
        self.inner.sync_replicas()
    }

    async fn change_members(&self, change: Change) -> Result<()> {
        self.inner.change_members(change).await
    }

    async fn cancel_change(&self) -> Result<()> {
        self.inner.cancel_change().await
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        self.inner.write(key, generation, data)
    }

    fn prepare(&self, key: BlockKey, generation: Generation, data: Bytes) -> Prepared {
        self.inner.prepare(key, generation, data)
    }

    fn write_prepared(
        &self,
        key: BlockKey,
        generation: Generation,
        block: Prepared,
    ) -> Result<Version> {
        self.inner.write_prepared(key, generation, block)
    }

    async fn acknowledged(&self, file: FileId, version: Version) -> Result<()> {
        self.inner.acknowledged(file, version).await
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        self.inner.write_room(bytes).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        self.inner.csync(scope).await
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        self.inner.read_promote(key).await
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        self.inner.put_record(name, value, authority).await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.inner.get_record(name).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.inner.promote_record(name).await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.inner.list_records(prefix).await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        self.inner.remove_record(name, authority).await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.inner.retain(retention).await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.inner.remove_files(files).await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.inner.remove_blocks_before(file, block).await
    }

    async fn scrub(&self, after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.inner.scrub(after).await
    }

    async fn mend(&self, differences: Vec<Difference>) -> Result<()> {
        self.inner.mend(differences).await
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        self.inner.end_scrub().await
    }

    async fn space(&self) -> Result<Space> {
        self.inner.space().await
    }

    async fn usage(&self) -> Result<Vec<(ReplicaId, Usage)>> {
        self.inner.usage().await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.inner.replicas()
    }

    fn counters(&self) -> StorageCounters {
        self.inner.counters()
    }

    async fn fenced(&self) {
        self.inner.fenced().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCluster;

    struct Fives;

    #[async_trait]
    impl Beneath for Fives {
        async fn block(&self, key: BlockKey) -> Result<Option<Block>> {
            let generation = Generation {
                epoch: Epoch(1),
                number: 0,
            };
            Ok((key.block.0 < 3).then(|| Block {
                version: VERSION,
                generation,
                data: vec![5; 8192].into(),
            }))
        }
    }

    // hazard: FILL-1
    #[tokio::test]
    async fn a_block_comes_from_beneath_until_the_volume_has_one() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let over = Over::shared(cluster.client(), Arc::new(Fives));
        over.own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        let key = |block| BlockKey::new(FileId(7), block);
        let byte = async |block, up_to| {
            let found = over.read(key(block), up_to).await.unwrap();
            found.map(|block| block.data[0])
        };
        assert_eq!(byte(1, Generation::MAX).await, Some(5));
        assert_eq!(byte(3, Generation::MAX).await, None);
        assert_eq!(byte(1, Generation::SINGLE).await, None, "of one version");
        let written = Generation {
            epoch: Epoch(1),
            number: 1,
        };
        over.write(key(1), written, vec![6; 8192].into()).unwrap();
        over.csync(SyncScope::Volume).await.unwrap();
        assert_eq!(byte(1, Generation::MAX).await, Some(6));
        let expected = over.read_expected(key(1), Generation::MAX, VERSION);
        assert_eq!(expected.await.unwrap().unwrap().data[0], 6);
    }

    /// Everything is copied after the zones were asked, and then the repository goes.
    struct Copied(Arc<dyn Storage>);

    #[async_trait]
    impl Beneath for Copied {
        async fn block(&self, key: BlockKey) -> Result<Option<Block>> {
            let generation = Generation {
                epoch: Epoch(1),
                number: 0,
            };
            self.0.write(key, generation, vec![5; 8192].into())?;
            self.0.csync(SyncScope::Volume).await?;
            Ok(None)
        }
    }

    // hazard: FILL-1
    #[tokio::test]
    async fn a_block_that_was_copied_meanwhile_is_no_zeros() {
        let cluster = MemoryCluster::new(VolumeSettings::default());
        let owner: Arc<dyn Storage> = cluster.client();
        owner
            .own_epoch(&NodeName::new("north").unwrap())
            .await
            .unwrap();
        let over = Over::shared(cluster.client(), Arc::new(Copied(owner)));
        let read = over.read(BlockKey::new(FileId(7), 1), Generation::MAX);
        assert_eq!(read.await.unwrap().unwrap().data[0], 5);
    }
}
