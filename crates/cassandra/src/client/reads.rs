//! Reads (DAX 3.1) and ReadPromote (DAX 5).

use std::sync::Arc;

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, FileId, Generation, Version};
use dax::storage::Block;
use dax::writer::Reading;
use scylla::statement::prepared::PreparedStatement;

use super::Inner;
use super::trace::traced;
use crate::connect::{of_request, unexpected};
use crate::row::{self, Stored, file_column, generation, generation_column, version};

/// A row of a block: its generation, its timestamp, the cell's bytes.
pub(super) type Cell = (Generation, i64, Bytes);

/// A read that ends also if its caller went away.
struct UnderWay<'a> {
    inner: &'a Inner,
    read: Reading,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.writer.handle.end_read(self.read.key);
    }
}

impl Inner {
    /// Begins a read; the answer, if it is here.
    fn begin(&self, mut read: Reading) -> Result<(UnderWay<'_>, Option<Option<Block>>)> {
        let mut state = self.state.lock();
        state.writer.handle.check_fence()?;
        let answer = state.writer.begin_read(&mut read);
        Ok((UnderWay { inner: self, read }, answer))
    }

    pub(super) async fn read(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Block>> {
        let found = self.read_stored(Reading::new(key, up_to)).await?;
        if found.is_none() && self.must_fix_absence(key, up_to) {
            return self.promote(key).await;
        }
        Ok(found.and_then(Stored::into_block))
    }

    /// A dead epoch's write may still arrive where a block of its time, which keeps one version, is absent:
    /// whoever owns the epoch now says so first (C2).
    fn must_fix_absence(&self, key: BlockKey, up_to: Generation) -> bool {
        let made_in = key.file.0 >> FileId::COUNTER_BITS;
        let own = self.state.lock().writer.handle.epoch();
        up_to == Generation::SINGLE && own.is_some_and(|own| made_in < u64::from(own.0))
    }

    /// The newest version up to a generation, or the one that a sealed image has. Nothing if none was ever
    /// written, or that is known.
    async fn read_stored(self: &Arc<Self>, read: Reading) -> Result<Option<Stored>> {
        let (under_way, answer) = self.begin(read)?;
        if let Some(block) = answer {
            return Ok(block.map(|block| Stored {
                version: block.version,
                generation: block.generation,
                data: block.data,
            }));
        }
        let read = &under_way.read;
        if read.known().is_some()
            && let Some(answer) = self.read_one(read).await?
        {
            return Ok(answer);
        }
        self.read_quorum(read).await
    }

    pub(super) async fn read_expected(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
        version: Version,
    ) -> Result<Option<Block>> {
        let read = Reading::expecting(key, up_to, version);
        let found = self.read_stored(read).await?;
        Ok(found.and_then(Stored::into_block))
    }

    /// Read(1): the nearest replica's answer, if it is what must be found.
    async fn read_one(&self, read: &Reading) -> Result<Option<Option<Stored>>> {
        let one = &self.statements.read_one;
        let found = match self.select(one, read.key, read.up_to).await {
            Ok(found) => found,
            // The quorum read tells whether that is bad.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut state = self.state.lock();
        let handle = &mut state.writer.handle;
        if read.takes(handle, version_of(found.as_ref())) {
            handle.counters.reads_one += 1;
            return Ok(Some(found));
        }
        handle.counters.reads_stale += 1;
        Ok(None)
    }

    /// A quorum's answer, which is on a quorum when it is here.
    async fn read_quorum(self: &Arc<Self>, read: &Reading) -> Result<Option<Stored>> {
        let Reading { key, up_to, .. } = *read;
        let mut found = self.ask_quorum(key, up_to).await?;
        if read.is_behind(version_of(found.as_ref())).is_some() {
            // Never go back behind what a quorum holds.
            let all = self.select(&self.statements.read_all, key, up_to).await;
            found = all.ok().flatten();
            if let Some(version) = read.is_behind(version_of(found.as_ref())) {
                return Err(lost(key, version));
            }
        }
        self.observe(version_of(found.as_ref()))?;
        let newest = found.as_ref().map(|s| (s.generation, s.version));
        read.learn(&mut self.state.lock().writer.handle, newest);
        Ok(found)
    }

    async fn select(
        &self,
        statement: &PreparedStatement,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        let chunk = row::chunk_of(key.block.0, self.settings.block_size_bytes);
        let values = (
            self.volume(),
            file_column(key.file),
            chunk as i64,
            key.block.0 as i64,
            generation_column(up_to),
        );
        let asked = self.session.execute_unpaged(statement, values);
        let rows = traced("read block", asked).await.map_err(of_request)?;
        let rows = rows.into_rows_result().map_err(unexpected)?;
        let row = rows.maybe_first_row::<(i64, Option<i64>, Option<Bytes>)>();
        let Some((column, Some(written), Some(cell))) = row.map_err(unexpected)? else {
            return Ok(None);
        };
        decode(key, Some((generation(column), written, cell)))
    }

    /// What a quorum has of a block up to a generation.
    async fn ask_quorum(
        self: &Arc<Self>,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Stored>> {
        let quorum = &self.statements.read_quorum;
        match up_to == Generation::SINGLE {
            true => self.persist(|| self.select_single(key)).await,
            false => self.persist(|| self.select(quorum, key, up_to)).await,
        }
    }

    pub(super) async fn read_promote(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        self.check_writer()?;
        let settled = self.state.lock().writer.handle.is_settled(key);
        match settled {
            true => self.read_settled(key).await,
            false => self.promote(key).await,
        }
    }

    /// What this handle wrote, or chose in another promotion: but not before a quorum holds it.
    async fn read_settled(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        let pending = self.state.lock().writer.pending_single(key);
        let found = match pending {
            Some(block) => {
                self.state.lock().writer.handle.counters.reads_pending += 1;
                Some(block)
            }
            None => {
                let read = Reading::new(key, Generation::SINGLE);
                let found = self.read_stored(read).await?;
                found.and_then(Stored::into_block)
            }
        };
        if let Some(block) = &found {
            self.wait_synced(Some(key.file), block.version.seq).await?;
        }
        self.pass_gate().await?;
        Ok(found.and_then(row::present))
    }

    /// Chooses what survives: what a quorum has, written again in this epoch; also that there is nothing.
    /// Behind the gate, or a deposed owner would tell what its successor did not choose.
    async fn promote(self: &Arc<Self>, key: BlockKey) -> Result<Option<Block>> {
        let found = self.ask_quorum(key, Generation::SINGLE).await?;
        if let Some(stored) = &found {
            self.observe(stored.version)?;
        }
        let found = found.and_then(Stored::into_block);
        let written = {
            let mut state = self.state.lock();
            match state.writer.handle.is_settled(key) {
                // Written or promoted while this was asking: that counts.
                true => None,
                false => {
                    let version = state.writer.promote(key, found.as_ref())?;
                    self.pump(&mut state);
                    Some(version)
                }
            }
        };
        let Some(version) = written else {
            return self.read_settled(key).await;
        };
        self.wait_synced(Some(key.file), version.seq).await?;
        self.pass_gate().await?;
        Ok(found.map(|block| Block { version, ..block }))
    }
}

fn version_of(found: Option<&Stored>) -> Version {
    found.map_or(Version::ZERO, |stored| stored.version)
}

/// What a row has of a block, if there is a row.
pub(super) fn decode(key: BlockKey, cell: Option<Cell>) -> Result<Option<Stored>> {
    let Some((generation, written, cell)) = cell else {
        return Ok(None);
    };
    let stored = Stored::decode(key, generation, version(written), cell);
    stored.map(Some).ok_or_else(|| {
        let what = format!("block {key} fails its checksum");
        Error::new(ErrorKind::Corrupt, what)
    })
}

fn lost(key: BlockKey, version: Version) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("no replica has version {version} of block {key} any more"),
    )
}
