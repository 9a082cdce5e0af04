//! How the active gives its place up while its epoch still stands: because PostgreSQL died, or because it was told to
//! stop or to hand over.
//!
//! Invariant: nobody hears that the place is free before nothing of PostgreSQL is left here.

use std::time::Duration;

use coordination::channel::Notice;
use coordination::records::ActiveState;
use dax::ids::NodeName;
use pgdata::control::{ClusterState, ControlFile};
use pgserver::{ExitReport, StopMode};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use volume::view::View;

use super::freezer::silent;
use super::{Active, STOP_WITHIN, read_control};
use crate::agent::context::Context;
use crate::agent::error::Result;

/// A clean stop is given up when no heartbeat was written for so many times Tmax. One that was late under the load of the
/// last checkpoint is no reason.
const AWAY: u32 = 3;

/// How long processes of a dead server may take to end before their mount is aborted. They would log that as errors.
pub(super) const DIES_WITHIN: Duration = Duration::from_secs(1);

/// What an active says when it gives its place up, and with what.
pub(super) struct Word<'a> {
    /// What the next heartbeat says; one that says that nobody serves is the last.
    pub state: &'a watch::Sender<ActiveState>,
    pub beats: JoinHandle<()>,
    /// When the last heartbeat was written.
    pub beaten: &'a watch::Receiver<Instant>,
}

impl Active {
    /// PostgreSQL died: whoever can should take over.
    pub(super) async fn leave(&self, context: &Context, word: Word<'_>) -> Result<()> {
        // What it left behind ends before somebody else owns the volume.
        let dies = tokio::time::timeout(DIES_WITHIN, self.postgres.kill());
        if dies.await.is_err() {
            // Something waits for zones, and cannot even be killed.
            self.mount.abort();
        }
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
            self.vacate(word, ActiveState::PostgresDead).await;
            tell();
        } else {
            tell();
            self.vacate(word, ActiveState::PostgresDead).await;
        }
        Ok(())
    }

    /// Tells in the registry that nobody serves any more.
    async fn vacate(&self, word: Word<'_>, why: ActiveState) {
        word.state.send_replace(why);
        // The last beat ends the task; a stalled store must not hold us up for long.
        if tokio::time::timeout(Duration::from_secs(2), word.beats)
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

    /// Stops cleanly, seals what was written, and frees the epoch to be followed; unless that becomes impossible.
    pub(super) async fn release(
        &self,
        context: &Context,
        to: Option<NodeName>,
        word: Word<'_>,
    ) -> Result<()> {
        let patience = AWAY * context.heartbeat().timeout;
        tokio::select! {
            biased;
            stopped = self.stop_and_seal() => stopped?,
            why = self.hopeless(word.beaten, patience) => {
                tracing::warn!("{why}: PostgreSQL is killed, and the next start replays the log");
                return Ok(());
            }
        }
        let reason = "stopped cleanly".to_owned();
        self.vacate(word, ActiveState::Released { to: to.clone() })
            .await;
        context.server.announce(Notice::Bye {
            epoch: self.epoch,
            reason,
            to,
        });
        Ok(())
    }

    async fn stop_and_seal(&self) -> Result<()> {
        let report = self.postgres.stop(StopMode::Fast, STOP_WITHIN).await?;
        match tokio::time::timeout(STOP_WITHIN, self.seal_last(&report)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                tracing::warn!(%report, "PostgreSQL did not stop cleanly; the next start replays the log");
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => tracing::warn!("the zones do not answer; the next start replays the log"),
        }
        Ok(())
    }

    /// Waits until a clean stop can only wait for what does not come, and says why.
    async fn hopeless(
        &self,
        beaten: &watch::Receiver<Instant>,
        patience: Duration,
    ) -> &'static str {
        tokio::select! {
            () = self.storage.fenced() => "another node owns the volume",
            () = silent(beaten, || patience) => "the zones do not answer",
        }
    }

    /// Seals what PostgreSQL wrote until it stopped, if it stopped cleanly.
    async fn seal_last(&self, report: &ExitReport) -> Result<bool> {
        let Some(control) = self.last_control(report).await? else {
            return Ok(false);
        };
        self.sealer.seal_shutdown(&self.view, &control).await?;
        self.view.sync_all().await?;
        Ok(true)
    }

    /// The control file that PostgreSQL, which has ended, left with its last checkpoint; nothing if it wrote none.
    pub(super) async fn last_control(&self, report: &ExitReport) -> Result<Option<Vec<u8>>> {
        if !report.is_success() {
            return Ok(None);
        }
        let control = read_control(&self.view).await?;
        let state = ControlFile::parse(&control)?.state;
        Ok((state == ClusterState::ShutDown).then_some(control))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A switchover whose node lost the zones after it had begun waited two and a half minutes for them.
    // hazard: NODE-10
    #[tokio::test]
    async fn a_stop_is_hopeless_once_beats_have_stayed_away_for_long() {
        let (beats, beaten) = watch::channel(Instant::now());
        let hour = Duration::from_secs(3600);
        assert_eq!(silent(&beaten, || hour).now_or_never(), None);
        assert_eq!(silent(&beaten, || Duration::ZERO).now_or_never(), Some(()));
        beats.send_replace(Instant::now() + hour);
        assert_eq!(silent(&beaten, || Duration::ZERO).now_or_never(), None);
    }
}
