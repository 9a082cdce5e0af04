//! Quorum reads of blocks that keep one version, gathered: what is asked of one partition at the same time
//! is one request.
//!
//! The log, the journal and snapshots are read in order, many blocks at once, by takeovers, by standbys and when
//! a promoted server copies its last segment. A request costs the servers far more than a row in it.
//! Invariant: a block is asked for after its caller asked, never before.

use std::collections::HashMap;
use std::sync::Arc;

use dax::error::{Error, ErrorKind, Result, describe};
use dax::ids::BlockKey;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Inner;
use super::reads::decode;
use crate::row::{Chunk, Stored};

/// The most blocks that are asked for at once.
const BLOCKS_MAX: usize = 64;

type Answer = oneshot::Sender<Result<Option<Stored>>>;
type Asked = Vec<(BlockKey, Answer)>;

/// Blocks to be asked for, by partition.
#[derive(Debug, Default)]
pub(super) struct Gathering(Mutex<HashMap<Chunk, Asked>>);

impl Inner {
    /// What a quorum has of a block that keeps one version.
    pub(super) async fn select_single(self: &Arc<Self>, key: BlockKey) -> Result<Option<Stored>> {
        let chunk = self.chunk_of(key);
        let (answer, answered) = oneshot::channel();
        let first = {
            let mut gathering = self.gathering.0.lock();
            let asked = gathering.entry(chunk).or_default();
            asked.push((key, answer));
            asked.len() == 1
        };
        if first {
            let inner = Arc::clone(self);
            self.spawn(inner.select_gathered(chunk));
        }
        let gone = || Error::new(ErrorKind::Unavailable, "the client is closing");
        answered.await.map_err(|_| gone())?
    }

    async fn select_gathered(self: Arc<Self>, chunk: Chunk) {
        // Who asks for many blocks has asked for all of them by then.
        tokio::task::yield_now().await;
        let asked = self.gathering.0.lock().remove(&chunk);
        let mut asked = asked.unwrap_or_default();
        while !asked.is_empty() {
            let some = asked.split_off(asked.len().saturating_sub(BLOCKS_MAX));
            let inner = Arc::clone(&self);
            self.spawn(async move { inner.answer(chunk, some).await });
        }
    }

    async fn answer(&self, chunk: Chunk, asked: Asked) {
        let mut blocks: Vec<i64> = asked.iter().map(|(key, _)| key.block.0 as i64).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut found = self.environment.read_singles(chunk, &blocks).await;
        for (key, answer) in asked {
            let stored = match &mut found {
                Ok(found) => decode(key, found.get(&(key.block.0 as i64)).cloned()),
                Err(error) => Err(Error::new(error.kind(), describe(error))),
            };
            // Who asked may have gone away.
            let _ = answer.send(stored);
        }
    }
}
