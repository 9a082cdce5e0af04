//! Giving space back, in ways that suit a log-structured store: whole partitions where a file goes, and
//! superseded generations lazily, a partition at a time, in one batch of deletes.
//!
//! Invariant: what is deleted was decided behind the gate (*Late deletes* in docs/understand/protocol-cassandra.md). Tombstones
//! lie behind the row that is read (newest generation first), so reads do not wade through them; and there is
//! one of a block, not one of each generation, so whoever reads a whole partition does not either.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use dax::error::{Result, describe};
use dax::ids::{BlockIndex, FileId, Generation, Version};
use dax::replica;
use dax::storage::{Lineage, Retention, ScrubPage};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::Inner;
use super::environment::{Delete, Ranges};
use crate::row::{self, Chunk};
#[cfg(test)]
use crate::simulation::Flaw;

/// Partitions that are deleted at a time.
const AT_A_TIME: usize = 16;
/// Deletes in one batch.
const DELETES_MAX: usize = 128;

impl Inner {
    pub(super) async fn retain(&self, retention: Retention) -> Result<()> {
        self.pass_gate_to_reclaim().await?;
        *self.retention.lock() = Some(retention);
        self.reclaim.notify_one();
        Ok(())
    }

    /// What was decided to be deleted was decided while nobody else had begun.
    async fn pass_gate_to_reclaim(&self) -> Result<()> {
        #[cfg(test)]
        if self.has_flaw(Flaw::ReclaimWithoutGate) {
            return Ok(());
        }
        self.pass_gate().await
    }

    /// Drops superseded generations whenever more may be dropped.
    pub(super) async fn keep_reclaiming(self: Arc<Self>) {
        loop {
            self.reclaim.notified().await;
            let Some(retention) = self.retention.lock().clone() else {
                continue;
            };
            if let Err(error) = self.prune_all(&retention).await {
                if error.is_fenced() {
                    return;
                }
                tracing::warn!(why = describe(&error), "old generations were not reclaimed");
            }
        }
    }

    async fn prune_all(&self, retention: &Retention) -> Result<()> {
        let ends: BTreeSet<Generation> = retention.images.iter().map(Lineage::end).collect();
        let dirty = self.state.lock().writer.take_dirty(&ends);
        let mut result = Ok(());
        for chunk in dirty {
            if result.is_ok() {
                match self.prune(chunk, retention).await {
                    Ok(None) => {}
                    Ok(Some(ends)) => self.state.lock().writer.note_needed(chunk, ends),
                    Err(error) => result = Err(error),
                }
            }
            if result.is_err() {
                self.state.lock().writer.note_dirty(chunk);
            }
        }
        result
    }

    /// Deletes what no image needs of one partition. If a block has more than one generation left, returns the ends of the images
    /// that need them; none if they are not known.
    async fn prune(
        &self,
        chunk: Chunk,
        retention: &Retention,
    ) -> Result<Option<BTreeSet<Generation>>> {
        let mut generations: BTreeMap<i64, Vec<Generation>> = BTreeMap::new();
        let rows = self
            .persist(|| self.environment.list_rows(&self.config.volume, chunk))
            .await?;
        for (block, generation) in rows {
            generations.entry(block).or_default().push(generation);
        }
        let images = retention.images.iter().map(|image| image.end());
        let sealed = images.min().unwrap_or_default();
        let own = self.layers.first().map(|layer| Generation {
            epoch: layer.first_epoch,
            number: 0,
        });
        let own = own.unwrap_or_default();
        let mut deletes = Vec::new();
        let mut left = Some(BTreeSet::new());
        for (block, stored) in generations {
            let dropped = replica::prune(&stored, retention);
            left = left.and_then(|ends| needed_by(&stored, &dropped, retention, ends));
            let ranges = row::ranges_to_delete(&stored, &dropped, sealed, own);
            deletes.extend(ranges.into_iter().map(|range| (block, range)));
        }
        for some in deletes.chunks(DELETES_MAX) {
            self.delete_generations(chunk, some).await?;
        }
        // Without superseded generations there is nothing to look for again.
        Ok(match left {
            Some(ends) if ends.is_empty() => None,
            left => Some(left.unwrap_or_default()),
        })
    }

    async fn delete_generations(&self, chunk: Chunk, ranges: Ranges<'_>) -> Result<()> {
        self.delete(Delete::Generations(chunk, ranges), self.next_version()?)
            .await
    }

    async fn delete(&self, what: Delete<'_>, version: Version) -> Result<()> {
        self.persist(|| self.environment.delete(what, version))
            .await
    }

