//! Drills: restores that were tried, and what came of them. The newest is kept in the repository.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::ImageId;
use crate::repository::Repository;

const DRILLS: &str = "drills";

/// The result of a drill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drill {
    /// When it ended, Unix milliseconds.
    pub ended_unix_ms: u64,
    /// The image that was restored.
    pub image: ImageId,
    /// How long the restore took, without the server's start.
    pub restore_ms: u64,
    /// How long the server took to recover.
    pub recovery_ms: u64,
    /// The last commit that it has, as PostgreSQL prints times; `None` if the log had none.
    pub last_commit: Option<String>,
    /// Checks that failed, in words.
    pub wrong: Vec<String>,
}

impl Drill {
    /// Notes it in the repository, in the place of earlier ones.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn note(&self, repository: &Repository) -> Result<()> {
        let earlier = repository.names(DRILLS).await?;
        let json = serde_json::to_vec(self).expect("a struct of plain values");
        let name = format!("{DRILLS}/{:015}", self.ended_unix_ms);
        repository.put_object(&name, json.into()).await?;
        let earlier = earlier.into_iter().map(|name| format!("{DRILLS}/{name}"));
        repository
            .remove_all(earlier.filter(|other| *other != name).collect())
            .await
    }

    /// The last one that was noted.
    ///
    /// # Errors
    /// [`Error::Damaged`]; those of the store.
    pub async fn last(repository: &Repository) -> Result<Option<Drill>> {
        let Some(name) = repository.names(DRILLS).await?.pop() else {
            return Ok(None);
        };
        let name = format!("{DRILLS}/{name}");
        let json = repository.object(&name).await?;
        serde_json::from_slice(&json)
            .map(Some)
            .map_err(|error| Error::damaged(name, error))
    }
}
