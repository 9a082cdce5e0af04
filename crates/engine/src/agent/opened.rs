//! The volume in the hands of its owner: read, opened, mounted; sealed and scrubbed while the server runs; closed.
//!
//! A seal has no meaning for the server here. It is where the next owner begins to read the journal of names, so
//! that this stays short, and after it what was removed is given back.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dax::scrub::{ScrubProgress, ScrubStatus, Scrubber};
use dax::storage::Storage;
use mount::{Mount, MountOptions};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use volume::active::{ActiveView, NoObserver, Options};
use volume::latest::Latest;
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::View;

use super::{Context, ownership};
use crate::error::Result;
use crate::layout::HostedLayout;

/// How often the volume is sealed, if anything was written to it.
const SEAL_EVERY: Duration = Duration::from_secs(60);
/// How long closing may wait for the zones.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);

pub(super) struct Opened {
    view: ActiveView,
    mount: Arc<Mount>,
    scrubbed: ScrubStatus,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Opens the latest state of the volume, whose epoch `storage` owns. Nothing is mounted yet.
///
/// # Errors
/// What the zones say; `Fenced` if a higher epoch exists.
pub(crate) async fn open_view(
    storage: Arc<dyn Storage>,
    layout: HostedLayout,
    private: &std::path::Path,
    root: volume::view::Ownership,
    options: Options,
) -> Result<ActiveView> {
    let latest = Latest::recover(storage, SystemTime::now().into()).await?;
    let private = PrivateDir::prepare(private, &layout, false, root)?;
    let observer = Arc::new(NoObserver);
    let view = ActiveView::open(
        latest,
        Arc::new(layout),
        Arc::new(private),
        observer,
        None,
        options,
    )
    .await?;
    Ok(view)
}

impl Opened {
    /// Opens the volume and mounts it.
    pub(super) async fn open(context: &Context, storage: &Arc<dyn Storage>) -> Result<Opened> {
        let config = &context.config;
        let layout = HostedLayout::new(context.recipe.private.clone());
        let options = Options {
            cache_bytes: config.memory.cache.0,
            kernel_cache: config.memory.kernel_cache,
            ..Options::default()
        };
        let root = ownership(context.run_as.as_ref());
        let private = config.paths.private();
        let view = open_view(Arc::clone(storage), layout, &private, root, options).await?;
        let shown = Arc::new(view.clone());
        let mount = Mount::start(
            shown,
            MountOptions::new(config.paths.mount()),
            Handle::current(),
        )?;
        let scrubbed = ScrubStatus::default();
        let scrubber = Scrubber {
            storage: Arc::clone(storage),
            scrubbed: Arc::new(view.clone()),
            pace: config.storage.scrub_pace(),
            told: Arc::clone(&scrubbed),
        };
        let tasks = vec![
            tokio::spawn(keep_sealing(view.clone())),
            tokio::spawn(scrubber.run()),
        ];
        Ok(Opened {
            view,
            mount: Arc::new(mount),
            scrubbed,
            tasks,
        })
    }

    /// How far the scrub is.
    pub(super) fn scrubbed(&self) -> ScrubProgress {
        self.scrubbed.lock().clone()
    }

    /// The server has stopped cleanly: makes all of it durable, seals it and takes the mount away.
    pub(super) async fn close(self) -> Result<()> {
        let sealed = async {
            self.mount.settle().await;
            self.view.sync_all().await?;
            seal(&self.view).await
        };
        match tokio::time::timeout(CLOSE_WITHIN, sealed).await {
            Ok(sealed) => sealed?,
            Err(_) => {
                tracing::warn!("the zones do not answer; the next start reads the journal of names")
            }
        }
        self.unmount().await
    }

    /// Takes the mount away at once: whatever still uses it gets errors.
    pub(super) async fn abort(self) -> Result<()> {
        self.mount.abort();
        self.unmount().await
    }

    async fn unmount(mut self) -> Result<()> {
        for task in self.tasks.drain(..) {
            task.abort();
            // Nothing is written any more when this returns.
            let _ = task.await;
        }
        let mount = Arc::clone(&self.mount);
        let unmounting = tokio::task::spawn_blocking(move || mount.unmount());
        unmounting.await.expect("unmounting does not panic")?;
        Ok(())
    }
}

/// Seals the volume as it is.
pub(crate) async fn seal(view: &ActiveView) -> Result<()> {
    let cut = view.cut().await?;
    view.commit_seal(cut, Lsn::ZERO, Lsn::ZERO, Vec::new())
        .await?;
    Ok(())
}

async fn keep_sealing(view: ActiveView) {
    let mut sealed = view.journal_synced();
    loop {
        tokio::time::sleep(SEAL_EVERY).await;
        if view.journal_synced() == sealed {
            continue;
        }
        match seal(&view).await {
            Ok(()) => sealed = view.journal_synced(),
            Err(error) if error.is_superseded() => return,
            Err(error) => tracing::info!(%error, "not sealed; trying again"),
        }
    }
}
