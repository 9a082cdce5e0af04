//! A storage backend inside the process: exact, small, and with knobs for what goes wrong.
//!
//! One [`MemoryCluster`] is one volume as a quorum sees it; every [`MemoryStorage`] is a client of it
//! (a node's life). It is harsher than the real thing where that finds bugs: a write becomes durable,
//! and visible to other clients, only by a sync point, by back-pressure, or because a test says so.
//!
//! A volume may lie over an image of another one ([`MemoryCluster::over`]), as in the zones.
//!
//! Invariant: what one client's completed `csync` covers is visible to every later read of every
//! client; what a fenced client had not synced by then never becomes visible.

mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{
    BlockIndex, BlockKey, Epoch, FileId, Generation, NodeName, ReplicaId, Version, VolumeName,
};
use crate::layer::Layer;
use crate::replica::Fence;
use crate::storage::{
    Authority, Block, Difference, EpochGrant, Lineage, ReplicaStatus, Retention, ScrubCursor,
    ScrubPage, Space, Storage, StorageCounters, SyncScope, VolumeSettings,
};
use crate::wire::MAX_RECORD_BYTES;
use state::{Below, ClientId, State};

/// A write that is not durable yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsyncedWrite {
    /// Block that was written.
    pub key: BlockKey,
    /// Its generation.
    pub generation: Generation,
    /// Version that the write has.
    pub version: Version,
    /// Contents of the whole block.
    pub data: Bytes,
}

/// One volume in memory, shared by its clients.
#[derive(Debug)]
pub struct MemoryCluster {
    settings: VolumeSettings,
    state: Mutex<State>,
    changed: Notify,
    pending_bytes_max: AtomicUsize,
}

impl MemoryCluster {
    /// An empty volume.
    pub fn new(settings: VolumeSettings) -> Arc<MemoryCluster> {
        Arc::new(MemoryCluster {
            settings,
            state: Mutex::default(),
            changed: Notify::new(),
            pending_bytes_max: AtomicUsize::new(64 << 20),
        })
    }

    /// An empty volume that is laid over an image of another one, which has this name.
    pub fn over(
        parent: &Arc<MemoryCluster>,
        name: VolumeName,
        image: Lineage,
    ) -> Arc<MemoryCluster> {
        let layer = Layer {
            parent: name,
            first_epoch: parent.state.lock().fence.grant().epoch.next(),
            image: image.clone(),
            proof: None,
        };
        let settings = parent.settings.under(layer);
        let mut state = State::default();
        state.fence = Fence::new(EpochGrant {
            epoch: settings.unowned(),
            owner: String::new(),
        });
        state.below = Some(Below {
            parent: Arc::clone(parent),
            image,
        });
        Arc::new(MemoryCluster {
            settings,
            state: Mutex::new(state),
            changed: Notify::new(),
            pending_bytes_max: AtomicUsize::new(64 << 20),
        })
    }

    /// A new client, which owns no epoch.
    pub fn client(self: &Arc<Self>) -> Arc<MemoryStorage> {
        let id = self.state.lock().new_client();
        Arc::new(MemoryStorage {
            cluster: Arc::clone(self),
            id,
        })
    }

    /// While held, no sync point completes: nothing becomes durable.
    pub fn hold_syncs(&self, held: bool) {
        self.change(|s| s.held = held);
    }

    /// While on, sync points of the whole volume are answered although nothing becomes durable by them:
    /// a storage that does not keep its promise, for tests of those who rely on it.
    pub fn forget_syncs(&self, forgets: bool) {
        self.change(|s| s.forgets = forgets);
    }

    /// After so many more writes, of whomever, somebody else owns the next epoch, and does nothing with it: the
    /// writer is fenced right before its next write. `None`: not so.
    pub fn fence_after_writes(&self, writes: Option<usize>) {
        self.change(|s| s.fence_after_writes = writes);
    }

    /// While full, nothing becomes durable and no room is reported.
    pub fn set_full(&self, full: bool) {
        self.change(|s| s.full = full);
    }

    /// How many bytes may be pending before [`Storage::write_room`] makes writes durable by itself
    /// (or waits, while it cannot). Default 64 MiB.
    pub fn set_pending_bytes_max(&self, bytes: usize) {
        self.pending_bytes_max.store(bytes, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// While set, the nearest replica is as stale as can be: whatever version
    /// [`Storage::read_expected`] is told to expect, it has, if that version was durable since this was
    /// set. So a wrong expectation shows as a wrong answer.
    pub fn set_stale_replica(&self, stale: bool) {
        self.change(|s| s.ever_stored = stale.then(Default::default));
    }

    /// The newest durable version of a block in an image.
    fn shown(&self, key: BlockKey, image: &Lineage) -> Option<Block> {
        self.state.lock().shown(key, image)
    }

    /// The newest durable version of a block, whoever asks.
    pub fn durable(&self, key: BlockKey, up_to: Generation) -> Option<Block> {
        self.state.lock().durable(key, up_to)
    }

    /// How many durable versions there are in all, of all blocks.
    pub fn stored_versions(&self) -> usize {
        self.state.lock().stored_versions()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.notify_waiters();
        result
    }

    /// Tries until `attempt` gives something, again after every change.
    async fn until<T>(
        &self,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(result) = attempt(&mut self.state.lock())? {
                return Ok(result);
            }
            changed.await;
        }
    }
}

/// A client of a [`MemoryCluster`].
#[derive(Debug)]
pub struct MemoryStorage {
    cluster: Arc<MemoryCluster>,
    id: ClientId,
}

impl MemoryStorage {
    /// While cut off, every operation of this client that needs the cluster waits, and it does not
    /// learn that it is fenced.
    pub fn cut_off(&self, cut_off: bool) {
        self.cluster.change(|s| s.client(self.id).cut_off = cut_off);
    }

