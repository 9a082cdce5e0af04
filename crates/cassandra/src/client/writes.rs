//! Write(CSYNC) and CSync (DAX 4).

use std::sync::Arc;

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, FileId, Generation, Version};
use dax::storage::SyncScope;
use dax::writer::packing::pack;
use dax::writer::pending::Seq;
use futures_util::future::try_join;
use scylla::cluster::metadata::ColumnType;
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use scylla::statement::batch::{Batch as CqlBatch, BatchType};
use tokio::sync::oneshot;

use super::trace::traced;
use super::{Inner, State};
use crate::connect::of_request;
use crate::row::{Chunk, Row};
use crate::row::{cell_parts, file_column, generation_column, timestamp};
use crate::writer::Batch;

/// A block's cell, written without putting its parts together first.
struct Cell<'a>(&'a Row);

/// What [`write_block`](crate::statements::Statements::write_block) wants.
type Values<'a> = (&'a str, i64, i64, i64, i64, Cell<'a>, i64);

impl SerializeValue for Cell<'_> {
    fn serialize<'b>(
        &self,
        _: &ColumnType,
        writer: CellWriter<'b>,
    ) -> std::result::Result<WrittenCellProof<'b>, SerializationError> {
        let (head, data) = cell_parts(self.0.checksum, &self.0.data);
        let mut cell = writer.into_value_builder();
        cell.append_bytes(&head);
        cell.append_bytes(data);
        cell.finish().map_err(SerializationError::new)
    }
}

