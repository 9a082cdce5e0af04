//! Scrubs a volume in the background for as long as its owner keeps it open.
//!
//! ```text
//!   waiting ── the last scrub is old, or a zone has lost its disk or missed too much ──▶ scrubbing
//!      ▲                                                                                    │
//!      └──────────────────── the end, or an error (told, tried again later) ───────────────┘
//! ```
//!
//! Copies that differ are mended, and a store that had lost its disk counts again at the end: without an owner who scrubs, it
//! never does. Invariant: it compares no faster than its pace says, so that it never competes with its owner's work for long.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::Result;
use crate::ids::{BlockKey, FileId, ReplicaId};
use crate::storage::{ScrubCursor, Storage};

/// A new owner has better things to do than its first scrub.
const FIRST_AFTER: Duration = Duration::from_secs(120);
/// How often it looks whether a store needs one.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After an error.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Tells whether a file is one that nobody knows any more.
pub type IsGarbage = Box<dyn Fn(FileId) -> bool + Send>;

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Blocks compared, of all generations.
    pub blocks: u64,
    /// Copies that were missing, old or damaged, and were sent again.
    pub mended: u64,
    /// Files given back because nobody knows them.
    pub garbage_files: u64,
    /// Blocks of which no zone that is up has an intact copy.
    pub unreadable: Vec<BlockKey>,
    /// The scrub is complete; these replicas had lost everything and count again.
    pub complete: Option<Vec<ReplicaId>>,
}

/// One scrub, from the beginning to the end.
pub struct Scrub {
    storage: Arc<dyn Storage>,
    is_garbage: IsGarbage,
    after: Option<ScrubCursor>,
}

impl Scrub {
    /// One that gives back the files that are garbage.
    pub fn new(storage: Arc<dyn Storage>, is_garbage: IsGarbage) -> Scrub {
        Scrub {
            storage,
            is_garbage,
            after: None,
        }
    }

    /// Compares and mends the next part. Waits while too few zones are up.
    ///
    /// # Errors
    /// `Fenced`, or `Invalid` if the handle owns no epoch.
    pub async fn step(&mut self) -> Result<ScrubStep> {
        let mut page = self.storage.scrub(self.after).await?;
        page.files.retain(|file| (self.is_garbage)(*file));
        let garbage = page.files;
        if !garbage.is_empty() {
            self.storage.remove_files(&garbage).await?;
        }
        page.differences
            .retain(|d| garbage.binary_search(&d.key.file).is_err());
        let mut step = ScrubStep {
            blocks: page.blocks,
            mended: page.differences.len() as u64,
            garbage_files: garbage.len() as u64,
            unreadable: page.unreadable,
            complete: None,
        };
        if !page.differences.is_empty() {
            self.storage.mend(page.differences).await?;
        }
        self.after = page.next;
        if self.after.is_none() {
            step.complete = Some(self.storage.end_scrub().await?);
        }
        Ok(step)
    }
}

impl fmt::Debug for Scrub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Scrub");
        out.field("after", &self.after).finish_non_exhaustive()
    }
}

/// What can be scrubbed.
#[async_trait]
pub trait Scrubbed: Send + Sync {
    /// Begins a scrub.
    async fn begin(&self) -> std::result::Result<Scrub, Trouble>;
}

/// Why a scrub was not finished.
pub type Trouble = Box<dyn StdError + Send + Sync>;

/// A volume of whose files none is garbage.
struct AllFiles(Arc<dyn Storage>);

#[async_trait]
impl Scrubbed for AllFiles {
    async fn begin(&self) -> std::result::Result<Scrub, Trouble> {
        Ok(Scrub::new(Arc::clone(&self.0), Box::new(|_| false)))
    }
}

/// How far the scrub is; part of a node's status.
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

/// Progress of a scrub, shared with the status.
pub type ScrubStatus = Arc<Mutex<ScrubProgress>>;

/// When and how fast it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long after a scrub of all copies the next one begins.
    pub every: Duration,
    /// Bytes of blocks that are compared in a second, at most.
    pub bytes_per_second: u64,
}

impl Default for Pace {
    /// Once a day, 32 MiB a second.
    fn default() -> Pace {
        Pace {
            every: Duration::from_secs(24 * 3600),
            bytes_per_second: 32 << 20,
        }
    }
}

/// Scrubs when there is reason to.
pub struct Scrubber {
    /// The owner's handle.
    pub storage: Arc<dyn Storage>,
    /// What is scrubbed.
    pub scrubbed: Arc<dyn Scrubbed>,
    /// When and how fast.
    pub pace: Pace,
    /// Where the progress is told.
    pub told: ScrubStatus,
}

/// A scrubber that runs until this is dropped.
#[derive(Debug)]
pub struct Scrubbing(JoinHandle<()>);

impl Drop for Scrubbing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Scrubber {
    /// One for a volume of whose files none is garbage.
    pub fn of_all_files(storage: Arc<dyn Storage>) -> Scrubber {
        Scrubber {
            scrubbed: Arc::new(AllFiles(Arc::clone(&storage))),
            storage,
            pace: Pace::default(),
            told: ScrubStatus::default(),
        }
    }

    /// Runs as a task of its own.
    pub fn spawn(self) -> Scrubbing {
        Scrubbing(tokio::spawn(self.run()))
    }

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
                    Ok(()) => self.pace.every,
                    Err(error) => {
                        tracing::info!(%error, "scrub not finished; trying again");
                        RETRY_AFTER
                    }
                };
        }
    }

    /// True if a store needs one now.
    fn is_wanted(&self) -> bool {
        let replicas = self.storage.replicas();
        replicas
            .iter()
            .any(|r| r.up && (r.rebuilding || r.scrub_wanted))
    }

    async fn scrub(&self) -> std::result::Result<(), Trouble> {
        let completed_unix_ms = self.told.lock().completed_unix_ms;
        *self.told.lock() = ScrubProgress {
            running: true,
            completed_unix_ms,
            ..ScrubProgress::default()
        };
        let block_bytes = u64::from(self.storage.settings().block_size_bytes);
        let mut scrub = self.scrubbed.begin().await?;
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
            let pace = Duration::from_secs_f64(bytes / self.pace.bytes_per_second as f64);
            tokio::time::sleep_until(begun + pace).await;
        }
    }
}

fn unix_ms(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
