//! Looks into the registry: the active's heartbeat, and whether this standby's claim stands.

use std::sync::Arc;

use coordination::records::{Heartbeat, Record, probe_writes};
use dax::ids::NodeName;
use dax::storage::Storage;
use volume::claim::Claim;

use crate::agent::error::Result;

/// A look into the registry, started at some time.
pub(super) type Poll = tokio::task::JoinHandle<Result<Polled>>;

/// What a standby looks for in the registry.
pub(super) struct Polled {
    pub heartbeat: Option<Heartbeat>,
    /// Whether this standby's claim stands.
    pub claimed: bool,
}

/// Looks; a standby in doubt first has a write answered, because reads may be quick where writes, and so
/// the active's beats, are not.
pub(super) async fn poll_registry(
    storage: Arc<dyn Storage>,
    me: NodeName,
    in_doubt: bool,
) -> Result<Polled> {
    if in_doubt {
        probe_writes(storage.as_ref(), &me).await?;
    }
    let records = read_records(&storage, &me);
    let (polled, ()) = tokio::try_join!(records, watch_lease(&*storage))?;
    Ok(polled)
}

async fn read_records(storage: &Arc<dyn Storage>, me: &NodeName) -> Result<Polled> {
    Ok(Polled {
        heartbeat: Heartbeat::load(storage.as_ref()).await?,
        claimed: Claim::stands(storage, me).await?,
    })
}

/// Who has seen the active's last renewal knows when its lease ends, and waits no longer.
async fn watch_lease(storage: &dyn Storage) -> Result<()> {
    if storage.is_leased() {
        storage.accepted_epoch().await?;
    }
    Ok(())
}

/// Waits for the poll under way; for ever if there is none.
pub(super) async fn answered(poll: &mut Option<Poll>) -> Result<Polled> {
    let Some(reading) = poll else {
        return std::future::pending().await;
    };
    let read = reading
        .await
        .expect("reading a record neither panics nor is cancelled");
    *poll = None;
    read
}
