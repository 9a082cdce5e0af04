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
        let is_level = |level: &Option<u32>| *level == Some(epoch);
        // The sender lives as long as the process.
        let _ = self.capture.level.subscribe().wait_for(is_level).await;
        while self.look(Manager::epoch) == Some(epoch) {
            match rows::note_served(&self.member, epoch).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, epoch, "the epoch cannot be noted"),
            }
            tokio::time::sleep(READ_AGAIN).await;
        }
    }
}
