//! An image of a repository, as nodes read and copy it. A program that was built without backups refuses such a volume.

use std::sync::Arc;

#[cfg(feature = "backup")]
use backup::{
    beneath::{Image, Progress},
    repository::Repository,
};
use coordination::records::Filling;
use dax::storage::Storage;
use parking_lot::Mutex;
use serde::Serialize;
#[cfg(feature = "backup")]
use {
    async_trait::async_trait,
    coordination::records::Record,
    dax::beneath::{Beneath, Over},
    dax::credentials::Secret,
    dax::ids::BlockKey,
    dax::storage::Block,
    std::sync::atomic::{AtomicBool, Ordering},
    std::time::Duration,
    tokio::time::Instant,
};

use super::error::{AgentError, Result};

/// How often a read that waits for the repository looks whether it is still needed.
#[cfg(feature = "backup")]
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    let beneath = Lying {
        image: open(filling, storage.as_ref()).await?,
        storage: Arc::clone(&storage),
        is_done: AtomicBool::new(false),
    };
    Ok(Over::shared(storage, Arc::new(beneath)))
}

/// An image, for as long as it is not in the zones. What is not in the zones then is nothing.
#[cfg(feature = "backup")]
struct Lying {
    image: Image,
    /// The volume over it.
    storage: Arc<dyn Storage>,
    is_done: AtomicBool,
}

#[cfg(feature = "backup")]
impl Lying {
    async fn look(&self) -> dax::Result<bool> {
        let filling = Filling::load(self.storage.as_ref()).await?;
        let is_done = filling.is_none_or(|filling| filling.done);
        self.is_done.fetch_or(is_done, Ordering::Relaxed);
        Ok(is_done)
    }

    /// Returns when everything is in the zones.
    async fn done(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if matches!(self.look().await, Ok(true)) {
                return;
            }
        }
    }
}

#[cfg(feature = "backup")]
#[async_trait]
impl Beneath for Lying {
    async fn block(&self, key: BlockKey) -> dax::Result<Option<Block>> {
        if self.is_done.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let read = tokio::select! {
            read = self.image.block(key) => read,
            () = self.done() => Ok(None),
        };
        match read {
            // It was copied, and the repository may be gone since.
            Err(error) => match self.look().await? {
                true => Ok(None),
                false => Err(error),
            },
            read => read,
        }
    }
}

/// An image that can be read.
#[cfg(feature = "backup")]
pub(super) type Opened = Image;

/// Opens the image beneath a volume.
#[cfg(feature = "backup")]
pub(super) async fn open(filling: &Filling, storage: &dyn Storage) -> Result<Opened> {
    let secret = filling.key_file.as_deref().map(Secret::load).transpose()?;
    let repository = Repository::open(&filling.repository, secret.as_ref())?;
    let id = filling.image.parse().map_err(AgentError::Refused)?;
    let block_bytes = storage.settings().block_size_bytes;
    Ok(Image::open(repository, &id, block_bytes).await?)
}

/// Copies the image into its own volume, and tells how far it is.
#[cfg(feature = "backup")]
pub(super) async fn fill(
    image: &Opened,
    storage: &Arc<dyn Storage>,
    into: &Arc<dyn Storage>,
    filling: Filling,
    told: &FillStatus,
) -> Result<()> {
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
pub(super) type Opened = std::convert::Infallible;

#[cfg(not(feature = "backup"))]
pub(super) async fn open(_: &Filling, _: &dyn Storage) -> Result<Opened> {
    Err(refused())
}

#[cfg(not(feature = "backup"))]
pub(super) async fn fill(
    image: &Opened,
    _: &Arc<dyn Storage>,
    _: &Arc<dyn Storage>,
    _: Filling,
    _: &FillStatus,
) -> Result<()> {
    match *image {}
}

#[cfg(not(feature = "backup"))]
fn refused() -> AgentError {
    let said = "an image of a repository lies beneath the volume, and this program was built without backups";
    AgentError::Refused(said.to_owned())
}
