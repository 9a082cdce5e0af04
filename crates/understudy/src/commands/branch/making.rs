//! A branch that is being made, wherever its image is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coordination::records::{Branch, BranchState};
use dax::storage::Storage;
use node::config::Config;

use super::named::find;
use crate::cli;
use crate::exit::{Code, Failure};

/// Settings that keep a branch away from what the database's own programs do.
const SETTINGS: &str = "# Of the branch: remove what it shall do as the database does, and restart it.\n\
    archive_mode = off\nmax_logical_replication_workers = 0\ncron.launch_active_jobs = off\n";

/// Purpose of a branch, which decides how quiet it is.
pub(super) enum After {
    /// It does nothing in the name of the database.
    Quiet,
    /// It becomes the database.
    Database,
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
            After::Quiet => SETTINGS,
            After::Database => "",
        }
    }

    pub(super) fn masks(&self) -> anyhow::Result<Vec<PathBuf>> {
        let masks = self.args.mask.iter().map(std::path::absolute);
        Ok(masks.collect::<Result<_, _>>()?)
    }
}

/// Refuses if somebody else has taken the name, or dropped it, in the meantime.
pub(super) async fn is_still_ours(names: &Arc<dyn Storage>, branch: &Branch) -> anyhow::Result<()> {
    let there = find(names, &branch.name).await?;
    let is_ours =
        |there: &Branch| there.volume == branch.volume && there.state == BranchState::Making;
    match there.as_ref().is_some_and(is_ours) {
        true => Ok(()),
        false => Err(Failure::new(
            Code::Refused,
            format!(
                "somebody dropped the branch {} while it was made, or made another one of that name",
                branch.name
            ),
        )
        .advise(format!(
            "Look at understudy branch list. Nobody else knows of the volume {}.",
            branch.volume
        ))
        .into()),
    }
}
