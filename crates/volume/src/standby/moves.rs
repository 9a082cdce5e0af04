//! Moving a running standby's base forward, in two halves: what the storage must be asked is asked
//! beforehand ([`StandbyView::plan_move`]), while redo goes on; the move itself
//! ([`StandbyView::move_base`]) asks nobody and replaces the state at once.
//!
//! Invariant: a plan is made only when the log is shown at least up to the new base's end (W). What
//! redo changes from then on has a stamp above the new redo pointer and stays anyway, so a plan covers
//! all that a move can drop, however late that comes; of a block that it does not know, the overlay's
//! version stays, which is always right.

use std::collections::HashSet;
use std::sync::Arc;

use dax::ids::BlockKey;
use tokio::task::JoinSet;

use super::gate::Entry;
use super::rebase::Move;
use super::state::State;
use super::view::StandbyView;
use crate::error::{Error, Result};
use crate::seal::{Base, Seal};

/// Blocks asked for at once.
const WINDOW: usize = 64;

/// A newer base, and what a move to it must know of the storage.
pub struct MovePlan {
    base: Arc<Base>,
    /// Blocks of the overlay that the base covers and has.
    present: HashSet<BlockKey>,
}

impl MovePlan {
    /// The seal to move to.
    pub fn seal(&self) -> &Seal {
        &self.base.seal
    }
}

impl StandbyView {
    /// Loads the image of a later seal on the way from the base. The caller claims both.
    ///
    /// # Errors
    /// `Invalid` if the seal does not go on from the base: only a fresh attach leads there. `Damaged`
    /// if the journal between them is not there any more.
    pub async fn load_next(&self, seal: &Seal) -> Result<Base> {
        let from = Arc::clone(&self.state().base);
        from.advance(self.storage(), seal).await
    }

    /// Asks the storage what a move to `base` must know: which blocks of the overlay it has. Changes
    /// nothing, and may take a while.
    ///
    /// # Errors
    /// `Invalid` if the base does not go on from this one, or if the log was not shown up to its end.
    pub async fn plan_move(&self, base: Base) -> Result<MovePlan> {
        let base = Arc::new(base);
        let keys = {
            let state = self.state();
            check(&state, &base)?;
            state.blocks_covered_by(&base)
        };
        let covered = keys.len();
        let (seen, unknown): (Vec<_>, Vec<_>) = keys
            .into_iter()
            .partition(|key| self.fetcher.is_seen(&base, *key));
        let mut present = HashSet::from_iter(seen);
        let reads = unknown.len();
        self.find_present(&base, unknown, &mut present).await?;
        tracing::debug!(
            generation = %base.seal.generation,
            covered,
            reads,
            present = present.len(),
            "looked at what the next base has"
        );
        Ok(MovePlan { base, present })
    }

    /// Moves to a newer base (rule 2), and says whether it did: not after the switch. The caller has
    /// redo at rest and applied at least to the seal's end; it claims both bases until
    /// [`bases_in_use`](Self::bases_in_use) has the new one only.
    ///
    /// Waits for nothing but the locks; takes time with the number of overlay items.
    ///
    /// # Errors
    /// `Invalid` if the base moved elsewhere since the plan was made.
    pub fn move_base(&self, plan: MovePlan) -> Result<bool> {
        let Some(Entry::Here(_pass)) = self.gate.try_enter() else {
            return Ok(false);
        };
        let MovePlan { base, present } = plan;
        self.bases.lock().push(Arc::downgrade(&base));
        let opens = self.opens.lock();
        let to = Move {
            base: Arc::clone(&base),
            has_version: &|key| present.contains(&key),
            is_open: &|ino| opens.contains_key(&ino),
        };
        let (items, old) = self.change(|state| {
            check(state, &base)?;
            let next = state.rebase(&to);
            for (id, kept) in &next.kept {
                let ino = next.ino_of(*id);
                tracing::debug!(
                    file = %id,
                    path = next.path(ino).unwrap_or_default(),
                    open = opens.contains_key(&ino),
                    generation = %kept.seal.generation,
                    "kept as in an older base"
                );
            }
            let items = (state.overlay.items(), next.overlay.items());
            Ok((items, std::mem::replace(state, next)))
        })?;
        drop(opens);
        // What it held is freed when nobody waits for the state.
        drop(old);
        tracing::debug!(
            generation = %base.seal.generation,
            redo = %base.seal.redo,
            items_before = items.0,
            items = items.1,
            "the base moved"
        );
        Ok(true)
    }

    /// Adds those of the blocks that the base has.
    async fn find_present(
        &self,
        base: &Arc<Base>,
        keys: Vec<BlockKey>,
        present: &mut HashSet<BlockKey>,
    ) -> Result<()> {
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
                return Ok(());
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

/// Whether a move from the state to the base is possible.
fn check(state: &State, base: &Base) -> Result<()> {
    if !base.seal.continues(&state.base.seal) {
        return Err(Error::Invalid("the new base does not go on from this one"));
    }
    if state.horizon < base.seal.end {
        return Err(Error::Invalid(
            "the new base is ahead of the log that is shown",
        ));
    }
    Ok(())
}
