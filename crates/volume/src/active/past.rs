//! Keeping images longer than the last two seals, and thinning them out.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use dax::ids::{FileId, Generation};
use dax::storage::Authority;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::kept::{Clock, PastStatus};
use super::{ActiveView, Inner};
use crate::error::Result;
use crate::lists::ListRef;
use crate::namespace::op::Op;
use crate::past::thin::{Thinning, used_bytes};
use crate::past::{
    Index, KEPT_PREFIX, KeptImage, KeptSeal, Pin, PinState, Policy, is_allowed, merge,
};
use crate::seal::{Base, KEPT_SEALS, Seal};
use crate::snapshot;

/// A zone is short of room when less than one part in so many is left of what the volume could take there.
const ROOM_PARTS: u64 = 10;
/// Seals that are removed at a time.
const REMOVED_AT_A_TIME: usize = 32;

impl ActiveView {
    /// Keeps images from now on as a policy says; without one only those that pins name. Before it is called, what an owner
    /// before kept stays.
    pub fn keep_past(&self, policy: Option<Policy>) {
        *self.inner.past.policy.lock() = Some(policy);
    }

    /// Goes by another clock.
    pub fn use_clock(&self, clock: Clock) {
        *self.inner.past.clock.lock() = clock;
    }

    #[cfg(test)]
    pub(crate) fn ignore_pins(&self, ignores: bool) {
        let flag = &self.inner.past.ignores_pins;
        flag.store(ignores, Ordering::Relaxed);
    }

    /// The images that are kept besides those of the last seals.
    pub async fn past(&self) -> PastStatus {
        let index = self.inner.past.index.lock().await;
        let images = index.as_ref().map_or_else(Vec::new, |i| i.images.clone());
        PastStatus {
            used_bytes: used_bytes(&images, self.inner.block_size),
            images,
        }
    }

    /// Gives up the making of a pin whose maker has been silent for long, unless it has said something since `seen` was read.
    ///
    /// # Errors
    /// Those of the zones.
    pub async fn give_up_pin(&self, seen: &Pin) -> Result<()> {
        let inner = &self.inner;
        let mut guard = inner.past.index.lock().await;
        let Some(index) = inner.loaded(&mut guard).await? else {
            return Ok(());
        };
        // Its name is dropped first: a maker that writes later looks there, and one that has written is found below.
        let mut next = index.clone();
        next.drop_pin(&seen.name);
        next.put(&inner.storage).await?;
        let before = std::mem::replace(index, next);
        let now = Pin::load(&inner.storage, &seen.name).await?;
        if now.is_some_and(|now| now.state == PinState::Kept || now.number != seen.number) {
            before.put(&inner.storage).await?;
            *index = before;
            return Ok(());
        }
        Pin::give_up(&inner.storage, &seen.name).await
    }
}

