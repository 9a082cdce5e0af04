//! How the active gives its place up while its epoch still stands: because PostgreSQL died, or because it was told to
//! stop or to hand over.
//!
//! Invariant: nobody hears that the place is free before nothing of PostgreSQL is left here.

use std::time::Duration;

use coordination::channel::Notice;
use coordination::records::ActiveState;
use dax::ids::NodeName;
use pgserver::StopMode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::view::View;

use super::{Active, STOP_WITHIN, read_control};
use crate::agent::context::Context;
use crate::agent::error::Result;

impl Active {
    /// PostgreSQL died: whoever can should take over.
    pub(super) async fn leave(
        &self,
        context: &Context,
        state: &watch::Sender<ActiveState>,
        beats: JoinHandle<()>,
    ) -> Result<()> {
        // What it left behind ends before somebody else owns the volume.
        self.postgres.kill().await?;
        let exit = self.postgres.exit();
        let detail = exit.map_or(String::new(), |report| report.to_string());
        let epoch = self.epoch;
        let tell = || {
            context
                .server
                .announce(Notice::PostgresDead { epoch, detail })
        };
        if self.storage.is_leased() {
            // Whoever follows sooner waits for what is released here.
            self.vacate(state, ActiveState::PostgresDead, beats).await;
            tell();
        } else {
            tell();
            self.vacate(state, ActiveState::PostgresDead, beats).await;
        }
        Ok(())
    }

    /// Tells in the registry that nobody serves any more.
    async fn vacate(
        &self,
        state: &watch::Sender<ActiveState>,
        why: ActiveState,
        beats: JoinHandle<()>,
    ) {
        state.send_replace(why);
        // The last beat ends the task; a stalled store must not hold us up for long.
        if tokio::time::timeout(Duration::from_secs(2), beats)
            .await
            .is_err()
        {
            tracing::info!("the last heartbeat could not be written in time");
        }
        match tokio::time::timeout(Duration::from_secs(2), self.storage.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!(%error, "the epoch is not released"),
            Err(_) => tracing::info!("the epoch could not be released in time"),
        }
    }

    /// Stops cleanly, seals what was written, and frees the epoch to be followed.
    pub(super) async fn release(
        &self,
        context: &Context,
        state: &watch::Sender<ActiveState>,
        to: Option<NodeName>,
        beats: JoinHandle<()>,
    ) -> Result<()> {
        let report = self.postgres.stop(StopMode::Fast, STOP_WITHIN).await?;
        if report.is_clean() {
            let sealed = tokio::time::timeout(STOP_WITHIN, self.seal_last()).await;
            match sealed {
                Ok(sealed) => sealed?,
                Err(_) => tracing::warn!("the zones do not answer; the next start replays the log"),
            }
        } else {
            tracing::warn!(%report, "PostgreSQL did not stop cleanly; the next start replays the log");
        }
        let reason = "stopped cleanly".to_owned();
        self.vacate(state, ActiveState::Released { to: to.clone() }, beats)
            .await;
        context.server.announce(Notice::Bye {
            epoch: self.epoch,
            reason,
            to,
        });
        Ok(())
    }

    /// Seals what PostgreSQL wrote until it stopped.
    async fn seal_last(&self) -> Result<()> {
        let control = read_control(&self.view).await?;
        self.sealer.seal_shutdown(&self.view, &control).await?;
        Ok(self.view.sync_all().await?)
    }
}
