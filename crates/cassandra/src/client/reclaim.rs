//! Giving space back, in ways that suit a log-structured store: whole partitions where a file goes, and
//! superseded generations lazily, a partition at a time, in one batch of deletes.
//!
//! Invariant: what is deleted was decided behind the gate ("Deletes" in docs/PROTOCOL.md). Tombstones
//! lie behind the row that is read (newest generation first), so reads do not wade through them; and there is
//! one of a block, not one of each generation, so whoever reads a whole partition does not either.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use dax::error::Result;
use dax::ids::{BlockIndex, FileId, Generation};
use dax::replica;
use dax::storage::{Retention, ScrubPage};
use futures_util::{StreamExt, TryStreamExt, stream};
use scylla::statement::batch::{Batch as CqlBatch, BatchType};

use super::Inner;
use super::records::of_next_row;
use super::trace::traced;
use crate::connect::{describe, of_page, of_request, unexpected};
use crate::row::Chunk;
use crate::row::{self, file_column, generation, timestamp};

/// Partitions that are deleted at a time.
const AT_A_TIME: usize = 16;
/// Deletes in one batch.
const DELETES_MAX: usize = 128;

impl Inner {
    pub(super) async fn retain(&self, retention: Retention) -> Result<()> {
        self.pass_gate().await?;
        *self.retention.lock() = Some(retention);
        self.reclaim.notify_one();
        Ok(())
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
        let dirty = self.state.lock().writer.take_dirty();
        let mut result = Ok(());
        for (chunk, last) in dirty {
            if result.is_ok() {
                match self.prune(chunk, retention).await {
                    Ok(true) => {}
                    Ok(false) => self.state.lock().writer.note_dirty(chunk, last),
                    Err(error) => result = Err(error),
                }
            }
            if result.is_err() {
                self.state.lock().writer.note_dirty(chunk, last);
            }
        }
        result
    }

    /// Deletes what no image needs of one partition. Says whether no block has more than one generation left.
    async fn prune(&self, chunk: Chunk, retention: &Retention) -> Result<bool> {
        let mut generations: BTreeMap<i64, Vec<Generation>> = BTreeMap::new();
        for (block, column) in self.list_rows(chunk).await? {
            generations
                .entry(block)
                .or_default()
                .push(generation(column));
        }
        let images = retention.images.iter().map(|image| image.end());
        let sealed = images.min().unwrap_or_default();
        let mut deletes = Vec::new();
        let mut clean = true;
        for (block, stored) in generations {
            let dropped = replica::prune(&stored, retention);
            clean &= stored.len() - dropped.len() <= 1;
            let ranges = row::ranges_to_delete(&stored, &dropped, sealed);
            deletes.extend(ranges.into_iter().map(|range| (block, range)));
        }
        for some in deletes.chunks(DELETES_MAX) {
            self.delete_generations(chunk, some).await?;
        }
        Ok(clean)
    }

    async fn list_rows(&self, (file, chunk): Chunk) -> Result<Vec<(i64, i64)>> {
        let values = (self.volume(), file_column(file), chunk as i64);
        self.persist(|| async {
            let result = self
                .session
                .execute_unpaged(&self.statements.list_rows, values);
            let rows = traced("list rows", result).await.map_err(of_request)?;
            let rows = rows.into_rows_result().map_err(unexpected)?;
            let rows = rows.rows::<(i64, i64)>().map_err(unexpected)?;
            rows.collect::<std::result::Result<_, _>>()
                .map_err(unexpected)
        })
        .await
    }

    async fn delete_generations(
        &self,
        (file, chunk): Chunk,
        ranges: &[(i64, (i64, i64))],
    ) -> Result<()> {
        let at = timestamp(self.next_version()?);
        let statement = &self.statements.delete_generations;
        let mut request = CqlBatch::new(BatchType::Unlogged);
        if let Some(consistency) = statement.get_consistency() {
            request.set_consistency(consistency);
        }
        request.set_is_idempotent(true);
        for _ in ranges {
            request.append_statement(statement.clone());
        }
        let (volume, file, chunk) = (self.volume(), file_column(file), chunk as i64);
        let values = ranges
            .iter()
            .map(|(block, (from, to))| (at, volume, file, chunk, *block, *from, *to));
        let values: Vec<_> = values.collect();
        let (request, values) = (&request, &values);
        self.persist(|| async move {
            let deleted = traced("delete", self.session.batch(request, values)).await;
            deleted.map(drop).map_err(of_request)
        })
        .await
    }

