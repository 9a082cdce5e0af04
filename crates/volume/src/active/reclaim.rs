//! Giving back what nobody needs: old versions, removed files, old log, old journal.
//!
//! Needed are the kept seals, whatever standbys claim, and the past ([`crate::past`]). Seals and index were put before claims
//! and pins are read. Everything here may be repeated, and may stop anywhere.

use std::collections::BTreeSet;
use std::ops::Range;
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
use crate::past::thin::log_of;
use crate::past::{Index, Pin, Policy};
use crate::seal::Seal;
use crate::view::Timestamp;

/// Files given back in one request.
const BATCH_FILES: usize = 512;

/// A reader of namespaces of the past.
struct Reader {
    /// From here on.
    journal: JournalPos,
    /// Of files with an id up to this one.
    newest: FileId,
    /// Also segments of the log that left the namespace because nobody needs their log.
    reads_log: bool,
}

impl Reader {
    fn everything(journal: JournalPos) -> Reader {
        Reader {
            journal,
            newest: FileId(u64::MAX),
            reads_log: true,
        }
    }

    fn image(journal: JournalPos, newest: FileId) -> Reader {
        Reader {
            journal,
            newest,
            reads_log: false,
        }
    }
}

/// What must stay.
struct Needs {
    images: Vec<Lineage>,
    readers: Vec<Reader>,
    /// The journal from here on is read.
    replay: JournalPos,
    /// The log of these ranges is read.
    log: Vec<Range<Lsn>>,
}

impl Needs {
    /// `None`: somebody needs everything.
    fn new(seals: &[Seal], claims: &[Claim], latest: &Lineage) -> Option<Needs> {
        let last = seals.last()?;
        if claims.iter().any(|claim| claim.everything) {
            return None;
        }
        // Only up to the last seal: of what is written above it every generation stays, because
        // one that was cut may be sealed any moment, while newer writes go on.
        let mut needs = Needs {
            images: vec![latest.truncated(last.generation)],
            readers: Vec::new(),
            replay: JournalPos(u64::MAX),
            log: Vec::new(),
        };
        for seal in seals {
            needs.images.push(seal.lineage.clone());
            needs.readers.push(Reader::everything(seal.journal));
            needs.replay = needs.replay.min(seal.snapshot.at);
            needs.log.push(seal.redo..Lsn(u64::MAX));
        }
        for claim in claims {
            needs.images.extend(claim.images.iter().cloned());
            needs.readers.push(Reader::everything(claim.journal));
            needs.replay = needs.replay.min(claim.journal);
            needs.log.push(claim.log_from..Lsn(u64::MAX));
        }
        Some(needs)
    }

    /// Adds what kept images and pins need.
    fn add_past(
        &mut self,
        index: &Index,
        pins: &[Pin],
        policy: Option<&Option<Policy>>,
        now: Timestamp,
    ) {
        for image in &index.images {
            self.images.push(image.lineage.clone());
            self.readers
                .push(Reader::image(image.journal, image.newest_file));
            self.log.extend(log_of(image, policy, now));
        }
        for pin in pins {
            let seal = pin.seal();
            if index.get(seal.generation).is_none() {
                self.replay = self.replay.min(seal.snapshot.at);
            }
            self.readers
                .push(Reader::image(seal.journal, pin.newest_file));
            self.log.extend(pin.log.map(|from| from..Lsn(u64::MAX)));
            self.images.push(seal.lineage);
        }
    }

    /// True if somebody reads log of a range.
    fn need_log(&self, range: &Range<Lsn>) -> bool {
        let mut log = self.log.iter();
        log.any(|need| need.start < range.end && range.start < need.end)
    }

    /// True if somebody reads a namespace that has a file; one taken after `at` is without it.
    fn need_file(&self, id: FileId, at: JournalPos, is_log: bool) -> bool {
        let mut readers = self.readers.iter();
        readers.any(|r| r.journal <= at && id <= r.newest && (r.reads_log || !is_log))
    }
}

impl ActiveView {
    /// Gives back what neither the kept seals nor a claim, a pin or the past needs. Done in the background after every
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
        // The seals first: one that leaves them from now on is among these still.
        let seals = self.core.lock().seals.clone();
        let (index, pins) = self.thin(&seals).await?;
        let claims = Claim::all(&self.storage).await?;
        let Some(mut needs) = Needs::new(&seals, &claims, &self.lineage) else {
            return Ok(());
        };
        let policy = self.past.policy();
        needs.add_past(&index, &pins, policy.as_ref(), self.past.now());
        let log = self.forget_log(&needs)?;
        self.storage
            .retain(Retention {
                images: needs.images.clone(),
            })
            .await?;
        self.reclaim_removed(&needs, &index, &log).await?;
        let (block, _) = needs.replay.block(self.block_size);
        self.storage
            .remove_blocks_before(JOURNAL, BlockIndex(block))
            .await?;
        Ok(())
    }

    /// Forgets removed segments of which nobody reads the log; returns them.
    fn forget_log(&self, needs: &Needs) -> Result<BTreeSet<FileId>> {
        let mut core = self.core.lock();
        let past = core.namespace.all_retained().filter_map(|(dir, name, id)| {
            let path = core.namespace.path_in(dir, name)?;
            let range = self.layout.log_range(&path)?;
            (!needs.need_log(&range) && !core.is_open(id)).then_some(id)
        });
        let past: BTreeSet<FileId> = past.collect();
        let mut ids = past.iter();
        ids.try_for_each(|id| self.commit(&mut core, Op::Forget { id: *id }, None))?;
        Ok(past)
    }

    /// Blocks of files that are in no namespace anybody reads.
    async fn reclaim_removed(
        &self,
        needs: &Needs,
        index: &Index,
        log: &BTreeSet<FileId>,
    ) -> Result<()> {
        let named: BTreeSet<FileId> = index.files().collect();
        let ids: Vec<FileId> = {
            let core = self.core.lock();
            let needed = |id, at| named.contains(&id) || needs.need_file(id, at, log.contains(&id));
            let gone = |id: &FileId| core.buried.get(id).is_some_and(|at| !needed(*id, *at));
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
