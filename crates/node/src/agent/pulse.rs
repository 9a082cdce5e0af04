//! The heartbeat of an epoch whose owner does not serve yet.
//!
//! Invariant: its counter never goes back, also when the active goes on with it ([`Pulse::last`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coordination::records::{Heartbeat, Record};
use dax::storage::Storage;
use tokio::task::JoinHandle;

/// Beats while a takeover is under way, so that nobody takes a long replay for a dead node.
pub(crate) struct Pulse {
    last: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Pulse {
    /// Goes on behind `beat`, which was written.
    pub(crate) fn start(
        storage: Arc<dyn Storage>,
        mut beat: Heartbeat,
        interval: Duration,
    ) -> Pulse {
        let last = Arc::new(AtomicU64::new(beat.counter));
        let counter = Arc::clone(&last);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                beat.counter = counter.fetch_add(1, Ordering::Relaxed) + 1;
                if let Err(error) = beat.store(storage.as_ref()).await {
                    tracing::info!(%error, "heartbeat not written");
                }
            }
        });
        Pulse { last, task }
    }

    /// The last counter that may have been written.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.task.abort();
    }
}
