//! Branches of the database, as the active tells them: their records, and the room that their volumes take.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordination::config::ClusterConfig;
use coordination::records::{Branch, BranchState, Record};
use coordination::tier;
use dax::ids::VolumeName;
use dax::storage::Storage;
use serde::Serialize;

use super::error::Result;

/// A branch, for the node's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BranchReport {
    pub name: String,
    pub state: BranchState,
    pub volume: VolumeName,
    /// True if it is the database now.
    pub current: bool,
    /// Bytes in a zone of its own blocks, and of the image that nobody else has; `None` if no zone has said so.
    pub used_bytes: Option<u64>,
    pub created_unix_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

/// Looks for branches.
pub(super) struct Branches {
    cluster: ClusterConfig,
    client: String,
    /// The volume that the configuration names, which has the records; opened when it is needed first.
    named: Option<Arc<dyn Storage>>,
}

impl Branches {
    pub fn new(cluster: ClusterConfig, client: &str) -> Branches {
        Branches {
            cluster,
            client: client.to_owned(),
            named: None,
        }
    }

    /// All of them, by their names. `storage` is the volume that the database is in.
    pub async fn look(&mut self, storage: &Arc<dyn Storage>) -> Result<Vec<BranchReport>> {
        let named = match &self.named {
            Some(named) => Arc::clone(named),
            None if self.cluster.moves() == 0 => Arc::clone(storage),
            None => tier::connect(&self.cluster.moved_to(None), &self.client).await?,
        };
        let branches = Branch::list(named.as_ref()).await?;
        self.named = Some(named);
        if branches.is_empty() {
            return Ok(Vec::new());
        }
        let current = self.cluster.stored_in();
        let mut used: BTreeMap<VolumeName, u64> = BTreeMap::new();
        for (_, usage) in storage.usage().await? {
            let own = (current.clone(), usage.used_bytes);
            let relatives = usage.relatives.into_iter();
            let relatives = relatives.map(|relative| (relative.volume, relative.used_bytes));
            for (volume, bytes) in relatives.chain([own]) {
                let most = used.entry(volume).or_default();
                *most = bytes.max(*most);
            }
        }
        let reports = branches.into_iter().map(|branch| BranchReport {
            current: branch.volume == *current,
            used_bytes: used_by(&branch, &used),
            name: branch.name,
            state: branch.state,
            volume: branch.volume,
            created_unix_ms: branch.created_unix_ms,
            expires_unix_ms: branch.expires_unix_ms,
        });
        let mut reports: Vec<BranchReport> = reports.collect();
        reports.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(reports)
    }
}

/// Bytes of a branch, given those of volumes.
fn used_by(branch: &Branch, used: &BTreeMap<VolumeName, u64>) -> Option<u64> {
    let own = used.get(&branch.volume)?;
    let image = branch.parent.as_ref().filter(|_| branch.owns_parent);
    Some(own + image.and_then(|image| used.get(image)).unwrap_or(&0))
}
