//! Who watches the active's writes: `pgdata`'s sealer.

use async_trait::async_trait;
use bytes::Bytes;
use dax::ids::Generation;

use super::ActiveView;
use crate::error::Result;
use crate::view::Timestamp;

/// Is told what the active's database writes, and decides what a write of its control file means.
///
/// The plain functions are called after the write was accepted and before it is answered, outside
/// of all locks; they must be quick. Paths are relative to the root.
#[async_trait]
pub trait WriteObserver: Send + Sync + 'static {
    /// A log file was written.
    fn log_written(&self, path: &str, offset: u64, data: &Bytes);

    /// A sync of a log file begins; covers what was written before. Returns a token for
    /// [`log_synced`](Self::log_synced).
    fn log_sync_started(&self, path: &str) -> u64;

    /// That sync is done: what it covers is durable.
    fn log_synced(&self, path: &str, token: u64);

    /// True if that sync may be answered at once, which it then is: its bytes are on their way, and the log is ordered
    /// ([`LogSyncs`](crate::log_syncs::LogSyncs)). It ends in one of the two below all the same.
    fn may_answer_early(&self, _token: u64) -> bool {
        false
    }

    /// That sync failed, and nobody can be told any more if it was answered early.
    fn log_sync_failed(&self, _path: &str, _token: u64) {}

    /// True if one failed. Every later sync of the log fails, too: the database must not go on as if it had a log.
    fn log_has_failed(&self) -> bool {
        false
    }

    /// A sync that was waited for is about to be answered, after which transactions count as committed. May wait.
    async fn before_commits_return(&self) {}

    /// A data file was written, in `generation`: its bytes from `offset` on are now `data`. Whether
    /// they are in an image is told by the generation (N2).
    fn data_written(&self, path: &str, offset: u64, data: &Bytes, generation: Generation);

    /// The control file is being written; `data` is the whole new contents. Called instead of the
    /// write: must end in [`ActiveView::write_control`], before which it may cut and seal. Never
    /// called twice at a time.
    async fn control_written(&self, view: &ActiveView, data: Bytes, now: Timestamp) -> Result<()>;
}

/// Watches nothing; control writes pass at once. For volumes without a database.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

#[async_trait]
impl WriteObserver for NoObserver {
    fn log_written(&self, _: &str, _: u64, _: &Bytes) {}
    fn log_sync_started(&self, _: &str) -> u64 {
        0
    }
    fn log_synced(&self, _: &str, _: u64) {}
    fn data_written(&self, _: &str, _: u64, _: &Bytes, _: Generation) {}
    async fn control_written(&self, view: &ActiveView, data: Bytes, now: Timestamp) -> Result<()> {
        view.write_control(data, now).await
    }
}