    /// What this client has written and not synced, in order.
    pub fn unsynced(&self) -> Vec<UnsyncedWrite> {
        self.cluster.state.lock().client(self.id).pending.clone()
    }

    /// Makes chosen unsynced writes durable, as if they alone had reached the replicas, in any order.
    /// Has no effect on a fenced client.
    pub fn land(&self, mut chosen: impl FnMut(&UnsyncedWrite) -> bool) {
        self.cluster.change(|s| {
            let _ = s.land(self.id, |write| chosen(write));
        });
    }

    /// The writer dies: of its unsynced writes exactly those that `survives` chooses are durable, the
    /// others never happened. Every operation of this handle fails from now on.
    pub fn crash(&self, survives: impl FnMut(&UnsyncedWrite) -> bool) {
        self.land(survives);
        self.cluster.change(|s| s.client(self.id).die());
    }

    /// Runs an attempt once the cluster can be reached.
    async fn reach<T>(
        &self,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let attempt = |s: &mut State| {
            s.check_alive(self.id)?;
            if s.client(self.id).cut_off {
                return Ok(None);
            }
            s.check_fence(self.id)?;
            attempt(s)
        };
        self.cluster.until(attempt).await
    }

    async fn at_once<T>(&self, mut attempt: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        self.reach(|s| attempt(s).map(Some)).await
    }
}

fn not_owner() -> Error {
    Error::new(ErrorKind::Invalid, "this handle owns no epoch")
}

#[async_trait]
impl Storage for MemoryStorage {
    fn settings(&self) -> &VolumeSettings {
        &self.cluster.settings
    }

    fn epoch(&self) -> Option<Epoch> {
        self.cluster.state.lock().client(self.id).epoch
    }

    async fn accepted_epoch(&self) -> Result<EpochGrant> {
        let attempt = |s: &mut State| {
            s.check_alive(self.id)?;
            let reachable = !s.client(self.id).cut_off;
            Ok(reachable.then(|| s.fence.grant().clone()))
        };
        self.cluster.until(attempt).await
    }

    async fn own_epoch(&self, owner: &NodeName) -> Result<Epoch> {
        let epoch = self.at_once(|s| s.own_epoch(self.id, owner)).await?;
        self.cluster.changed.notify_waiters();
        Ok(epoch)
    }

    fn next_version(&self) -> Result<Version> {
        let mut state = self.cluster.state.lock();
        state.check_writer(self.id)?;
        state.client(self.id).next_version().ok_or_else(not_owner)
    }

