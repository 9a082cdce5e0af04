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
use tokio::task::JoinHandle;

use super::beneath::{self, FillReport, FillStatus};
use super::error::Result;

/// The wait after an error.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The handle, with what lies beneath the volume, if that is not in the zones yet.
///
/// # Errors
/// Those of the repository and its key; of the storage tier.
pub(crate) async fn over(storage: Arc<dyn Storage>) -> Result<Arc<dyn Storage>> {
    match Filling::load(storage.as_ref()).await? {
        Some(filling) if !filling.done => beneath::over(storage, &filling).await,
        _ => Ok(storage),
    }
}

/// Copies what lies beneath into the zones, and looks after it from then on, until the task is aborted.
pub(super) fn keep(
    cluster: &ClusterConfig,
    storage: &Arc<dyn Storage>,
) -> (JoinHandle<()>, FillStatus) {
    let told = FillStatus::default();
    let keeper = Keeper {
        cluster: cluster.clone(),
        me: cluster.name.clone(),
        storage: Arc::clone(storage),
        told: Arc::clone(&told),
    };
    (tokio::spawn(keeper.run()), told)
}

struct Keeper {
    cluster: ClusterConfig,
    me: NodeName,
    storage: Arc<dyn Storage>,
    told: FillStatus,
}

impl Keeper {
    async fn run(self) {
        let mut into = None;
        loop {
            match self.fill(&mut into).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, "the image beneath the volume is not copied; trying again");
                    tokio::time::sleep(TRY_AGAIN).await;
                    continue;
                }
            }
            if let Some(into) = into.take() {
                return Scrubber::of_all_files(into).run().await;
            }
        }
    }

    /// Copies what is left into the image's volume, which it owns from then on. False if nothing lies beneath.
    async fn fill(&self, into: &mut Option<Arc<dyn Storage>>) -> Result<bool> {
        let Some(filling) = Filling::load(self.storage.as_ref()).await? else {
            return Ok(false);
        };
        // Before an epoch is owned: only so many of the image's volume are below those of this one.
        let image = match filling.done {
            true => None,
            false => Some(beneath::open(&filling, self.storage.as_ref()).await?),
        };
        let owned = match into.take() {
            Some(owned) if owned.confirm().await.is_ok() => owned,
            _ => self.own(&filling).await?,
        };
        let owned = into.insert(owned);
        let Some(image) = image else {
            return Ok(true);
        };
        *self.told.lock() = Some(FillReport::default());
        beneath::fill(&image, &self.storage, owned, filling, &self.told).await?;
        *self.told.lock() = None;
        tracing::info!("the image beneath the volume is in the zones");
        Ok(true)
    }

    async fn own(&self, filling: &Filling) -> Result<Arc<dyn Storage>> {
        let into = tier::connect(&there(&self.cluster, filling), self.me.as_str()).await?;
        into.own_epoch(&self.me).await?;
        Ok(into)
    }
}

/// The way to the volume that an image is copied into.
pub(super) fn there(cluster: &ClusterConfig, filling: &Filling) -> ClusterConfig {
    cluster.moved_to(Some(Moved {
        number: cluster.moves() + 1,
        volume: filling.into.clone(),
        key: filling.key.clone(),
        unix_ms: unix_ms(),
    }))
}
