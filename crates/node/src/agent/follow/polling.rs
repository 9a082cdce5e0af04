//! Looks into the registry: the active's heartbeat, and whether this standby's claim stands.

use std::sync::Arc;

use coordination::records::{Heartbeat, Record, probe_writes};
use dax::ids::NodeName;
use dax::storage::Storage;
use volume::standby::ClaimWatch;

use crate::agent::error::Result;

/// A look into the registry, started at some time.
pub(super) type Poll = tokio::task::JoinHandle<Result<Option<Heartbeat>>>;

/// Looks for the heartbeat, and whether the claim stands, which its watch tells ([`lost`]). A standby in doubt first
/// has a write answered, because reads may be quick where writes, and so the active's beats, are not.
pub(super) async fn poll_registry(
    storage: Arc<dyn Storage>,
    me: NodeName,
    claim: Option<ClaimWatch>,
    in_doubt: bool,
) -> Result<Option<Heartbeat>> {
    if in_doubt {
        probe_writes(storage.as_ref(), &me).await?;
    }
    let heartbeat = async {
        let heartbeat = Heartbeat::load(storage.as_ref()).await?;
        if let Some(claim) = &claim {
            claim.look(&storage).await?;
        }
        Ok(heartbeat)
    };
    let (heartbeat, ()) = tokio::try_join!(heartbeat, watch_lease(&*storage))?;
    Ok(heartbeat)
}

/// Waits until somebody finds the claim gone.
pub(super) async fn lost(claim: Option<&ClaimWatch>) {
    match claim {
        Some(claim) => claim.lost().await,
        None => std::future::pending().await,
    }
}

/// Who has seen the active's last renewal knows when its lease ends, and waits no longer.
async fn watch_lease(storage: &dyn Storage) -> Result<()> {
    if storage.is_leased() {
        storage.accepted_epoch().await?;
    }
    Ok(())
}

/// Waits for the poll under way; for ever if there is none.
pub(super) async fn answered(poll: &mut Option<Poll>) -> Result<Option<Heartbeat>> {
    let Some(reading) = poll else {
        return std::future::pending().await;
    };
    let read = reading
        .await
        .expect("reading a record neither panics nor is cancelled");
    *poll = None;
    read
}
