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
pub(super) fn keep(cluster: &ClusterConfig, me: &NodeName) -> (JoinHandle<()>, FillStatus) {
    let told = FillStatus::default();
    let keeper = Keeper {
        cluster: cluster.clone(),
        me: me.clone(),
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
        beneath::fill(&storage, &into, filling, &self.told).await?;
        *self.told.lock() = None;
        tracing::info!("the image beneath the volume is in the zones");
        Ok(Some(into))
    }
}
