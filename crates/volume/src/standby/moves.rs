//! Moving a running standby's base forward: asks the storage what the pure [`super::rebase`] must
//! know, then replaces the state at once.

use std::collections::HashSet;
use std::sync::Arc;

use dax::ids::BlockKey;
use tokio::task::JoinSet;

use super::gate::Entry;
use super::rebase::Move;
use super::view::StandbyView;
use crate::error::{Error, Result};
use crate::seal::{Base, Seal};

/// Blocks asked for at once.
const WINDOW: usize = 64;

impl StandbyView {
    /// Moves to a newer base (rule 2). The caller has redo at rest and applied at least to
    /// `base.seal.end`; it claims both bases until [`bases_in_use`](Self::bases_in_use) has the new
    /// one only. A base that is not newer is ignored, and any base after the switch.
    ///
    /// # Errors
    /// `Invalid` if the log was not shown up to the base's end: then redo cannot have applied it.
    pub async fn move_base(&self, base: Base) -> Result<()> {
        let Entry::Here(_pass) = self.gate.enter().await else {
            return Ok(());
        };
        let state = self.state();
        if base.seal.generation <= state.base.seal.generation {
            return Ok(());
        }
        if state.horizon < base.seal.end {
            return Err(Error::Invalid(
                "the new base is ahead of the log that is shown",
            ));
        }
        let base = Arc::new(base);
        let present = self.present(&base, state.blocks_covered_by(&base)).await?;
        drop(state);
        self.bases.lock().push(Arc::downgrade(&base));
        let opens = self.opens.lock();
        let to = Move {
            base: Arc::clone(&base),
            has_version: &|key| present.contains(&key),
            is_open: &|ino| opens.contains_key(&ino),
        };
        let items = self.change(|state| {
            let before = state.overlay.items();
            if state.base.seal.generation < base.seal.generation {
                *state = state.rebase(&to);
            }
            Ok((before, state.overlay.items()))
        })?;
        tracing::debug!(
            generation = %base.seal.generation,
            redo = %base.seal.redo,
            items_before = items.0,
            items = items.1,
            "the base moved"
        );
        Ok(())
    }

    /// Which of the blocks the base has.
    async fn present(&self, base: &Arc<Base>, keys: Vec<BlockKey>) -> Result<HashSet<BlockKey>> {
        let mut present = HashSet::new();
        let mut reads = JoinSet::new();
        let mut keys = keys.into_iter();
        loop {
            while reads.len() < WINDOW
                && let Some(key) = keys.next()
            {
                let (fetcher, base) = (self.fetcher.clone(), Arc::clone(base));
                reads.spawn(async move { (key, fetcher.has_version(&base, key).await) });
            }
            let Some(done) = reads.join_next().await else {
                return Ok(present);
            };
            let (key, found) = done.map_err(|e| Error::Local(std::io::Error::other(e)))?;
            if found? {
                present.insert(key);
            }
        }
    }

    /// The seals of every base that is still read: the current one, and earlier ones while reads that
    /// began on them go on or kept files are in them. What the claim must hold.
    pub fn bases_in_use(&self) -> Vec<Seal> {
        let mut bases = self.bases.lock();
        bases.retain(|base| base.strong_count() > 0);
        let alive = bases.iter().filter_map(|base| base.upgrade());
        alive.map(|base| base.seal.clone()).collect()
    }
}
