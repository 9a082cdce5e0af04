//! Carrying the standby's overlay over: its blocks become writes of the new epoch, a few at a
//! time, behind the database's own. Nothing needs them in the storage before the first seal, and whatever
//! the database writes anew meanwhile is not written back at all: so it is spread over the time until then.
//!
//! Invariant: a block leaves the overlay only when the storage has taken it, or something newer in its
//! place, and only under the core lock. So it is readable all the while, also from a view that is
//! fenced in the middle of a step; and a step that finds a block still there writes what it should.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{InheritedBlocks, Inner};
use crate::error::{Error, Result};
use crate::layout::FileClass;

/// Blocks written back in one step, under the core lock.
const STEP_BLOCKS: usize = 8;
/// How long the database's promotion has the storage for itself, if nobody says that it is done.
const HEAD_START: Duration = Duration::from_secs(10);
/// How long it takes then.
const UNTOLD: Duration = Duration::from_secs(10);
/// Blocks that may wait for the storage before a step, while nobody waits for the end: what the database
/// writes itself must not wait behind what is written back.
const BACKLOG_BLOCKS: u64 = 32;
/// Between two steps, while nobody waits for the end, at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

pub(super) struct WriteBack {
    pub blocks: Arc<dyn InheritedBlocks>,
    progress: watch::Sender<Progress>,
    pace: watch::Sender<Pace>,
}

/// How urgent it is; only goes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// The database is being promoted.
    Waiting,
    /// Behind the database's own writes, done at about that time.
    Until(Instant),
    /// A seal waits for the end.
    Urgent,
}

impl Pace {
    /// How long to wait before the next step, if so many blocks are left.
    fn pause(self, now: Instant, left: usize) -> Duration {
        match self {
            Pace::Until(end) => {
                let steps = left.div_ceil(STEP_BLOCKS).max(1);
                let even =
                    end.saturating_duration_since(now) / u32::try_from(steps).unwrap_or(u32::MAX);
                even.clamp(PAUSE_MIN, PAUSE_MAX)
            }
            Pace::Waiting | Pace::Urgent => Duration::ZERO,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Running,
    Done,
    Failed(String),
}

impl WriteBack {
    pub fn new(blocks: Arc<dyn InheritedBlocks>) -> WriteBack {
        WriteBack {
            blocks,
            progress: watch::Sender::new(Progress::Running),
            pace: watch::Sender::new(Pace::Waiting),
        }
    }

    /// Begins, if it has not begun.
    pub fn begin(&self, within: Duration) {
        self.quicken(Pace::Until(Instant::now() + within));
    }

    fn hurry(&self) {
        self.quicken(Pace::Urgent);
    }

    fn quicken(&self, pace: Pace) {
        self.pace.send_if_modified(|now| {
            let begins = *now == Pace::Waiting || pace == Pace::Urgent;
            if begins {
                *now = pace;
            }
            begins
        });
    }
}

/// Runs until nothing is left, the view is gone, or the storage is lost for good.
pub(super) async fn run(view: Weak<Inner>) {
    let pace = view
        .upgrade()
        .and_then(|inner| Some(inner.write_back.as_ref()?.pace.subscribe()));
    let Some(mut pace) = pace else {
        return;
    };
    // A timeout, and a view that is gone, end the wait as well.
    let waiting = pace.wait_for(|p| *p != Pace::Waiting);
    let is_told = tokio::time::timeout(HEAD_START, waiting).await.is_ok();
    if !is_told
        && let Some(inner) = view.upgrade()
        && let Some(write_back) = &inner.write_back
    {
        write_back.begin(UNTOLD);
    }
    let began = Instant::now();
    let mut written = 0;
    loop {
        let Some(inner) = view.upgrade() else {
            return;
        };
        let Some(write_back) = &inner.write_back else {
            return;
        };
        let now = *pace.borrow();
        if now == Pace::Urgent || !inner.is_behind() {
            match inner.write_back_step(write_back).await {
                Ok(0) => {
                    tracing::info!(written, elapsed = ?began.elapsed(), "the overlay is written back");
                    write_back.progress.send_replace(Progress::Done);
                    return;
                }
                Ok(blocks) => written += blocks,
                Err(e) => {
                    if !e.is_fenced() {
                        tracing::error!(error = %e, "the write-back of the overlay stopped; no checkpoint can be sealed");
                    }
                    write_back
                        .progress
                        .send_replace(Progress::Failed(e.to_string()));
                    return;
                }
            }
        }
        let pause = now.pause(Instant::now(), write_back.blocks.len());
        drop(inner);
        if pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            let _ = tokio::time::timeout(pause, pace.wait_for(|p| *p == Pace::Urgent)).await;
        }
    }
}

impl Inner {
    /// Returns when nothing inherited is left outside the storage's hands.
    pub(super) async fn carried_over(&self) -> Result<()> {
        let Some(write_back) = &self.write_back else {
            return Ok(());
        };
        write_back.hurry();
        let mut progress = write_back.progress.subscribe();
        let end = progress.wait_for(|p| *p != Progress::Running).await;
        match end.as_deref() {
            Ok(Progress::Failed(why)) => {
                self.check_authority()?;
                Err(Error::Damaged(format!(
                    "the overlay could not be written back: {why}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// True if the storage has not yet taken what it was given: not all of it on as many replicas as a sync
    /// needs.
    fn is_behind(&self) -> bool {
        let replicas = self.storage.replicas().into_iter();
        let mut pending: Vec<u64> = replicas.map(|replica| replica.pending_bytes).collect();
        pending.sort_unstable();
        let needed = usize::from(self.storage.sync_replicas());
        let behind = pending.get(needed.saturating_sub(1));
        behind.is_some_and(|bytes| *bytes > BACKLOG_BLOCKS * self.block_size)
    }

    /// Writes some blocks back, and says how many; none when none was left.
    async fn write_back_step(&self, write_back: &WriteBack) -> Result<usize> {
        let bytes = STEP_BLOCKS * self.block_size as usize;
        self.storage.write_room(bytes).await?;
        let some = write_back.blocks.some(STEP_BLOCKS)?;
        let blocks = some.len();
        // Most are blocks of data; what is not is packed again.
        let open = self.core.lock().generation(FileClass::Data);
        let prepare = |(key, data)| (key, self.storage.prepare(key, open, data));
        let some: Vec<_> = some.into_iter().map(prepare).collect();
        let mut core = self.core.lock();
        for (key, block) in some {
            // Written anew or cut off meanwhile.
            if !write_back.blocks.contains(key) {
                continue;
            }
            let inode = core.namespace.get(key.file);
            let class = inode
                .filter(|inode| key.block.0 * self.block_size < inode.size)
                .map(|inode| inode.class);
            let Some(class) = class else {
                write_back.blocks.discard(key);
                continue;
            };
            let generation = core.generation(class);
            self.put_block(&mut core, key, generation, class, block)?;
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_is_spread_evenly_and_hurried_when_it_is_late_or_waited_for() {
        let now = Instant::now();
        let in_ten = Pace::Until(now + Duration::from_secs(10));
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(in_ten.pause(now, 8_000), Duration::from_millis(10));
        // What the database wrote anew meanwhile is time won.
        assert_eq!(in_ten.pause(later(5), 1_000), Duration::from_millis(40));
        assert_eq!(in_ten.pause(later(5), 1), PAUSE_MAX);
        assert_eq!(in_ten.pause(later(11), 8_000), PAUSE_MIN);
        assert_eq!(Pace::Urgent.pause(now, 8_000), Duration::ZERO);
    }
}