impl Inner {
    /// The index as this epoch has it, read once; `None` if the volume may not have a past.
    async fn loaded<'a>(&self, index: &'a mut Option<Index>) -> Result<Option<&'a mut Index>> {
        if index.is_none() && is_allowed(&self.storage).await? {
            *index = Some(Index::promote(&self.storage).await?);
        }
        Ok(index.as_mut())
    }

    /// The index and the pins; nothing if the volume may not have a past.
    pub(super) async fn everything_past(&self) -> Result<(Index, Vec<Pin>)> {
        let mut guard = self.past.index.lock().await;
        match self.loaded(&mut guard).await? {
            Some(index) => Ok((index.clone(), Pin::all(&self.storage).await?)),
            None => Ok((Index::default(), Vec::new())),
        }
    }

    /// Keeps the seals that leave with the next one, as far as the policy wants them. One that cannot be kept is lost to the
    /// past, and the next checkpoint does not wait for it.
    pub(super) async fn keep_leaving(&self, seals: &[Seal]) -> Result<()> {
        let mut guard = self.past.index.lock().await;
        let index = match self.loaded(&mut guard).await {
            Ok(Some(index)) => index,
            Ok(None) => return Ok(()),
            Err(error) if error.is_fenced() => return Err(error),
            // Then nothing is given back either.
            Err(error) => {
                tracing::warn!(%error, "the index of kept images cannot be read");
                return Ok(());
            }
        };
        let policy = self.past.policy().flatten();
        let leaving = (seals.len() + 1).saturating_sub(KEPT_SEALS);
        for (at, seal) in seals.iter().enumerate().take(leaving) {
            let Some(cut_at) = seal.at else { continue };
            let thinning = self.thinning(&seals[at + 1..], BTreeSet::new(), policy.as_ref(), false);
            if !thinning.wanted(&[(cut_at, seal.generation)]).is_empty() {
                self.keep_or_warn(index, seal, false).await?;
            }
        }
        Ok(())
    }

    /// Keeps a seal; only what ends this view is an error.
    async fn keep_or_warn(&self, index: &mut Index, seal: &Seal, closed: bool) -> Result<()> {
        match self.keep_seal(index, seal, closed).await {
            Err(error) if !error.is_fenced() => {
                tracing::warn!(generation = %seal.generation, %error, "an image could not be kept");
                Ok(())
            }
            other => other,
        }
    }

    async fn keep_seal(&self, index: &mut Index, seal: &Seal, closed: bool) -> Result<()> {
        if let Some(kept) = index.get(seal.generation) {
            // A seal that was tried before, or was put and pinned while the reclaimer went by the seals before it.
            if kept.closed && !closed {
                let mut next = index.clone();
                let open = KeptImage {
                    closed,
                    ..kept.clone()
                };
                next.add(open);
                next.put(&self.storage).await?;
                *index = next;
            }
            return Ok(());
        }
        let base = Base::load(&self.storage, seal).await?;
        let allocate = || self.core.lock().allocate(self.epoch);
        let file = allocate();
        let snapshot = snapshot::store(&self.storage, file, &base.namespace, base.place).await?;
        let before = index.images.iter().rev();
        let mut before = before.filter(|image| image.generation < seal.generation);
        let lists = match before.next() {
            Some(image) => lists_since(image.generation, &seal.lists),
            None => &[],
        };
        let (lists, blocks) = merge(&self.storage, lists, allocate).await?;
        let image = KeptImage {
            generation: seal.generation,
            lineage: seal.lineage.clone(),
            journal: seal.journal,
            at: seal.at.unwrap_or_default(),
            redo: seal.redo,
            end: seal.end,
            newest_file: seal.newest_needed(),
            snapshot: snapshot.file,
            snapshot_bytes: snapshot.bytes,
            lists,
            blocks,
            closed,
        };
        let kept = KeptSeal::new(Seal {
            snapshot,
            lists: Vec::new(),
            ..seal.clone()
        });
        kept.put(&self.storage).await?;
        let mut next = index.clone();
        next.add(image);
        next.put(&self.storage).await?;
        *index = next;
        Ok(())
    }

    fn thinning<'a>(
        &self,
        seals: &[Seal],
        pinned: BTreeSet<Generation>,
        policy: Option<&'a Policy>,
        short_of_room: bool,
    ) -> Thinning<'a> {
        Thinning {
            pinned,
            sealed: seals.iter().filter_map(|seal| seal.at).collect(),
            policy,
            now: self.past.now(),
            block_bytes: self.block_size,
            short_of_room,
        }
    }

    /// Names no more what neither the policy nor a pin wants. Returns what the index names then, and the pins, which were read
    /// after `seals` and after the index was put; nothing if the volume may not have a past.
    pub(super) async fn thin(&self, seals: &[Seal]) -> Result<(Index, Vec<Pin>)> {
        let mut guard = self.past.index.lock().await;
        let Some(index) = self.loaded(&mut guard).await? else {
            return Ok(Default::default());
        };
        self.sweep(index).await?;
        let pins = self.pins().await?;
        if index.images.is_empty() && pins.is_empty() {
            return Ok((index.clone(), pins));
        }
        let space = self.storage.space().await?;
        let room = space.used_bytes.saturating_add(space.free_bytes);
        let short = space.free_bytes < room / ROOM_PARTS;
        // What gives room back must need none: a full zone takes no blocks.
        if !short {
            self.keep_pinned(index, seals, &pins).await?;
        }
        match self.thin_out(index, seals, &pins, short).await? {
            false => Ok((index.clone(), pins)),
            true => Ok((index.clone(), self.pins().await?)),
        }
    }

    /// Removes, once in an epoch, seals that the index does not name: an owner before crashed between the two.
    async fn sweep(&self, index: &Index) -> Result<()> {
        if self.past.swept.load(Ordering::Relaxed) {
            return Ok(());
        }
        let named = index.images.iter();
        let named: BTreeSet<String> = named
            .map(|image| KeptSeal::record_name(image.generation))
            .collect();
        for (name, _) in self.storage.list_records(KEPT_PREFIX).await? {
            if !named.contains(&name) {
                let removed = self.storage.remove_record(&name, Authority::Owner);
                removed.await?;
            }
        }
        self.past.swept.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn pins(&self) -> Result<Vec<Pin>> {
        #[cfg(test)]
        if self.past.ignores_pins.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        Pin::all(&self.storage).await
    }

    /// Gives what pins name, and has left the seals, a snapshot of its own: that of the seal would hold the journal.
    async fn keep_pinned(&self, index: &mut Index, seals: &[Seal], pins: &[Pin]) -> Result<()> {
        for pin in pins {
            let generation = pin.generation();
            let sealed = seals.iter().any(|seal| seal.generation == generation);
            if !sealed && index.get(generation).is_none() {
                self.keep_or_warn(index, &pin.seal(), true).await?;
            }
        }
        Ok(())
    }

    /// Returns true if the index names fewer images than before.
    async fn thin_out(
        &self,
        index: &mut Index,
        seals: &[Seal],
        pins: &[Pin],
        short: bool,
    ) -> Result<bool> {
        let policy = self.past.policy();
        let mut pinned: BTreeSet<Generation> = pins.iter().map(Pin::generation).collect();
        if policy.is_none() {
            let open = index.images.iter().filter(|image| !image.closed);
            pinned.extend(open.map(|image| image.generation));
        }
        let policy = policy.flatten();
        let mut gone = self
            .thinning(seals, pinned.clone(), policy.as_ref(), short)
            .of(index);
        let mut named = index.clone();
        let stays = |image: &KeptImage| !gone.contains(&image.generation);
        named.images.retain(stays);
        let mut over = BTreeSet::new();
        while named.is_too_long() {
            let mut images = named.images.iter();
            let Some(oldest) = images.position(|image| !pinned.contains(&image.generation)) else {
                break;
            };
            over.insert(named.images.remove(oldest).generation);
        }
        if !over.is_empty() && !self.past.was_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                images = named.images.len(),
                "more images are to be kept than can be: the oldest are given back"
            );
        }
        gone.extend(over);
        if gone.is_empty() {
            return Ok(false);
        }
        if short {
            tracing::warn!(
                images = gone.len(),
                "a zone is short of room: images of the past are given back"
            );
        }
        let next = self.without(index, &gone, !short).await?;
        next.put(&self.storage).await?;
        let before = std::mem::replace(index, next);
        let needed: BTreeSet<FileId> = seals
            .iter()
            .flat_map(Seal::files)
            .chain(index.files())
            .collect();
        let mut ids: Vec<FileId> = before.files().filter(|id| !needed.contains(id)).collect();
        ids.dedup();
        if !ids.is_empty() {
            self.commit(&mut self.core.lock(), Op::Bury { ids }, None)?;
        }
        // All of them may go, and the next checkpoint waits for the index.
        let removed = stream::iter(gone).map(|gone| KeptSeal::remove(&self.storage, gone));
        removed
            .buffer_unordered(REMOVED_AT_A_TIME)
            .try_collect::<()>()
            .await?;
        Ok(true)
    }

    /// The index without some images; the lists of each go to the next that stays, or are not known any more if they may not
    /// be `merged`.
    async fn without(
        &self,
        index: &Index,
        gone: &BTreeSet<Generation>,
        merged: bool,
    ) -> Result<Index> {
        let mut next = index.clone();
        next.images.clear();
        // Lists of those that go since the last that stays; `None` if one is not known.
        let mut passed: Option<Vec<ListRef>> = Some(Vec::new());
        for image in &index.images {
            let goes_on = |lists: &Vec<ListRef>| {
                let after = image.lists.first().map(|list| list.after);
                after.is_some() && lists.last().is_none_or(|last| Some(last.to) == after)
            };
            if gone.contains(&image.generation) {
                passed = passed.filter(goes_on);
                passed
                    .iter_mut()
                    .for_each(|lists| lists.extend(image.lists.iter().cloned()));
                continue;
            }
            let mut image = image.clone();
            let before = passed.replace(Vec::new());
            if before.as_ref().is_none_or(|lists| !lists.is_empty()) || next.images.is_empty() {
                let mut lists = before.filter(|_| !next.images.is_empty()).filter(goes_on);
                lists
                    .iter_mut()
                    .for_each(|lists| lists.extend(image.lists.iter().cloned()));
                let allocate = || self.core.lock().allocate(self.epoch);
                let lists = lists.filter(|_| merged).unwrap_or_default();
                (image.lists, image.blocks) = merge(&self.storage, &lists, allocate).await?;
            }
            next.images.push(image);
        }
        Ok(next)
    }
}

/// The lists that lead from the image of a generation to a seal, if they are all there.
fn lists_since(after: Generation, lists: &[ListRef]) -> &[ListRef] {
    match lists.iter().position(|list| list.after == after) {
        Some(first) => &lists[first..],
        None => &[],
    }
}
