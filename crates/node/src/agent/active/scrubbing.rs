//! Scrubbers of the active: of its own volume, and of those that the database has left.
//!
//! The database's volume may be laid over one that it has left, and the nodes' configurations name such a one.
//!
//! Invariant: the epoch of a volume that was left is owned only while the volume says that the database is elsewhere. Whoever puts the
//! database there again fences this, and it looks again which volumes were left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordination::config::ClusterConfig;
use coordination::records::{Filling, Record};
use coordination::tier;
use dax::ids::NodeName;
use dax::scrub::{Pace, ScrubStatus, Scrubber};
use dax::storage::Storage;
use tokio::task::JoinSet;
use volume::active::ActiveView;

use super::super::context::Context;
use super::super::error;
use super::super::filling::there;
use super::super::others::Others;

/// The wait after an error of the zones.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// The wait until a volume that could not be owned is tried again.
const OWN_AGAIN: Duration = Duration::from_secs(60);

/// Starts them; they run until the set is dropped. `told` hears of the active's own volume.
pub(super) fn start(context: &Context, view: &Arc<ActiveView>, told: &ScrubStatus) -> JoinSet<()> {
    let pace = context.config.storage.scrub_pace();
    let own = Scrubber {
        storage: Arc::clone(view.storage()),
        scrubbed: Arc::clone(view) as Arc<_>,
        pace,
        told: Arc::clone(told),
    };
    let mut scrubbers = JoinSet::new();
    scrubbers.spawn(own.run());
    let cluster = &context.config.cluster;
    if cluster.moves() > 0 {
        scrubbers.spawn(look_after_left(
            cluster.clone(),
            context.me.node.clone(),
            pace,
            context.board.others.clone(),
        ));
    }
    scrubbers
}

/// Scrubs each volume that the database has left on its way to where it is, and the images of repositories that they lie over. Looks
/// again when somebody else has owned one of them meanwhile, or one could not be owned.
async fn look_after_left(cluster: ClusterConfig, me: NodeName, pace: Pace, others: Others) {
    let (mut scrubbers, mut owned) = (JoinSet::new(), BTreeSet::new());
    loop {
        let left = match all_left(&cluster, &me).await {
            Ok(left) => left,
            Err(error) => {
                tracing::info!(%error, "volumes that the database has left cannot be found; trying again");
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
        };
        let mut all_owned = true;
        for (cluster, storage) in left {
            let volume = cluster.stored_in().clone();
            if owned.contains(&volume) {
                continue;
            }
            if let Err(error) = storage.own_epoch(&me).await {
                tracing::warn!(%error, "nobody looks after a volume that the database has left");
                all_owned = false;
                continue;
            }
            owned.insert(volume.clone());
            let others = others.clone();
            scrubbers.spawn(async move {
                others.look_after(cluster, storage, pace).await;
                volume
            });
        }
        let ended = match all_owned {
            true if scrubbers.is_empty() => return,
            true => scrubbers.join_next().await,
            false => tokio::time::timeout(OWN_AGAIN, ended(&mut scrubbers))
                .await
                .ok(),
        };
        if let Some(Ok(volume)) = ended {
            owned.remove(&volume);
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
}

/// Waits for one of them to end; for ever if there is none.
async fn ended<T: 'static>(tasks: &mut JoinSet<T>) -> Result<T, tokio::task::JoinError> {
    match tasks.join_next().await {
        Some(ended) => ended,
        None => std::future::pending().await,
    }
}

async fn all_left(
    cluster: &ClusterConfig,
    me: &NodeName,
) -> error::Result<Vec<(ClusterConfig, Arc<dyn Storage>)>> {
    let mut left = tier::left(cluster, me.as_str()).await?;
    for number in 0..left.len() {
        if let Some(filling) = Filling::load(left[number].1.as_ref()).await? {
            let image = there(cluster, &filling);
            let storage = tier::connect(&image, me.as_str()).await?;
            left.push((image, storage));
        }
    }
    Ok(left)
}
