//! Write(CSYNC) and CSync (DAX 4).

use std::sync::Arc;

use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, FileId, Generation, Version};
use dax::storage::SyncScope;
use dax::writer::packing::pack;
use dax::writer::pending::Seq;
use futures_util::future::try_join;
use tokio::sync::oneshot;

use super::{Inner, State};
#[cfg(test)]
use crate::simulation::Flaw;
use crate::writer::Batch;

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
        self.write_packed(key, generation, pack(data))
    }

    /// The same of a block that is packed already.
    pub(super) fn write_packed(
        self: &Arc<Self>,
        key: BlockKey,
        generation: Generation,
        packed: Bytes,
    ) -> Result<Version> {
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
            self.spawn(async move { inner.send_waiting() });
        }
    }

    fn send_waiting(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.pumping = false;
        while let Some(batch) = state.writer.next_batch() {
            self.spawn(Arc::clone(self).send(batch));
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
                        tracing::error!(why = dax::error::describe(&error), "a write is refused");
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.wait_closed() => break false,
                () = self.environment.sleep(wait) => {}
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
        let written = self.environment.write_rows(batch.chunk, &batch.rows);
        match (batch.index, batch.rows.first()) {
            // So that the chunk is found when the file is given back.
            (true, Some(row)) => {
                let noted = self.environment.write_chunk(batch.chunk, row.version);
                try_join(written, noted).await.map(drop)
            }
            _ => written.await,
        }
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
        self.acknowledge(file, upto).await?;
        self.state.lock().writer.handle.counters.syncs += 1;
        Ok(())
    }

    /// Waits until whoever waits for everything up to `upto` may be told: first it is on enough replicas, and then
    /// the gate is passed.
    pub(super) async fn acknowledge(&self, file: Option<FileId>, upto: Seq) -> Result<()> {
        #[cfg(test)]
        if self.has_flaw(Flaw::GateBeforeWrites) {
            self.pass_gate().await?;
            return self.wait_synced(file, upto).await;
        }
        self.wait_synced(file, upto).await?;
        self.pass_gate().await
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
