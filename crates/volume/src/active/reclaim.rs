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
/// Removed files that are looked at without a pause for who writes.
const BATCH_LOOKS: usize = 4096;

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

/// Readers by the position of their namespace, each with the newest file that it or one before it reads: of all files, and of
/// segments of the log that left because nobody needs their log. There may be a thousand readers, and as many removed files.
struct Readers(Vec<(JournalPos, FileId, FileId)>);

impl Readers {
    fn new(mut readers: Vec<Reader>) -> Readers {
        readers.sort_unstable_by_key(|reader| reader.journal);
        let (mut newest, mut newest_log) = (FileId(0), FileId(0));
        let rows = readers.into_iter().map(|reader| {
            newest = newest.max(reader.newest);
            if reader.reads_log {
                newest_log = newest_log.max(reader.newest);
            }
            (reader.journal, newest, newest_log)
        });
        Readers(rows.collect())
    }

    /// True if somebody reads a namespace that has a file; one taken after `at` is without it.
    fn need_file(&self, id: FileId, at: JournalPos, is_log: bool) -> bool {
        let upto = self.0.partition_point(|(journal, ..)| *journal <= at);
        upto.checked_sub(1).is_some_and(|last| {
            let (_, newest, newest_log) = self.0[last];
            id <= if is_log { newest_log } else { newest }
        })
    }
}

/// Ranges of the log that are read, apart from each other and in order.
struct Log(Vec<Range<Lsn>>);

impl Log {
    fn new(mut ranges: Vec<Range<Lsn>>) -> Log {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut apart: Vec<Range<Lsn>> = Vec::new();
        for range in ranges {
            match apart.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        Log(apart)
    }

    /// True if somebody reads log of a range.
    fn need(&self, range: &Range<Lsn>) -> bool {
        let before = self.0.partition_point(|need| need.start < range.end);
        let last = before.checked_sub(1);
        last.is_some_and(|last| range.start < self.0[last].end)
    }
}

/// Everything that must stay.
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
        self.forget_log(&Log::new(needs.log))?;
        self.storage
            .retain(Retention {
                images: needs.images,
            })
            .await?;
        self.reclaim_removed(&Readers::new(needs.readers), &index)
            .await?;
        let (block, _) = needs.replay.block(self.block_size);
        self.storage
            .remove_blocks_before(JOURNAL, BlockIndex(block))
            .await?;
        Ok(())
    }

    /// Forgets removed segments of which nobody reads the log.
    fn forget_log(&self, needed: &Log) -> Result<()> {
        let mut core = self.core.lock();
        let past = core.namespace.all_retained().filter_map(|(dir, name, id)| {
            let path = core.namespace.path_in(dir, name)?;
            let range = self.layout.log_range(&path)?;
            (!needed.need(&range) && !core.is_open(id)).then_some(id)
        });
        let past: Vec<FileId> = past.collect();
        past.into_iter().try_for_each(|id| {
            core.forgotten_log.insert(id);
            self.commit(&mut core, Op::Forget { id }, None)
        })
    }

    /// Blocks of files that are in no namespace anybody reads.
    async fn reclaim_removed(&self, readers: &Readers, index: &Index) -> Result<()> {
        let named: BTreeSet<FileId> = index.files().collect();
        // What images keep may be many: who writes does not wait until all of it was looked at.
        let namespace = self.core.lock().namespace.clone();
        let removed = namespace.removed().filter(|id| !named.contains(id));
        let removed: Vec<FileId> = removed.collect();
        let mut gone = Vec::new();
        for ids in removed.chunks(BATCH_LOOKS) {
            let core = self.core.lock();
            let is_gone = |id: &&FileId| {
                let is_log = core.forgotten_log.contains(*id);
                let at = core.buried.get(*id);
                at.is_some_and(|at| !readers.need_file(**id, *at, is_log))
                    && core.namespace.get(**id).is_none()
            };
            gone.extend(ids.iter().filter(is_gone).copied());
        }
        for ids in gone.chunks(BATCH_FILES) {
            self.storage.remove_files(ids).await?;
            let mut core = self.core.lock();
            ids.iter().for_each(|id| {
                core.buried.remove(id);
                core.forgotten_log.remove(id);
            });
            self.commit(&mut core, Op::Reclaimed { ids: ids.to_vec() }, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Readers and ranges that were put in order say what each of them says.
        #[test]
        fn needs_are_those_of_some_reader_or_range(
            readers in prop::collection::vec((0u64..8, 0u64..8, any::<bool>()), 0..8),
            ranges in prop::collection::vec((0u64..20, 1u64..6), 0..8),
        ) {
            let reader = |&(journal, newest, reads_log): &(u64, u64, bool)| Reader {
                journal: JournalPos(journal),
                newest: FileId(newest),
                reads_log,
            };
            let ordered = Readers::new(readers.iter().map(reader).collect());
            for (id, at, is_log) in (1..9).flat_map(|id| (0..9).flat_map(move |at| [(id, at, false), (id, at, true)])) {
                let mut each = readers.iter();
                let needed = each.any(|(journal, newest, reads_log)| *journal <= at && id <= *newest && (*reads_log || !is_log));
                prop_assert_eq!(ordered.need_file(FileId(id), JournalPos(at), is_log), needed);
            }
            let range = |(start, bytes): (u64, u64)| Lsn(start)..Lsn(start + bytes);
            let log = Log::new(ranges.iter().copied().map(range).collect());
            for segment in (0..26).map(|start| range((start, 4))) {
                let mut each = ranges.iter().copied().map(range);
                let needed = each.any(|need| need.start < segment.end && segment.start < need.end);
                prop_assert_eq!(log.need(&segment), needed);
            }
        }
    }
}
