//! `branch/<name>`: a branch, in the registry of the volume that the configuration names.
//!
//! ```text
//!   making ──▶ ready ──▶ dropping ──▶ (no record)
//!      └──────────────────▲
//! ```
//!
//! Invariant: the record is there before its volume and its pin are made, and goes after both are gone, so that what a crash left
//! has a name to be dropped by.

use dax::ids::VolumeName;
use dax::storage::Authority;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::Record;

/// How far a branch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchState {
    /// It is being made, or its maker died.
    Making,
    /// A node can serve it.
    Ready,
    /// It is being removed.
    Dropping,
}

/// A branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// Its name, for people.
    pub name: String,
    /// How far it is.
    pub state: BranchState,
    /// The volume that holds it; no other one ever has this name.
    pub volume: VolumeName,
    /// The volume that its image is of. A release that did not write it knew one volume alone, the one of the configuration.
    #[serde(default)]
    pub parent: Option<VolumeName>,
    /// The pin that keeps its image, once that is known.
    #[serde(default)]
    pub pin: Option<String>,
    /// The volume was made for this branch alone, and goes with it: it has an image of a repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owns_parent: bool,
    /// The moment that was asked for.
    pub at: String,
    /// The log of the parent that it has ends here, once that is known.
    #[serde(default)]
    pub end: Option<Lsn>,
    /// When it was made, Unix milliseconds.
    pub created_unix_ms: u64,
    /// The branch that a reset makes this one for, or that this one was before its reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_of: Option<String>,
    /// When it need not be kept any more, Unix milliseconds; `None` if it is kept until somebody drops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

impl Branch {
    /// True if it need not be kept any more.
    pub fn is_expired(&self, now_unix_ms: u64) -> bool {
        self.expires_unix_ms.is_some_and(|at| at <= now_unix_ms)
    }

    /// Name of the record of the branch with this name.
    pub fn record_name(name: &str) -> String {
        format!("{}{name}", Self::PREFIX)
    }
}

impl Record for Branch {
    const PREFIX: &'static str = "branch/";
    const AUTHORITY: Authority = Authority::Node;

    fn name(&self) -> String {
        Branch::record_name(&self.name)
    }
}
