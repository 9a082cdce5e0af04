//! Where a proxy learns of the cluster.

use std::sync::Arc;

use async_trait::async_trait;
use dax::ids::Epoch;
use volume::lsn::Lsn;

use super::cluster::Cluster;

/// What the active answers to a question for its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// In which epoch.
    pub epoch: Epoch,
    /// All commits acknowledged before the question are below it.
    pub lsn: Lsn,
    /// The epoch stood when it was answered: a majority of the zones said so after the question, or the
    /// lease. Without it a frozen or cut-off active may have answered.
    pub is_proven: bool,
    /// Up to here the active itself shows all commits to whoever begins to read now, as far as is known. Standbys may show
    /// more.
    pub shown: Lsn,
}

/// Why a source has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Tells who is active and how far standbys are, and asks for positions.
#[async_trait]
pub trait Source: Send + Sync {
    /// Tells the cluster whatever there is to tell, for good.
    async fn run(self: Arc<Self>, cluster: Arc<Cluster>);

    /// Asks the active for its position; if `shown`, what it shows is asked for, too.
    ///
    /// # Errors
    /// If there is no answer; it is asked again.
    async fn position(&self, shown: bool) -> Result<Position, SourceError>;
}
