//! Cutting a generation off and sealing it.

use std::sync::Arc;

use bytes::Bytes;
use dax::ids::{BlockIndex, BlockKey, FileId, Generation};
use dax::storage::{Lineage, SyncScope};

use super::{ActiveView, Inner};
use crate::error::{Error, Result};
use crate::image;
use crate::journal::Chained;
use crate::lists::{self, KEPT_LISTS, ListRef};
use crate::lsn::Lsn;
use crate::namespace::Namespace;
use crate::namespace::op::Op;
use crate::seal::{self, KEPT_SEALS, Seal};
use crate::snapshot::{self, SnapshotRef};
use crate::view::Timestamp;

/// A new snapshot is written once the journal since the last one is longer than this and than the
/// snapshot itself.
const SNAPSHOT_AFTER_BYTES: u64 = 1 << 20;

/// One point of the write stream: everything before it is in the image, nothing after it.
#[derive(Debug, Clone)]
pub struct CutImage {
    /// The generation that ended here.
    pub generation: Generation,
    /// The image's generations, up to that one.
    pub lineage: Lineage,
    /// The journal at this point.
    pub place: Chained,
    /// The namespace at this point.
    pub namespace: Namespace,
    /// When that was.
    pub at: Timestamp,
    /// No file of the image has a higher id.
    pub newest_file: FileId,
}

impl ActiveView {
    /// Ends the open generation at one point of the order that block writes, sizes and names
    /// share, after every request received before the call, and after everything inherited was
    /// written back (N10).
    pub async fn cut(&self) -> Result<CutImage> {
        let inner = &self.inner;
        inner.carried_over().await?;
        inner.tickets.wait_for_earlier().await;
        inner.check_authority()?;
        let mut core = inner.core.lock();
        let changed: Vec<_> = core.mtimes.drain().collect();
        for (id, at) in changed {
            if core.namespace.get(id).is_some_and(|inode| inode.mtime < at) {
                let op = Op::SetAttr {
                    id,
                    mode: None,
                    uid: None,
                    gid: None,
                    mtime: Some(at),
                    at,
                };
                inner.commit(&mut core, op, None)?;
            }
        }
        let generation = core.open;
        core.open = generation.next();
        core.writes.cut(generation);
        Ok(CutImage {
            generation,
            lineage: inner.lineage.truncated(generation),
            place: inner.journal.end(),
            namespace: core.namespace.clone(),
            at: inner.past.now(),
            newest_file: FileId::new(inner.epoch, core.next_file),
        })
    }

    /// Makes a cut durable and states so: afterwards it is the volume's last seal. What nobody needs
    /// any more is given back in the background.
    ///
    /// `redo` is where redo from this image starts, `end` (W) the end of the last complete record in
    /// the synced log, read after the cut.
    pub async fn commit_seal(
        &self,
        cut: CutImage,
        redo: Lsn,
        end: Lsn,
        payload: Vec<u8>,
    ) -> Result<Seal> {
        let inner = &self.inner;
        let _one = inner.sealing.lock().await;
        let blocks = async { Ok(inner.storage.csync(SyncScope::Volume).await?) };
        let journal = inner.journal.flush_to(cut.place.at);
        let list = inner.list_for(cut.generation);
        let mut seals = inner.core.lock().seals.clone();
        let past = inner.keep_leaving(&seals);
        let ((), (), list, ()) = tokio::try_join!(journal, blocks, list, past)?;
        let sealed = Seal {
            snapshot: inner.snapshot_for(&cut, seals.last()).await?,
            lists: with_list(&seals, list),
            generation: cut.generation,
            lineage: cut.lineage,
            journal: cut.place.at,
            redo,
            end,
            at: Some(cut.at),
            newest_file: Some(cut.newest_file),
            payload,
        };
        seals.push(sealed.clone());
        let gone: Vec<Seal> = seals
            .drain(..seals.len().saturating_sub(KEPT_SEALS))
            .collect();
        seal::put_seals(&inner.storage, &seals).await?;
        inner.replace_seals(seals, &gone).await?;
        inner.sealed.send_replace(sealed.generation);
        let inner = inner.clone();
        tokio::spawn(async move { inner.reclaim_quietly().await });
        Ok(sealed)
    }

    /// A block as it is in a cut or sealed image of this view; `None` reads as zeros.
    pub async fn read_image(
        &self,
        cut: &CutImage,
        file: FileId,
        block: BlockIndex,
    ) -> Result<Option<Bytes>> {
        let inode = cut.namespace.file(file)?;
        let key = BlockKey { file, block };
        let found = image::read_block(&self.inner.storage, &cut.lineage, inode, key).await?;
        Ok(found.map(|b| b.data))
    }
}

impl Inner {
    /// The last snapshot while the way from it is short, else a new one.
    async fn snapshot_for(
        self: &Arc<Self>,
        cut: &CutImage,
        last: Option<&Seal>,
    ) -> Result<SnapshotRef> {
        if let Some(Seal { snapshot, .. }) = last
            && cut.place.at.0 - snapshot.at.0 <= snapshot.bytes.max(SNAPSHOT_AFTER_BYTES)
        {
            return Ok(snapshot.clone());
        }
        let file = self.core.lock().allocate(self.epoch);
        snapshot::store(&self.storage, file, &cut.namespace, cut.place).await
    }

    /// Writes down which blocks the seal has over the one before, besides the sync of those blocks. Not
    /// durable by itself: a list without its seal is garbage, as a snapshot without one is.
    async fn list_for(self: &Arc<Self>, sealed: Generation) -> Result<Option<ListRef>> {
        let unsealed = self.core.lock().writes.unsealed(sealed);
        let Some(unsealed) = unsealed else {
            return Ok(None);
        };
        let after = unsealed.after;
        let encoding = tokio::task::spawn_blocking(move || unsealed.encode());
        let encoded = encoding
            .await
            .map_err(|e| Error::Local(std::io::Error::other(e)))?;
        let file = self.core.lock().allocate(self.epoch);
        let list = lists::store(&self.storage, file, (after, sealed), &encoded).await?;
        Ok(Some(list))
    }

    /// Takes the new seals over; files that only the gone ones named go to the removed files.
    async fn replace_seals(&self, seals: Vec<Seal>, gone: &[Seal]) -> Result<()> {
        let mut ids: Vec<FileId> = gone.iter().flat_map(Seal::files).collect();
        ids.sort_unstable();
        ids.dedup();
        let past = self.past.index.lock().await;
        let mut core = self.core.lock();
        ids.retain(|id| seals.iter().flat_map(Seal::files).all(|file| file != *id));
        let kept = past.as_ref().map(|index| index.files().collect::<Vec<_>>());
        ids.retain(|id| kept.as_ref().is_none_or(|kept| !kept.contains(id)));
        if let Some(last) = seals.last() {
            core.writes.sealed(last.generation);
        }
        core.seals = seals;
        if ids.is_empty() {
            return Ok(());
        }
        self.commit(&mut core, Op::Bury { ids }, None)
    }
}

/// The lists of a seal: its own, behind those that lead up to it. None at all if its own is unknown.
fn with_list(seals: &[Seal], own: Option<ListRef>) -> Vec<ListRef> {
    let Some(own) = own else {
        return Vec::new();
    };
    let mut all = seal::lists_leading_to(own.after, seals);
    all.push(own);
    all.drain(..all.len().saturating_sub(KEPT_LISTS));
    all
}