impl Inner {
    pub(super) fn write(
        self: &Arc<Self>,
        key: BlockKey,
        generation: Generation,
        data: Bytes,
    ) -> Result<Version> {
        let block_bytes = self.settings.block_size_bytes as usize;
        if data.len() != block_bytes {
            let what = format!("a write of {} bytes is not one block", data.len());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let packed = pack(data);
        let mut state = self.state.lock();
        let version = state.writer.write(key, generation, packed)?;
        self.pump(&mut state);
        Ok(version)
    }

    /// Sends what may be sent, a moment later: who writes many blocks writes them one after the other, and they
    /// go out together.
    pub(super) fn pump(self: &Arc<Self>, state: &mut State) {
        if !state.pumping && state.writer.may_send() {
            state.pumping = true;
            let inner = Arc::clone(self);
            self.runtime.spawn(async move { inner.send_waiting() });
        }
    }

    fn send_waiting(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.pumping = false;
        while let Some(batch) = state.writer.next_batch() {
            self.runtime.spawn(Arc::clone(self).send(batch));
        }
    }

    /// Sends a batch until enough replicas have it, or nobody wants it any more.
    async fn send(self: Arc<Self>, mut batch: Batch) {
        let mut wait = super::RETRY_MIN;
        let acknowledged = loop {
            match self.try_send(&batch).await {
                Ok(()) => break true,
                Err(error) => {
                    self.note(Some(&error));
                    if error.kind() == ErrorKind::Invalid {
                        tracing::error!(
                            why = crate::connect::describe(&error),
                            "a write is refused"
                        );
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.wait_closed() => break false,
            }
            wait = (wait * 2).min(super::RETRY_MAX);
            if !self.state.lock().writer.still_wanted(&mut batch) {
                break false;
            }
        };
        let mut state = self.state.lock();
        state.writer.sent(&batch, acknowledged);
        state.wake();
        self.pump(&mut state);
    }

    async fn try_send(&self, batch: &Batch) -> Result<()> {
        match batch.index {
            false => self.send_rows(batch).await,
            true => try_join(self.send_rows(batch), self.send_chunk(batch))
                .await
                .map(drop),
        }
    }

    async fn send_rows(&self, batch: &Batch) -> Result<()> {
        let statement = &self.statements.write_block;
        if let [row] = &batch.rows[..] {
            let values = self.values(batch.chunk, row);
            let sent = traced(
                "write block",
                self.session.execute_unpaged(statement, values),
            )
            .await;
            return sent.map(drop).map_err(of_request);
        }
        let mut request = CqlBatch::new(BatchType::Unlogged);
        if let Some(consistency) = statement.get_consistency() {
            request.set_consistency(consistency);
        }
        request.set_is_idempotent(true);
        for _ in &batch.rows {
            request.append_statement(statement.clone());
        }
        let rows: Vec<_> = batch
            .rows
            .iter()
            .map(|row| self.values(batch.chunk, row))
            .collect();
        let sent = traced("write blocks", self.session.batch(&request, rows)).await;
        sent.map(drop).map_err(of_request)
    }

    fn values<'a>(&'a self, (file, chunk): Chunk, row: &'a Row) -> Values<'a> {
        (
            self.volume(),
            file_column(file),
            chunk as i64,
            row.key.block.0 as i64,
            generation_column(row.generation),
            Cell(row),
            timestamp(row.version),
        )
    }

    /// Notes that the file has this chunk, so that it is found when the file is given back.
    async fn send_chunk(&self, batch: &Batch) -> Result<()> {
        let (file, chunk) = batch.chunk;
        let Some(row) = batch.rows.first() else {
            return Ok(());
        };
        let values = (
            self.volume(),
            file_column(file),
            chunk as i64,
            timestamp(row.version),
        );
        let sent = self
            .session
            .execute_unpaged(&self.statements.write_chunk, values);
        traced("write chunk", sent)
            .await
            .map(drop)
            .map_err(of_request)
    }

    pub(super) async fn write_room(&self, bytes: usize) -> Result<()> {
        let receiver = {
            let mut state = self.state.lock();
            state.writer.handle.check_fence()?;
            if state.rooms.is_empty() && state.writer.has_room(bytes) {
                return Ok(());
            }
            let (sender, receiver) = oneshot::channel();
            state.rooms.push_back((bytes, sender));
            receiver
        };
        self.woken(receiver).await
    }

    pub(super) async fn csync(&self, scope: SyncScope) -> Result<()> {
        let (file, upto) = {
            let state = self.state.lock();
            state.writer.handle.check_writer()?;
            state.writer.handle.scope(scope)
        };
        self.wait_synced(file, upto).await?;
        self.pass_gate().await?;
        self.state.lock().writer.handle.counters.syncs += 1;
        Ok(())
    }

    /// Waits until everything up to `upto` is on enough replicas.
    pub(super) async fn wait_synced(&self, file: Option<FileId>, upto: Seq) -> Result<()> {
        let receiver = {
            let mut state = self.state.lock();
            state.writer.handle.check_fence()?;
            if state.writer.handle.pending.is_synced(file, upto) {
                return Ok(());
            }
            let (done, receiver) = oneshot::channel();
            state.syncs.add(file, upto, done);
            receiver
        };
        self.woken(receiver).await
    }

    async fn woken(&self, receiver: oneshot::Receiver<()>) -> Result<()> {
        match receiver.await {
            Ok(()) => Ok(()),
            // Only a fence takes waiters away.
            Err(_) => Err(self
                .check_fence()
                .err()
                .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the client is closing"))),
        }
    }
}

impl State {
    /// Tells those whose syncs are complete, and those for whom there is room now.
    pub(super) fn wake(&mut self) {
        let State {
            writer,
            syncs,
            rooms,
            ..
        } = self;
        for done in syncs.complete(&mut writer.handle.pending) {
            // Nobody waits: the caller went away.
            let _ = done.send(());
        }
        let mut promised = 0;
        while let Some((bytes, _)) = rooms.front()
            && writer.has_room_beside(promised, *bytes)
            && let Some((bytes, sender)) = rooms.pop_front()
        {
            // Who went away needs none.
            if sender.send(()).is_ok() {
                promised += bytes;
            }
        }
    }
}
