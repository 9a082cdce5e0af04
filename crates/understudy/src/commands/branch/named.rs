//! A branch by its name: its record, and the name that its image is claimed by.

use std::sync::Arc;

use coordination::records::{Branch, Record};
use dax::ids::NodeName;
use dax::storage::Storage;

use crate::commands::registry::in_time;

/// The branch with this name.
pub(super) async fn find(storage: &Arc<dyn Storage>, name: &str) -> anyhow::Result<Option<Branch>> {
    let record = Branch::record_name(name);
    in_time(async { Ok(Branch::load_named(storage.as_ref(), &record).await?) }).await
}

/// Name by which the image of a branch is claimed while the branch is made.
pub(super) fn claimant(name: &str) -> anyhow::Result<NodeName> {
    Ok(NodeName::new(format!("branch-{name}"))?)
}
