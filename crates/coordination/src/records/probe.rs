//! A record that says nothing: it is written to see whether writes are answered.

use bytes::Bytes;
use dax::ids::NodeName;
use dax::storage::{Authority, Storage};

fn name(node: &NodeName) -> String {
    format!("probe/{node}")
}

/// Returns once a write of this node is durable: the heartbeats of the active, which were sent
/// before, are then as well, or it has sent none.
///
/// # Errors
/// Of the storage tier.
pub async fn probe_writes(storage: &dyn Storage, node: &NodeName) -> dax::Result<()> {
    let nothing = Bytes::from_static(b"{}");
    storage
        .put_record(&name(node), nothing, Authority::Node)
        .await
}

/// Leaves nothing of a node that goes for good.
///
/// # Errors
/// Of the storage tier.
pub async fn remove_probe(storage: &dyn Storage, node: &NodeName) -> dax::Result<()> {
    storage.remove_record(&name(node), Authority::Node).await
}
