//! An image of a repository, as nodes read and copy it. A program that was built without backups refuses such a volume.

use std::sync::Arc;

#[cfg(feature = "backup")]
use backup::{
    beneath::{Image, Progress},
    repository::Repository,
};
use coordination::records::Filling;
use dax::storage::Storage;
#[cfg(feature = "backup")]
use dax::{beneath::Over, credentials::Secret};
use parking_lot::Mutex;
use serde::Serialize;
#[cfg(feature = "backup")]
use tokio::time::Instant;

use super::error::{AgentError, Result};

/// Progress of the copy, for the node's status.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct FillReport {
    /// Bytes of files that are in the zones.
    pub done_bytes: u64,
    /// Bytes of all.
    pub size_bytes: u64,
    /// Estimate of the time that the rest takes.
    pub left_ms: Option<u64>,
}

/// Shared between the copy and the node's status; `None` if nothing lies beneath.
pub(crate) type FillStatus = Arc<Mutex<Option<FillReport>>>;

/// The handle, with the image beneath it.
#[cfg(feature = "backup")]
pub(super) async fn over(storage: Arc<dyn Storage>, filling: &Filling) -> Result<Arc<dyn Storage>> {
    let image = open(filling, storage.as_ref()).await?;
    Ok(Over::shared(storage, Arc::new(image)))
}

#[cfg(feature = "backup")]
async fn open(filling: &Filling, storage: &dyn Storage) -> Result<Image> {
    let secret = filling.key_file.as_deref().map(Secret::load).transpose()?;
    let repository = Repository::open(&filling.repository, secret.as_ref())?;
    let id = filling.image.parse().map_err(AgentError::Refused)?;
    let block_bytes = storage.settings().block_size_bytes;
    Ok(Image::open(repository, &id, block_bytes).await?)
}

/// Copies the image into its own volume, and tells how far it is.
#[cfg(feature = "backup")]
pub(super) async fn fill(
    storage: &Arc<dyn Storage>,
    into: &Arc<dyn Storage>,
    filling: Filling,
    told: &FillStatus,
) -> Result<()> {
    let image = open(&filling, storage.as_ref()).await?;
    let mut first = None;
    let tell = |progress: Progress| {
        let (at, began) = *first.get_or_insert((progress.done_bytes, Instant::now()));
        let copied = progress.done_bytes.saturating_sub(at);
        let left = progress.size_bytes.saturating_sub(progress.done_bytes);
        let spent_ms = began.elapsed().as_millis() as u64;
        *told.lock() = Some(FillReport {
            done_bytes: progress.done_bytes,
            size_bytes: progress.size_bytes,
            left_ms: (copied > 0).then(|| spent_ms.saturating_mul(left) / copied),
        });
    };
    Ok(image.fill(storage, into, filling, tell).await?)
}

#[cfg(not(feature = "backup"))]
pub(super) async fn over(_: Arc<dyn Storage>, _: &Filling) -> Result<Arc<dyn Storage>> {
    Err(refused())
}

#[cfg(not(feature = "backup"))]
pub(super) async fn fill(
    _: &Arc<dyn Storage>,
    _: &Arc<dyn Storage>,
    _: Filling,
    _: &FillStatus,
) -> Result<()> {
    Err(refused())
}

#[cfg(not(feature = "backup"))]
fn refused() -> AgentError {
    let said = "an image of a repository lies beneath the volume, and this program was built without backups";
    AgentError::Refused(said.to_owned())
}