    pub(super) async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.pass_gate_to_reclaim().await?;
        let removed: HashSet<FileId> = files.iter().copied().collect();
        {
            let mut state = self.state.lock();
            state.writer.remove_files(&removed);
            state.wake();
        }
        for file in files {
            self.delete_chunks(*file, u64::MAX).await?;
            self.delete(Delete::Notes(*file), self.next_version()?)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.pass_gate_to_reclaim().await?;
        {
            let mut state = self.state.lock();
            state.writer.handle.remove_before(file, block);
            state.wake();
        }
        let boundary = row::chunk_of(block.0, self.settings.block_size_bytes);
        let deleted = self.delete_chunks(file, boundary).await?;
        let version = self.next_version()?;
        let chunk = (file, boundary);
        self.delete(Delete::BlocksBefore(chunk, block), version)
            .await?;
        if !deleted {
            return Ok(());
        }
        self.delete(Delete::NotesBefore(chunk), version).await
    }

    /// Deletes a file's partitions before `end`. Says whether there were any.
    async fn delete_chunks(&self, file: FileId, end: u64) -> Result<bool> {
        let chunks = self.persist(|| self.environment.list_chunks(file)).await?;
        let version = self.next_version()?;
        let gone: Vec<u64> = chunks.into_iter().filter(|chunk| *chunk < end).collect();
        let any = !gone.is_empty();
        let deletes = gone.into_iter().map(|chunk| (file, chunk));
        let deletes = deletes.map(|chunk| self.delete(Delete::Chunk(chunk), version));
        stream::iter(deletes)
            .buffer_unordered(AT_A_TIME)
            .try_collect::<()>()
            .await?;
        Ok(any)
    }

    /// All files that have blocks. Comparing copies is the work of Cassandra's repair; old generations that
    /// an earlier owner left are found here.
    pub(super) async fn scrub(&self) -> Result<ScrubPage> {
        self.pass_gate().await?;
        let mut files = BTreeSet::new();
        let mut each = |(file, chunk): Chunk| {
            files.insert(file);
            let mut state = self.state.lock();
            state.writer.note_dirty((file, chunk));
        };
        let volume = &self.config.volume;
        self.environment.scan_chunks(volume, &mut each).await?;
        self.reclaim.notify_one();
        Ok(ScrubPage {
            files: files.into_iter().collect(),
            ..ScrubPage::default()
        })
    }
}

/// The ends of the images for which superseded generations of a block are kept, added to others; none if one is kept for another
/// reason.
fn needed_by(
    stored: &[Generation],
    dropped: &[Generation],
    retention: &Retention,
    mut ends: BTreeSet<Generation>,
) -> Option<BTreeSet<Generation>> {
    let kept: BTreeSet<Generation> = stored.iter().copied().collect();
    let kept: Vec<Generation> = kept.into_iter().filter(|g| !dropped.contains(g)).collect();
    let (_, superseded) = kept.split_last()?;
    let mut unknown: BTreeSet<Generation> = superseded.iter().copied().collect();
    for image in &retention.images {
        if let Some(shown) = image.newest_of(&kept).filter(|g| superseded.contains(g)) {
            unknown.remove(&shown);
            ends.insert(image.end());
        }
    }
    unknown.is_empty().then_some(ends)
}

#[cfg(test)]
mod tests {
    use dax::ids::Epoch;

    use super::*;

    #[test]
    fn a_partition_is_looked_at_again_when_an_image_that_needs_it_goes() {
        let g = |number| Generation {
            epoch: Epoch(1),
            number,
        };
        let needed = |stored: &[u32], images: &[u32]| {
            let stored: Vec<Generation> = stored.iter().map(|number| g(*number)).collect();
            let images = images.iter().map(|number| Lineage::up_to(g(*number)));
            let retention = Retention {
                images: images.collect(),
            };
            let dropped = replica::prune(&stored, &retention);
            let ends = needed_by(&stored, &dropped, &retention, BTreeSet::new())?;
            Some(ends.into_iter().map(|end| end.number).collect::<Vec<_>>())
        };
        assert_eq!(
            needed(&[1, 2, 3], &[9, 8]),
            Some(vec![]),
            "only the newest is left"
        );
        assert_eq!(needed(&[1, 2, 7], &[3, 8, 9]), Some(vec![3]), "pinned");
        assert_eq!(needed(&[1, 4, 7], &[3, 6, 9]), Some(vec![3, 6]));
        assert_eq!(needed(&[1, 2, 7, 8], &[3, 5]), None, "not sealed yet");
    }
}
