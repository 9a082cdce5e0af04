//! A branch that is being made, wherever its image is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coordination::config::ClusterConfig;
use coordination::records::{Branch, BranchState, Record};
use coordination::tier::remove_volume;
use dax::storage::Storage;
use node::config::Config;
use volume::past::Pin;

use super::named::{find, in_volume};
use crate::cli;
use crate::exit::{Code, Failure};

/// Settings that keep a branch away from what the database's own programs do.
const SETTINGS: &str = "# Of the branch: remove what it shall do as the database does, and restart it.\n\
    archive_mode = off\nmax_logical_replication_workers = 0\ncron.launch_active_jobs = off\n";

/// Purpose of a branch, which decides how quiet it is.
pub(super) enum After {
    /// It does nothing in the name of the database.
    Quiet,
    /// A quiet branch that takes the place of the one with this name.
    Reset(String),
    /// It becomes the database.
    Database,
}

impl After {
    /// The branch in whose place it is made.
    pub(super) fn reset_of(&self) -> Option<String> {
        match self {
            After::Reset(name) => Some(name.clone()),
            After::Quiet | After::Database => None,
        }
    }
}

/// A branch that was made.
pub(super) struct Made {
    pub took: node::init::Took,
    pub log_bytes: u64,
    pub bytes: u64,
}

/// A branch that is being made.
pub(super) struct Making<'a> {
    pub args: &'a cli::CreateBranch,
    /// Configuration of the node of the database.
    pub parent: &'a Config,
    /// For the branch's node.
    pub directory: &'a Path,
    pub after: After,
}

impl Making<'_> {
    /// Settings that take the place of those for recovery.
    pub(super) fn settings_after(&self) -> &'static str {
        match self.after {
            After::Quiet | After::Reset(_) => SETTINGS,
            After::Database => "",
        }
    }

    pub(super) fn masks(&self) -> anyhow::Result<Vec<PathBuf>> {
        let masks = self.args.mask.iter().map(std::path::absolute);
        Ok(masks.collect::<Result<_, _>>()?)
    }
}

/// Has the branch complete, if the name is still its own. If somebody else has taken the name, or dropped the branch, in the meantime,
/// everything that was made is removed.
pub(super) async fn conclude(
    names: &Arc<dyn Storage>,
    parent: &Arc<dyn Storage>,
    cluster: &ClusterConfig,
    branch: &mut Branch,
    secret: Option<&Path>,
) -> anyhow::Result<()> {
    let there = find(names, &branch.name).await?;
    let is_ours =
        |there: &Branch| there.volume == branch.volume && there.state == BranchState::Making;
    if there.as_ref().is_some_and(is_ours) {
        branch.state = BranchState::Ready;
        return Ok(branch.store(names.as_ref()).await?);
    }
    remove_volume(&in_volume(cluster, &branch.volume, secret)?).await?;
    if let (Some(image), true) = (&branch.parent, branch.owns_parent) {
        remove_volume(&in_volume(cluster, image, secret)?).await?;
    }
    if let Some(pin) = &branch.pin {
        Pin::remove(parent, pin).await?;
    }
    let said = format!(
        "somebody dropped the branch {} while it was made, or made another one of that name",
        branch.name
    );
    Err(Failure::new(Code::Refused, said)
        .advise("What was made is removed. Look at understudy branch list.")
        .into())
}
