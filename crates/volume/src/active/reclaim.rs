//! Giving back what nobody needs: old versions, removed files, old log, old journal.
//!
//! Needed are the kept seals and whatever standbys claim. The seals were put before the claims are
//! read (see [`crate::claim`]). Everything here may be repeated, and may stop anywhere.

use std::sync::Arc;

use dax::ids::{BlockIndex, FileId};
use dax::storage::{Lineage, Retention};

use super::{ActiveView, Inner};
use crate::claim::Claim;
use crate::error::Result;
use crate::journal::JournalPos;
use crate::lsn::Lsn;
use crate::namespace::JOURNAL;
use crate::namespace::op::Op;
use crate::seal::Seal;

/// Files given back in one request.
const BATCH_FILES: usize = 512;

/// What must stay.
struct Pins {
    images: Vec<Lineage>,
    /// Namespaces from here on are read; the journal from here on, too.
    journal: JournalPos,
    /// The journal from here on is read, on the way from a snapshot.
    replay: JournalPos,
    /// The log from here on is read.
    log: Lsn,
}

impl Pins {
    /// `None`: somebody needs everything.
    fn new(seals: &[Seal], claims: &[Claim], latest: &Lineage) -> Option<Pins> {
        let last = seals.last()?;
        if claims.iter().any(|claim| claim.everything) {
            return None;
        }
        // Only up to the last seal: of what is written above it every generation stays, because
        // one that was cut may be sealed any moment, while newer writes go on.
        let mut pins = Pins {
            images: vec![latest.truncated(last.generation)],
            journal: JournalPos(u64::MAX),
            replay: JournalPos(u64::MAX),
            log: Lsn(u64::MAX),
        };
        for seal in seals {
            pins.images.push(seal.lineage.clone());
            pins.journal = pins.journal.min(seal.journal);
            pins.replay = pins.replay.min(seal.snapshot.at);
            pins.log = pins.log.min(seal.redo);
        }
        for claim in claims {
            pins.images.extend(claim.images.iter().cloned());
            pins.journal = pins.journal.min(claim.journal);
            pins.replay = pins.replay.min(claim.journal);
            pins.log = pins.log.min(claim.log_from);
        }
        Some(pins)
    }
}

impl ActiveView {
    /// Gives back what neither the kept seals nor a claim needs. Done in the background after every
    /// seal; needed directly only where somebody waits for it.
    pub async fn reclaim(&self) -> Result<()> {
        self.inner.reclaim().await
    }
}

impl Inner {
    pub(super) async fn reclaim_quietly(self: Arc<Self>) {
        if let Err(e) = self.reclaim().await
            && !e.is_fenced()
        {
            tracing::warn!(error = %e, "could not reclaim what is no longer needed; trying again at the next seal");
        }
    }

    async fn reclaim(&self) -> Result<()> {
        let _one = self.reclaiming.lock().await;
        let seals = self.core.lock().seals.clone();
        let claims = Claim::all(&self.storage).await?;
        let Some(pins) = Pins::new(&seals, &claims, &self.lineage) else {
            return Ok(());
        };
        self.forget_log(pins.log)?;
        self.storage
            .retain(Retention {
                images: pins.images,
            })
            .await?;
        self.reclaim_removed(pins.journal).await?;
        let (block, _) = pins.replay.block(self.block_size);
        self.storage
            .remove_blocks_before(JOURNAL, BlockIndex(block))
            .await?;
        Ok(())
    }

    /// Removed log segments that end before everybody's log.
    fn forget_log(&self, log: Lsn) -> Result<()> {
        let mut core = self.core.lock();
        let past = core.namespace.all_retained().filter_map(|(dir, name, id)| {
            let path = core.namespace.path_in(dir, name)?;
            let range = self.layout.log_range(&path)?;
            (range.end <= log && !core.is_open(id)).then_some(id)
        });
        let past: Vec<FileId> = past.collect();
        past.into_iter()
            .try_for_each(|id| self.commit(&mut core, Op::Forget { id }, None))
    }

    /// Blocks of files that are in no namespace anybody reads.
    async fn reclaim_removed(&self, oldest_read: JournalPos) -> Result<()> {
        let ids: Vec<FileId> = {
            let core = self.core.lock();
            let gone = |id: &FileId| core.buried.get(id).is_some_and(|at| *at < oldest_read);
            let absent = |id: &FileId| core.namespace.get(*id).is_none();
            let removed = core.namespace.removed();
            removed.filter(gone).filter(absent).collect()
        };
        for ids in ids.chunks(BATCH_FILES) {
            self.storage.remove_files(ids).await?;
            let mut core = self.core.lock();
            ids.iter().for_each(|id| {
                core.buried.remove(id);
            });
            self.commit(&mut core, Op::Reclaimed { ids: ids.to_vec() }, None)?;
        }
        Ok(())
    }
}