    fn write(&self, key: BlockKey, generation: Generation, data: Bytes) -> Result<Version> {
        if data.len() != self.cluster.settings.block_size_bytes as usize {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a write of {} bytes is not one block", data.len()),
            ));
        }
        let mut state = self.cluster.state.lock();
        state.count_to_fence()?;
        state.check_writer(self.id)?;
        let client = state.client(self.id);
        let version = client.next_version().ok_or_else(not_owner)?;
        client.counters.writes += 1;
        client.pending.push(UnsyncedWrite {
            key,
            generation,
            version,
            data,
        });
        Ok(version)
    }

    async fn write_room(&self, bytes: usize) -> Result<()> {
        let max = self.cluster.pending_bytes_max.load(Ordering::Relaxed);
        let attempt = |s: &mut State| {
            s.check_writer(self.id)?;
            let pending: usize = s.client(self.id).pending.iter().map(|w| w.data.len()).sum();
            if pending == 0 || pending + bytes <= max {
                return Ok(Some(()));
            }
            if s.can_sync(self.id) {
                s.land(self.id, |_| true)?;
                return Ok(Some(()));
            }
            Ok(None)
        };
        self.cluster.until(attempt).await
    }

    async fn csync(&self, scope: SyncScope) -> Result<()> {
        let covered: Vec<Version> = {
            let mut state = self.cluster.state.lock();
            state.check_writer(self.id)?;
            let pending = &state.client(self.id).pending;
            let covered = pending.iter().filter(|w| in_scope(scope, w));
            covered.map(|w| w.version).collect()
        };
        let attempt = |s: &mut State| {
            if !s.can_sync(self.id) {
                return Ok(None);
            }
            if s.forgets && scope == SyncScope::Volume {
                return Ok(Some(()));
            }
            s.land(self.id, |w| covered.binary_search(&w.version).is_ok())?;
            s.client(self.id).counters.syncs += 1;
            Ok(Some(()))
        };
        self.reach(attempt).await
    }

    async fn read(&self, key: BlockKey, up_to: Generation) -> Result<Option<Block>> {
        self.at_once(|s| Ok(s.read(self.id, key, up_to))).await
    }

    async fn read_expected(
        &self,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        self.at_once(|s| s.read_expected(self.id, key, up_to, version))
            .await
    }

    async fn read_promote(&self, key: BlockKey) -> Result<Option<Block>> {
        self.at_once(|s| s.promote(self.id, key)).await
    }

    async fn put_record(&self, name: &str, value: Bytes, authority: Authority) -> Result<()> {
        if value.len() > MAX_RECORD_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("record {name} of {} bytes is above 1 MiB", value.len()),
            ));
        }
        self.at_once(|s| s.put_record(self.id, name, Some(value.clone()), authority))
            .await
    }

    async fn get_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.at_once(|s| Ok(s.get_record(name))).await
    }

    async fn promote_record(&self, name: &str) -> Result<Option<Bytes>> {
        self.at_once(|s| {
            s.client(self.id).epoch.ok_or_else(not_owner)?;
            Ok(s.get_record(name))
        })
        .await
    }

    async fn list_records(&self, prefix: &str) -> Result<Vec<(String, Bytes)>> {
        self.at_once(|s| Ok(s.list_records(prefix))).await
    }

    async fn remove_record(&self, name: &str, authority: Authority) -> Result<()> {
        self.at_once(|s| s.put_record(self.id, name, None, authority))
            .await
    }

    async fn retain(&self, retention: Retention) -> Result<()> {
        self.at_once(|s| {
            s.client(self.id).epoch.ok_or_else(not_owner)?;
            s.retain(retention.clone());
            Ok(())
        })
        .await
    }

    async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.at_once(|s| {
            s.client(self.id).epoch.ok_or_else(not_owner)?;
            s.remove_files(self.id, files);
            Ok(())
        })
        .await
    }

    async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.at_once(|s| {
            s.client(self.id).epoch.ok_or_else(not_owner)?;
            s.remove_blocks_before(self.id, file, block);
            Ok(())
        })
        .await
    }

    async fn scrub(&self, _after: Option<ScrubCursor>) -> Result<ScrubPage> {
        self.at_once(|s| {
            s.client(self.id).epoch.ok_or_else(not_owner)?;
            Ok(s.inventory())
        })
        .await
    }

    /// There is one copy here, so nothing ever differs.
    async fn mend(&self, _differences: Vec<Difference>) -> Result<()> {
        self.at_once(|s| s.client(self.id).epoch.ok_or_else(not_owner).map(drop))
            .await
    }

    async fn end_scrub(&self) -> Result<Vec<ReplicaId>> {
        self.mend(Vec::new()).await?;
        Ok(Vec::new())
    }

    async fn space(&self) -> Result<Space> {
        self.at_once(|s| Ok(s.space())).await
    }

    fn replicas(&self) -> Vec<ReplicaStatus> {
        let mut state = self.cluster.state.lock();
        let full = state.full;
        let client = state.client(self.id);
        let (up, pending) = (!client.cut_off, &client.pending);
        let pending_bytes = pending.iter().map(|w| w.data.len() as u64).sum();
        let settings = &self.cluster.settings;
        let replica = |replica| ReplicaStatus {
            replica: ReplicaId(replica),
            zone: settings.zone_of(ReplicaId(replica)),
            address: format!("memory:{replica}"),
            store: None,
            up,
            round_trip: None,
            pending_bytes,
            missed_blocks: 0,
            scrub_wanted: false,
            rebuilding: false,
            reads: Some(crate::forms::Forms::NEWEST),
            full,
            trouble: full.then(|| "no room".to_owned()),
        };
        (0..settings.replicas).map(replica).collect()
    }

    fn counters(&self) -> StorageCounters {
        self.cluster.state.lock().client(self.id).counters.clone()
    }

    async fn fenced(&self) {
        let attempt = |s: &mut State| {
            let cut_off = s.client(self.id).cut_off;
            Ok((!cut_off && s.check_fence(self.id).is_err()).then_some(()))
        };
        self.cluster
            .until(attempt)
            .await
            .expect("the attempt gives no error");
    }
}

fn in_scope(scope: SyncScope, write: &UnsyncedWrite) -> bool {
    match scope {
        SyncScope::Volume => true,
        SyncScope::File(file) => write.key.file == file,
        SyncScope::FileUpTo(file, version) => write.key.file == file && write.version <= version,
    }
}

#[cfg(test)]
mod tests;
