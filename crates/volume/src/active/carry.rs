//! Carrying the standby's overlay over: its blocks become writes of the new epoch, a few at a
//! time, behind the database's own.
//!
//! A block is readable all the while: readers look into the overlay under the gate, which is
//! closed while blocks are between the overlay and the storage.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::{InheritedBlocks, Inner};
use crate::error::{Error, Result};

/// Blocks carried over in one step.
const STEP_BLOCKS: usize = 32;
/// How long the database's promotion has the storage for itself, if nobody says that it is done.
const HEAD_START: Duration = Duration::from_secs(10);
/// Blocks that may wait for the storage before a step, while nobody waits for the end: what the database
/// writes itself must not wait behind what is carried over.
const BACKLOG_BLOCKS: u64 = 32;
/// Between two steps, while nobody waits for the end.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Carry {
    pub blocks: Arc<dyn InheritedBlocks>,
    /// Readers share it; a step holds it alone.
    pub gate: RwLock<()>,
    progress: watch::Sender<Progress>,
    pace: watch::Sender<Pace>,
}

/// How urgent it is; only goes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    /// The database is being promoted.
    Waiting,
    /// Behind the database's own writes.
    Background,
    /// A seal waits for the end.
    Urgent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    Running,
    Done,
    Failed(String),
}

impl Carry {
    pub fn new(blocks: Arc<dyn InheritedBlocks>) -> Carry {
        Carry {
            blocks,
            gate: RwLock::new(()),
            progress: watch::Sender::new(Progress::Running),
            pace: watch::Sender::new(Pace::Waiting),
        }
    }

    /// Begins, if it has not begun.
    pub fn begin(&self) {
        self.quicken(Pace::Background);
    }

    fn quicken(&self, pace: Pace) {
        self.pace.send_if_modified(|now| {
            let slower = *now < pace;
            *now = pace.max(*now);
            slower
        });
    }
}

/// Runs until nothing is left, the view is gone, or the storage is lost for good.
pub(super) async fn carry_over(view: Weak<Inner>) {
    let pace = view
        .upgrade()
        .and_then(|inner| Some(inner.carry.as_ref()?.pace.subscribe()));
    let Some(mut pace) = pace else {
        return;
    };
    // A timeout, and a view that is gone, end the wait as well.
    let _ = tokio::time::timeout(HEAD_START, pace.wait_for(|p| *p > Pace::Waiting)).await;
    loop {
        let Some(inner) = view.upgrade() else {
            return;
        };
        let Some(carry) = &inner.carry else {
            return;
        };
        if *pace.borrow() < Pace::Urgent && inner.is_behind() {
            drop(inner);
            let _ = tokio::time::timeout(PAUSE, pace.wait_for(|p| *p == Pace::Urgent)).await;
            continue;
        }
        match inner.carry_step(carry).await {
            Ok(true) => {
                carry.progress.send_replace(Progress::Done);
                return;
            }
            Ok(false) if *pace.borrow() == Pace::Urgent => tokio::task::yield_now().await,
            Ok(false) => {
                drop(inner);
                let _ = tokio::time::timeout(PAUSE, pace.wait_for(|p| *p == Pace::Urgent)).await;
            }
            Err(e) => {
                if !e.is_fenced() {
                    tracing::error!(error = %e, "carrying the overlay over stopped; no checkpoint can be sealed");
                }
                carry.progress.send_replace(Progress::Failed(e.to_string()));
                return;
            }
        }
    }
}

impl Inner {
    /// Returns when nothing inherited is left outside the storage's hands.
    pub(super) async fn carried_over(&self) -> Result<()> {
        let Some(carry) = &self.carry else {
            return Ok(());
        };
        carry.quicken(Pace::Urgent);
        let mut progress = carry.progress.subscribe();
        let end = progress.wait_for(|p| *p != Progress::Running).await;
        match end.as_deref() {
            Ok(Progress::Failed(why)) => {
                self.check_authority()?;
                Err(Error::Damaged(format!(
                    "the overlay could not be carried over: {why}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether the storage has not yet taken what it was given: not all of it on as many replicas as a sync
    /// needs.
    fn is_behind(&self) -> bool {
        let replicas = self.storage.replicas().into_iter();
        let mut pending: Vec<u64> = replicas.map(|replica| replica.pending_bytes).collect();
        pending.sort_unstable();
        let needed = usize::from(self.storage.settings().sync_replicas);
        let behind = pending.get(needed.saturating_sub(1));
        behind.is_some_and(|bytes| *bytes > BACKLOG_BLOCKS * self.block_size)
    }

    /// Carries some blocks over; true when none was left.
    async fn carry_step(&self, carry: &Carry) -> Result<bool> {
        let bytes = STEP_BLOCKS * self.block_size as usize;
        self.storage.write_room(bytes).await?;
        let _closed = carry.gate.write();
        self.core.lock().written_meanwhile = Some(HashSet::new());
        let taken = carry.blocks.take_some(STEP_BLOCKS);
        let mut core = self.core.lock();
        let written = core.written_meanwhile.take().unwrap_or_default();
        let taken = taken?;
        let last = taken.is_empty();
        for (key, data) in taken {
            let Some(inode) = core.namespace.get(key.file) else {
                continue;
            };
            if written.contains(&key) || key.block.0 * self.block_size >= inode.size {
                continue;
            }
            let class = inode.class;
            let generation = core.generation(class);
            self.put_block(&mut core, key, generation, class, data)?;
        }
        Ok(last)
    }
}
