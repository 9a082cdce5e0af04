//! A record that says nothing: it is written to see whether writes are answered.

use bytes::Bytes;
use dax::Result;
use dax::ids::NodeName;
use dax::storage::{Authority, Storage};

fn name(node: &NodeName) -> String {
    format!("probe/{node}")
}

/// Returns once a write of this node is durable: the heartbeats of the active, which were sent
/// before, are then as well, or it has sent none.
pub(crate) async fn probe_writes(storage: &dyn Storage, node: &NodeName) -> Result<()> {
    let nothing = Bytes::from_static(b"{}");
    storage
        .put_record(&name(node), nothing, Authority::Node)
        .await
}

/// Leaves nothing of a node that goes for good.
pub(crate) async fn remove_probe(storage: &dyn Storage, node: &NodeName) -> Result<()> {
    storage.remove_record(&name(node), Authority::Node).await
}