    pub(super) async fn remove_files(&self, files: &[FileId]) -> Result<()> {
        self.pass_gate().await?;
        let removed: HashSet<FileId> = files.iter().copied().collect();
        {
            let mut state = self.state.lock();
            state.writer.remove_files(&removed);
            state.wake();
        }
        for file in files {
            self.delete_chunks(*file, u64::MAX).await?;
            let at = timestamp(self.next_version()?);
            let values = (at, self.volume(), file_column(*file));
            self.persist(|| async {
                let forget = &self.statements.forget_file;
                let deleted = traced("delete", self.session.execute_unpaged(forget, values)).await;
                deleted.map(drop).map_err(of_request)
            })
            .await?;
        }
        Ok(())
    }

    pub(super) async fn remove_blocks_before(&self, file: FileId, block: BlockIndex) -> Result<()> {
        self.pass_gate().await?;
        {
            let mut state = self.state.lock();
            state.writer.handle.remove_before(file, block);
            state.wake();
        }
        let boundary = row::chunk_of(block.0, self.settings.block_size_bytes);
        let deleted = self.delete_chunks(file, boundary).await?;
        let at = timestamp(self.next_version()?);
        let (volume, file, chunk) = (self.volume(), file_column(file), boundary as i64);
        let before = (at, volume, file, chunk, block.0 as i64);
        self.persist(|| async {
            let delete = &self.statements.delete_before;
            let deleted = traced("delete", self.session.execute_unpaged(delete, before)).await;
            deleted.map(drop).map_err(of_request)
        })
        .await?;
        if !deleted {
            return Ok(());
        }
        let before = (at, volume, file, chunk);
        self.persist(|| async {
            let forget = &self.statements.forget_chunks;
            let deleted = traced("delete", self.session.execute_unpaged(forget, before)).await;
            deleted.map(drop).map_err(of_request)
        })
        .await
    }

    /// Deletes a file's partitions before `end`. Says whether there were any.
    async fn delete_chunks(&self, file: FileId, end: u64) -> Result<bool> {
        let values = (self.volume(), file_column(file), 0i64);
        let chunks: Vec<(i64,)> = self
            .persist(|| async {
                let statement = self.statements.list_chunks.clone();
                let pages = self.session.execute_iter(statement, values);
                let rows = pages.await.map_err(of_page)?.rows_stream::<(i64,)>();
                let rows = rows.map_err(unexpected)?.try_collect().await;
                rows.map_err(of_next_row)
            })
            .await?;
        let at = timestamp(self.next_version()?);
        let gone = chunks.into_iter().filter(|(chunk,)| (*chunk as u64) < end);
        let gone: Vec<i64> = gone.map(|(chunk,)| chunk).collect();
        let any = !gone.is_empty();
        let deletes = stream::iter(gone).map(|chunk| {
            let values = (at, self.volume(), file_column(file), chunk);
            self.persist(move || async move {
                let delete = &self.statements.delete_chunk;
                let deleted = traced("delete", self.session.execute_unpaged(delete, values)).await;
                deleted.map(drop).map_err(of_request)
            })
        });
        deletes
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
        let statement = self.statements.scan_chunks.clone();
        let pages = self.session.execute_iter(statement, ());
        let rows = pages
            .await
            .map_err(of_page)?
            .rows_stream::<(String, i64, i64)>();
        let mut rows = rows.map_err(unexpected)?;
        while let Some((volume, file, chunk)) = rows.try_next().await.map_err(of_next_row)? {
            if volume != self.volume() {
                continue;
            }
            let file = row::file(file);
            files.insert(file);
            let mut state = self.state.lock();
            state
                .writer
                .note_dirty((file, chunk as u64), Generation::SINGLE);
        }
        self.reclaim.notify_one();
        Ok(ScrubPage {
            files: files.into_iter().collect(),
            ..ScrubPage::default()
        })
    }
}
