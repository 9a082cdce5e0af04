//! The tip: how far the log was copied when somebody said so last. Where less is there, something was removed.

use pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::repository::Repository;

const TIP: &str = "tip";

/// End of the WAL in the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    /// The newest timeline.
    pub timeline: TimelineId,
    /// The end of its log.
    pub end: Lsn,
}

impl Tip {
    /// Says so, in the place of what was said before.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put(self, repository: &Repository) -> Result<()> {
        repository.replace_value(TIP, &self).await
    }

    /// The last one that was said.
    ///
    /// # Errors
    /// [`Error::Damaged`]; those of the store.
    pub async fn load(repository: &Repository) -> Result<Option<Tip>> {
        match repository.value(TIP).await {
            Err(Error::Missing(_)) => Ok(None),
            found => found.map(Some),
        }
    }
}
