//! Scrubs the volume in the background for as long as its owner keeps it open.
//!
//! ```text
//!   waiting ── the last scrub is old, or a zone has lost its disk or missed too much ──▶ scrubbing
//!      ▲                                                                                    │
//!      └──────────────────── the end, or an error (told, tried again later) ───────────────┘
//! ```
//!
//! Invariant: it compares no faster than the configured rate, so that it never competes with the
//! database for long.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dax::storage::Storage;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use crate::active::{ActiveView, ScrubStep};
use crate::error::Result;

/// A new active has better things to do than its first scrub.
const FIRST_AFTER: Duration = Duration::from_secs(120);
/// How often it looks whether a zone needs one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After an error.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How far the scrub is; part of the node's status.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScrubProgress {
    /// A scrub is on its way.
    pub running: bool,
    /// Blocks compared by the present scrub, or by the last one.
    pub blocks: u64,
    /// Copies that it sent again.
    pub mended: u64,
    /// Files given back because nobody knew them.
    pub garbage_files: u64,
    /// Blocks without an intact copy anywhere.
    pub unreadable_blocks: u64,
    /// When the last complete one ended.
    pub completed_unix_ms: Option<u64>,
}

impl ScrubProgress {
    fn add(&mut self, step: &ScrubStep) {
        self.blocks += step.blocks;
        self.mended += step.mended;
        self.garbage_files += step.garbage_files;
        self.unreadable_blocks += step.unreadable.len() as u64;
    }
}

/// Where the progress is told.
pub type Told = Arc<Mutex<ScrubProgress>>;

/// Scrubs when there is reason to.
pub struct Scrubber {
    /// The owner's handle.
    pub storage: Arc<dyn Storage>,
    /// The open volume.
    pub view: Arc<ActiveView>,
    /// How long after a scrub of all copies the next one begins.
    pub every: Duration,
    /// Bytes of blocks that it compares in a second, at most.
    pub bytes_per_second: u64,
    /// Where the progress is told.
    pub told: Told,
}

impl Scrubber {
    /// Runs until it is aborted.
    pub async fn run(self) {
        let mut next = Instant::now() + FIRST_AFTER;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if Instant::now() < next && !self.is_wanted() {
                continue;
            }
            let done = self.scrub().await;
            self.told.lock().running = false;
            next = Instant::now()
                + match done {
                    Ok(()) => self.every,
                    Err(error) => {
                        tracing::info!(%error, "scrub not finished; trying again");
                        RETRY_AFTER
                    }
                };
        }
    }

    /// Whether a zone needs one now.
    fn is_wanted(&self) -> bool {
        let replicas = self.storage.replicas();
        replicas
            .iter()
            .any(|r| r.up && (r.rebuilding || r.scrub_wanted))
    }

    async fn scrub(&self) -> Result<()> {
        let completed_unix_ms = self.told.lock().completed_unix_ms;
        *self.told.lock() = ScrubProgress {
            running: true,
            completed_unix_ms,
            ..ScrubProgress::default()
        };
        let block_bytes = u64::from(self.storage.settings().block_size_bytes);
        let mut scrub = self.view.scrub().await?;
        loop {
            let begun = Instant::now();
            let step = scrub.step().await?;
            self.told.lock().add(&step);
            for block in &step.unreadable {
                tracing::error!(%block, "no zone has an intact copy: restore the database from a backup");
            }
            if let Some(rebuilt) = step.complete {
                self.told.lock().completed_unix_ms = Some(unix_ms(SystemTime::now()));
                let progress = self.told.lock().clone();
                for replica in rebuilt {
                    tracing::info!(%replica, "the replica is rebuilt and counts again");
                }
                tracing::info!(
                    blocks = progress.blocks,
                    mended = progress.mended,
                    garbage_files = progress.garbage_files,
                    "scrub complete"
                );
                return Ok(());
            }
            let bytes = (step.blocks * block_bytes) as f64;
            let pace = Duration::from_secs_f64(bytes / self.bytes_per_second as f64);
            tokio::time::sleep_until(begun + pace).await;
        }
    }
}

fn unix_ms(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
