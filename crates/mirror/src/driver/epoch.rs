//! The beginning of an epoch in which rows are logged.
//!
//! Invariant: nobody is let in before the log has all that the member has committed, and the member knows the epoch, by which its
//! transactions are named.

use super::hub::{Hub, READ_AGAIN};
use super::rows;
use crate::core::manager::Manager;

impl Hub {
    /// Waits until the log has all that was committed before the epoch, and has the member remember that it serves in it.
    pub(super) async fn level(&self, epoch: u32) {
        let (mut level, mut of) = (
            self.capture.level.subscribe(),
            self.capture.epoch.subscribe(),
        );
        // Both senders live as long as the process.
        tokio::select! {
            _ = level.wait_for(|level| *level == Some(epoch)) => {}
            _ = of.wait_for(|of| *of != Some(epoch)) => return,
        }
        while self.look(Manager::epoch) == Some(epoch) {
            match rows::note_served(&self.member, epoch).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, epoch, "the epoch cannot be noted"),
            }
            tokio::time::sleep(READ_AGAIN).await;
        }
    }
}
