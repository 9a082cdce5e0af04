//! A volume over an image of a repository: nodes read the image there until it is in the zones, and the active copies it.
//!
//! Invariant: a handle to data of such a volume shows what lies beneath, from the beginning.

use std::sync::Arc;
use std::time::Duration;

use coordination::config::ClusterConfig;
use coordination::records::{Filling, Moved, Record, unix_ms};
use coordination::tier;
use dax::ids::NodeName;
use dax::scrub::Pace;
use dax::storage::Storage;
use tokio::task::JoinHandle;

use super::beneath::{self, FillReport, FillStatus};
use super::error::Result;
use super::others::Others;

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
    (others, pace): (&Others, Pace),
) -> (JoinHandle<()>, FillStatus) {
    let told = FillStatus::default();
    let keeper = Keeper {
        cluster: cluster.clone(),
        me: cluster.name.clone(),
        storage: Arc::clone(storage),
        told: Arc::clone(&told),
        others: others.clone(),
        pace,
    };
    (tokio::spawn(keeper.run()), told)
}

struct Keeper {
    cluster: ClusterConfig,
    me: NodeName,
    storage: Arc<dyn Storage>,
    told: FillStatus,
    others: Others,
    pace: Pace,
}

impl Keeper {
    async fn run(self) {
        let mut into = None;
        loop {
            let image = match self.fill(&mut into).await {
                Ok(Some(image)) => image,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "the image beneath the volume is not copied; trying again");
                    tokio::time::sleep(TRY_AGAIN).await;
                    continue;
                }
            };
            if let Some(into) = into.take() {
                return self.others.look_after(image, into, self.pace).await;
            }
        }
    }

    /// Copies what is left into the image's volume, which it owns from then on. Returns the way there; `None` if nothing lies beneath.
    async fn fill(&self, into: &mut Option<Arc<dyn Storage>>) -> Result<Option<ClusterConfig>> {
        let Some(filling) = Filling::load(self.storage.as_ref()).await? else {
            return Ok(None);
        };
        let way = there(&self.cluster, &filling);
        // Before an epoch is owned: only so many of the image's volume are below those of this one.
        let image = match filling.done {
            true => None,
            false => Some(beneath::open(&filling, self.storage.as_ref()).await?),
        };
        let owned = match into.take() {
            Some(owned) if owned.confirm().await.is_ok() => owned,
            _ => self.own(&way).await?,
        };
        let owned = into.insert(owned);
        let Some(image) = image else {
            return Ok(Some(way));
        };
        *self.told.lock() = Some(FillReport::default());
        beneath::fill(&image, &self.storage, owned, filling, &self.told).await?;
        *self.told.lock() = None;
        tracing::info!("the image beneath the volume is in the zones");
        Ok(Some(way))
    }

    async fn own(&self, way: &ClusterConfig) -> Result<Arc<dyn Storage>> {
        let into = tier::connect(way, self.me.as_str()).await?;
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
