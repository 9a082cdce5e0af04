//! Moving a running standby's base forward, in two halves: what the storage must be asked is asked
//! beforehand ([`StandbyView::plan_move`]), while redo goes on; the move itself
//! ([`StandbyView::move_base`]) asks nobody and replaces the state at once.
//!
//! Invariant: a plan is made only when the log is shown at least up to the new base's end (W). What
//! redo changes from then on has a stamp above the new redo pointer and stays anyway, so a plan covers
//! all that a move can drop, however late that comes; of a block that it does not know, the overlay's
//! version stays, which is always right.
//!
//! What a move drops it keeps in the cache, as long as there is room, in place of the base's own bytes. The
//! two differ at most in what no log tells of (hint bits, free space): redo has applied the log beyond
//! all that the base reflects, and what it changed of a block after its stamp is in PostgreSQL's buffers until it
//! is written out, with a newer one. So what is kept must be what PostgreSQL wrote last: a later move takes it away,
//! whether or not it keeps a later copy in its place. This spares a standby far from the storage from reading its
//! working set again after every move.

use std::collections::HashSet;
use std::sync::Arc;

use dax::ids::BlockKey;
use tokio::task::JoinSet;

use super::gate::Entry;
use super::hidden::{Hidden, hidden_names};
use super::known::Expected;
use super::overlay::Content;
use super::rebase::Move;
#[cfg(test)]
use super::simulation::flaw::Flaw;
use super::state::State;
use super::view::StandbyView;
use crate::error::{Error, Result};
use crate::lists::Lists;
use crate::seal::{Base, Seal};

/// Blocks asked for at once.
const WINDOW: usize = 64;

/// A newer base, and what a move to it must know of the storage.
pub struct MovePlan {
    pub(super) base: Arc<Base>,
    hidden: Hidden,
    /// Blocks of the overlay that the base covers and has.
    pub(super) present: HashSet<BlockKey>,
    /// What the active wrote on the way to the base.
    lists: Lists,
    /// What the lists did not tell, and the storage was asked for.
    found: Vec<(BlockKey, Expected)>,
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

    /// Finds out what a move to `base` must know: which blocks the active wrote on the way there, and
    /// which blocks of the overlay it has. The lists of the blocks answer the second, too, mostly (N2);
    /// the storage is asked for what they do not tell. Changes nothing, and may take a while.
    ///
    /// # Errors
    /// `Invalid` if the base does not go on from this one, or if the log was not shown up to its end.
    pub async fn plan_move(&self, base: Base) -> Result<MovePlan> {
        let base = Arc::new(base);
        let (keys, layout) = {
            let state = self.state();
            check(&state, &base)?;
            (state.blocks_covered_by(&base), Arc::clone(&state.layout))
        };
        let hidden = hidden_names(&*layout, &base.namespace);
        let (seal, after) = (&base.seal, self.fetcher.known.as_of());
        let lists = Lists::load(self.storage(), &seal.lists, seal.generation, after).await?;
        let keys: Vec<BlockKey> = keys.into_iter().map(|(key, _)| key).collect();
        let covered = keys.len();
        let mut plan = MovePlan {
            base,
            hidden,
            present: HashSet::new(),
            lists,
            found: Vec::new(),
        };
        let mut unknown = Vec::new();
        for key in keys {
            match self.fetcher.known.expect_after(&plan.lists, key) {
                Some(known) if known.is_shown(&plan.base, key) => drop(plan.present.insert(key)),
                Some(_) => {}
                None => unknown.push(key),
            }
        }
        self.look_ahead(&mut plan, unknown).await?;
        // The journal and the lists were there, or this is not reached.
        self.fetcher.vouch(false).await?;
        tracing::debug!(
            generation = %plan.base.seal.generation,
            covered,
            lists = plan.lists.lists.len(),
            complete = plan.lists.complete,
            reads = plan.found.len(),
            present = plan.present.len(),
            "looked at what the next base has"
        );
        Ok(plan)
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
        let MovePlan {
            base,
            hidden,
            present,
            lists,
            found,
        } = plan;
        let _one = self.moving.lock();
        self.bases.lock().push(Arc::downgrade(&base));
        let opens = self.opens.lock();
        let to = Move {
            base: Arc::clone(&base),
            hidden,
            has_version: &|key| present.contains(&key),
            is_open: &|ino| opens.contains_key(&ino),
        };
        let (items, covered, old) = self.change(|state| {
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
            // An earlier move may have kept what is older than the block that goes now.
            let covered = state.blocks_covered_by(&base);
            if uncaches(state) {
                let keys = covered.iter().map(|(key, _)| *key);
                self.fetcher.known.uncache(keys);
            }
            Ok((items, covered, std::mem::replace(state, next)))
        })?;
        drop(opens);
        // Reads of the new base that come first know less, which is right.
        let generation = base.seal.generation;
        self.fetcher.known.follow(generation, &lists, found);
        for (key, content) in covered {
            if present.contains(&key)
                && let Content::Stored(block) = content
                && let Some(data) = block.in_memory()
            {
                self.fetcher.known.carry(&base, key, data);
            }
        }
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

    /// Asks the storage what the base has of some blocks.
    async fn look_ahead(&self, plan: &mut MovePlan, keys: Vec<BlockKey>) -> Result<()> {
        let mut reads = JoinSet::new();
        let mut keys = keys.into_iter();
        loop {
            while reads.len() < WINDOW
                && let Some(key) = keys.next()
            {
                let (fetcher, base) = (self.fetcher.clone(), Arc::clone(&plan.base));
                reads.spawn(async move { (key, fetcher.look_ahead(&base, key).await) });
            }
            let Some(done) = reads.join_next().await else {
                return Ok(());
            };
            let (key, found) = done.map_err(|e| Error::Local(std::io::Error::other(e)))?;
            let found = found?;
            if found.is_shown(&plan.base, key) {
                plan.present.insert(key);
            }
            plan.found.push((key, found));
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

/// True if a move takes what an earlier one kept out of the cache: always, outside of tests.
fn uncaches(_state: &State) -> bool {
    #[cfg(test)]
    return _state.distortion.flaw != Some(Flaw::KeptFromEarlier);
    #[cfg(not(test))]
    true
}

/// True if a move from the state to the base is possible.
fn check(state: &State, base: &Base) -> Result<()> {
    if !base.seal.continues(&state.base.seal) {
        return Err(Error::Invalid("the new base does not go on from this one"));
    }
    if state.replay_limit < base.seal.end {
        return Err(Error::Invalid(
            "the new base is ahead of the log that is shown",
        ));
    }
    Ok(())
}
