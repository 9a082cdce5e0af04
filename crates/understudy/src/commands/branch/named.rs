//! A branch by its name: its record, the volume that it is in, and the name that its image is claimed by.

use std::path::Path;
use std::sync::Arc;

use coordination::config::ClusterConfig;
use coordination::records::{Branch, Moved, Record, unix_ms};
use coordination::tier;
use dax::credentials::VolumeKey;
use dax::ids::{NodeName, VolumeName};
use dax::storage::Storage;

use super::config::key_of;
use crate::commands::registry::{Registry, in_time};
use crate::exit::{Code, Failure};

/// The branch with this name.
pub(super) async fn find(storage: &Arc<dyn Storage>, name: &str) -> anyhow::Result<Option<Branch>> {
    let record = Branch::record_name(name);
    in_time(async { Ok(Branch::load_named(storage.as_ref(), &record).await?) }).await
}

/// Name by which the image of a branch is claimed while the branch is made.
pub(super) fn claimant(name: &str) -> anyhow::Result<NodeName> {
    Ok(NodeName::new(format!("branch-{name}"))?)
}

/// The way to another volume of the database's, in the same zones.
pub(super) fn in_volume(
    cluster: &ClusterConfig,
    volume: &VolumeName,
    secret: Option<&Path>,
) -> anyhow::Result<ClusterConfig> {
    let key = match &cluster.key {
        None => None,
        Some(file) if *volume == cluster.volume => Some(VolumeKey::load(file)?),
        Some(_) => Some(key_of(volume, secret)?),
    };
    let moved = Moved {
        number: cluster.moves() + 1,
        volume: volume.clone(),
        key,
        unix_ms: unix_ms(),
    };
    Ok(cluster.moved_to(Some(moved)))
}

/// A handle to the volume that the image of a branch is of.
pub(super) async fn parent(
    registry: &Registry,
    branch: &Branch,
    secret: Option<&Path>,
) -> anyhow::Result<Arc<dyn Storage>> {
    let cluster = registry.config.cluster();
    let parent = branch.parent.as_ref().unwrap_or(&cluster.volume);
    if parent == cluster.stored_in() {
        return Ok(Arc::clone(&registry.storage));
    }
    let there = in_volume(cluster, parent, secret)?;
    in_time(async { Ok(tier::connect(&there, "command").await?) }).await
}

/// An interrupted command leaves something that has a name: says how that is removed.
pub(super) fn drop_advice(name: &str) -> Code {
    eprintln!(
        "the branch {name} is not complete: understudy branch drop {name} removes what was made"
    );
    Code::Interrupted
}

/// The refusal of a name that no branch has.
pub(super) fn no_branch(name: &str) -> anyhow::Error {
    let said = format!("there is no branch {name}");
    Failure::new(Code::Refused, said)
        .advise("understudy branch list shows them.")
        .into()
}
