//! A volume over an image of a repository: nodes read the image there until it is in the zones, and the active copies it.
//!
//! Invariant: a handle to data of such a volume shows what lies beneath, from the beginning.

use std::sync::Arc;
use std::time::Duration;

use coordination::config::ClusterConfig;
use coordination::records::{Filling, Moved, Record, unix_ms};
use coordination::tier;
use dax::ids::NodeName;
use dax::scrub::Scrubber;
use dax::storage::Storage;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;

#[cfg(not(feature = "backup"))]
use self::absent as image;
use super::context::Context;
use super::error::Result;

/// The wait after an error.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Progress of the copy, for the node's status.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct FillReport {
    /// Bytes of files that are in the zones.
    pub done_bytes: u64,
    /// Bytes of all.
    pub size_bytes: u64,
    /// Estimate of the time that the rest takes.
    pub left_ms: Option<u64>,
}

/// Shared between the copy and the node's status; `None` if nothing lies beneath.
pub(crate) type FillStatus = Arc<Mutex<Option<FillReport>>>;

/// The handle, with what lies beneath the volume, if that is not in the zones yet.
///
/// # Errors
/// Those of the repository and its key; of the storage tier.
pub(crate) async fn over(storage: Arc<dyn Storage>) -> Result<Arc<dyn Storage>> {
    match Filling::load(storage.as_ref()).await? {
        Some(filling) if !filling.done => image::over(storage, &filling).await,
        _ => Ok(storage),
    }
}

/// Copies what lies beneath into the zones, and looks after it from then on, until the task is aborted.
pub(super) fn keep(context: &Context) -> (JoinHandle<()>, FillStatus) {
    let told = FillStatus::default();
    let keeper = Keeper {
        cluster: context.config.cluster.clone(),
        me: context.me.node.clone(),
        told: Arc::clone(&told),
    };
    (tokio::spawn(keeper.run()), told)
}

struct Keeper {
    cluster: ClusterConfig,
    me: NodeName,
    told: FillStatus,
}

impl Keeper {
    async fn run(self) {
        loop {
            match self.fill().await {
                Ok(Some(into)) => return Scrubber::of_all_files(into).run().await,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the image beneath the volume is not copied; trying again");
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// Copies what is left. Returns the volume that has it; `None` if nothing lies beneath.
    async fn fill(&self) -> Result<Option<Arc<dyn Storage>>> {
        let storage = tier::connect(&self.cluster, self.me.as_str()).await?;
        let Some(filling) = Filling::load(storage.as_ref()).await? else {
            return Ok(None);
        };
        let there = self.cluster.moved_to(Some(Moved {
            number: self.cluster.moves() + 1,
            volume: filling.into.clone(),
            key: filling.key.clone(),
            unix_ms: unix_ms(),
        }));
        let into = tier::connect(&there, self.me.as_str()).await?;
        into.own_epoch(&self.me).await?;
        if filling.done {
            return Ok(Some(into));
        }
        *self.told.lock() = Some(FillReport::default());
        image::fill(&storage, &into, filling, &self.told).await?;
        *self.told.lock() = None;
        tracing::info!("the image beneath the volume is in the zones");
        Ok(Some(into))
    }
}

#[cfg(feature = "backup")]
mod image {
    use backup::beneath::{Image, Progress};
    use backup::repository::Repository;
    use dax::beneath::Over;
    use dax::credentials::Secret;
    use tokio::time::Instant;

    use super::super::error::AgentError;
    use super::{Arc, FillReport, FillStatus, Filling, Result, Storage};

    pub(super) async fn over(
        storage: Arc<dyn Storage>,
        filling: &Filling,
    ) -> Result<Arc<dyn Storage>> {
        let image = open(filling, storage.as_ref()).await?;
        Ok(Over::new(storage, Arc::new(image)))
    }

    async fn open(filling: &Filling, storage: &dyn Storage) -> Result<Image> {
        let secret = filling.key_file.as_deref().map(Secret::load).transpose()?;
        let repository = Repository::open(&filling.repository, secret.as_ref())?;
        let id = filling.image.parse().map_err(AgentError::Refused)?;
        let block_bytes = storage.settings().block_size_bytes;
        Ok(Image::open(repository, &id, block_bytes).await?)
    }

    pub(super) async fn fill(
        storage: &Arc<dyn Storage>,
        into: &Arc<dyn Storage>,
        filling: Filling,
        told: &FillStatus,
    ) -> Result<()> {
        let image = open(&filling, storage.as_ref()).await?;
        let mut first = None;
        let tell = |progress: Progress| {
            let (at, began) = *first.get_or_insert((progress.done_bytes, Instant::now()));
            let copied = progress.done_bytes.saturating_sub(at);
            let left = progress.size_bytes.saturating_sub(progress.done_bytes);
            let spent_ms = began.elapsed().as_millis() as u64;
            *told.lock() = Some(FillReport {
                done_bytes: progress.done_bytes,
                size_bytes: progress.size_bytes,
                left_ms: (copied > 0).then(|| spent_ms.saturating_mul(left) / copied),
            });
        };
        Ok(image.fill(storage, into, filling, tell).await?)
    }
}

/// A program that was built without backups refuses such a volume.
#[cfg(not(feature = "backup"))]
mod absent {
    use super::super::error::AgentError;
    use super::{Arc, FillStatus, Filling, Result, Storage};

    pub(super) async fn over(_: Arc<dyn Storage>, _: &Filling) -> Result<Arc<dyn Storage>> {
        Err(refused())
    }

    pub(super) async fn fill(
        _: &Arc<dyn Storage>,
        _: &Arc<dyn Storage>,
        _: Filling,
        _: &FillStatus,
    ) -> Result<()> {
        Err(refused())
    }

    fn refused() -> AgentError {
        let said = "an image of a repository lies beneath the volume, and this program was built without backups";
        AgentError::Refused(said.to_owned())
    }
}
