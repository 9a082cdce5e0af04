//! Carrying the standby's overlay over: its blocks become writes of the new epoch, a few at a
//! time, behind the database's own.
//!
//! A block is readable all the while: readers look into the overlay under the gate, which is
//! closed while blocks are between the overlay and the storage.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use tokio::sync::watch;

use super::{InheritedBlocks, Inner};
use crate::cache::Cached;
use crate::error::{Error, Result};

/// Blocks carried over in one step.
const STEP_BLOCKS: usize = 32;

pub(super) struct Carry {
    pub blocks: Arc<dyn InheritedBlocks>,
    /// Readers share it; a step holds it alone.
    pub gate: RwLock<()>,
    progress: watch::Sender<Progress>,
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
        }
    }
}

/// Runs until nothing is left, the view is gone, or the storage is lost for good.
pub(super) async fn carry_over(view: Weak<Inner>) {
    loop {
        let Some(inner) = view.upgrade() else {
            return;
        };
        let Some(carry) = &inner.carry else {
            return;
        };
        match inner.carry_step(carry).await {
            Ok(true) => {
                carry.progress.send_replace(Progress::Done);
                return;
            }
            Ok(false) => tokio::task::yield_now().await,
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
            let generation = core.generation(inode.class);
            let version = self.storage.write(key, generation, data.clone())?;
            self.cache
                .write(key, super::read::LATEST, Cached { version, data });
        }
        Ok(last)
    }
}
