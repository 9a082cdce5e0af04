//! What must hold after every step, and in the end.

use dax::ids::{BlockKey, Generation, Version};

use super::owner::{REPLICAS, SYNC};
use super::schedule::{Checked, DATA, Place, Schedule};
use crate::engine::Found;
use crate::keys::{Slot, VolumeId};

/// What is in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Version(Version),
    Damaged,
}

impl Schedule {
    fn copies(&self, r: usize) -> impl Fn(Place) -> Option<Held> + use<> {
        let stored = self.replicas[r].engine.stored();
        move |(key, generation)| {
            let slot = Slot {
                volume: VolumeId(1),
                key,
                generation,
            };
            stored.get(&slot).map(|found| match found {
                Found::Block(block) => Held::Version(block.version),
                Found::Corrupt(_) => Held::Damaged,
            })
        }
    }

    /// True if somebody still needs what was synced there.
    fn is_needed(&self, (key, generation): Place) -> bool {
        if self.removed.contains(&key.file) {
            return false;
        }
        if key.file != DATA {
            return true;
        }
        let shown_by = |image: &dax::storage::Lineage| {
            let places = self
                .synced
                .keys()
                .filter(|(k, g)| *k == key && image.contains(*g));
            places.map(|(_, g)| *g).max() == Some(generation)
        };
        let rooted = || self.children.iter().filter(|child| self.needs_root(child));
        let roots = || rooted().map(|child| &child.root);
        let images = || self.seals.iter().chain(&self.pins).chain(roots());
        let end = images().map(|image| image.end()).max();
        let above = end.is_none_or(|end| generation > end) && self.line.contains(generation);
        above || images().any(shown_by)
    }

    /// True if a copy there can be mended: others have it, or somebody will send it.
    fn is_known(&self, place: Place) -> bool {
        let newest = self.owners.last();
        let mut writes = newest.iter().flat_map(|owner| &owner.writes);
        self.is_needed(place)
            && (self.synced.contains_key(&place) || writes.any(|w| (w.key, w.generation) == place))
    }

    /// True if a replica lacks something that a read may need.
    pub fn is_hurt(&self, r: usize) -> bool {
        self.lost[r]
            || self.lacks_child(r)
            || self.damaged[r].iter().any(|place| self.is_needed(*place))
    }

    /// True if it lacks something that it will be sent.
    fn is_owed_any(&self, r: usize) -> bool {
        self.lost[r] || self.damaged[r].iter().any(|place| self.is_known(*place))
    }

    /// The version that a replica should have, at least.
    pub fn owed(&self, r: usize, place: Place) -> Version {
        let acked = self.acked[r].get(&place).copied().unwrap_or_default();
        let synced = self.synced.get(&place).copied().unwrap_or_default();
        acked.max(synced)
    }

    /// A damaged copy that is sound again, with all that was acknowledged, is damaged no more; one that was pruned
    /// neither.
    pub fn forget_damage(&mut self) {
        for r in 0..REPLICAS {
            let copies = self.copies(r);
            let mut damaged = std::mem::take(&mut self.damaged[r]);
            damaged.retain(|place| match copies(*place) {
                Some(Held::Version(version)) => version < self.owed(r, *place),
                Some(Held::Damaged) => true,
                None => self.is_known(*place),
            });
            self.damaged[r] = damaged;
        }
    }

    /// After a step.
    pub fn check(&self) -> Checked {
        if let Some(misread) = &self.misread {
            return Err(misread.clone());
        }
        for r in 0..REPLICAS {
            self.check_acked(r)?;
        }
        self.check_synced()?;
        self.check_fence()
    }

    /// What a replica acknowledged is there, or something newer (R3, R4).
    fn check_acked(&self, r: usize) -> Checked {
        let copies = self.copies(r);
        for (place, acked) in &self.acked[r] {
            if !self.is_needed(*place) || self.damaged[r].contains(place) {
                continue;
            }
            // What a later generation or another image made superfluous may be gone.
            let kept = place.1 == Generation::SINGLE || self.synced.get(place) == Some(acked);
            let has = copies(*place);
            let right = match has {
                Some(Held::Version(version)) => version >= *acked,
                Some(Held::Damaged) => false,
                None => !kept,
            };
            if !right {
                return Err(format!(
                    "replica {r} has acknowledged {acked} of {} in {}, and has {has:?}",
                    place.0, place.1
                ));
            }
        }
        Ok(())
    }

    /// What was synced is on k replicas, less those that have lost it.
    fn check_synced(&self) -> Checked {
        let copies: Vec<_> = (0..REPLICAS).map(|r| self.copies(r)).collect();
        let counts = |r: usize| !self.lost[r];
        let lost = (0..REPLICAS).filter(|r| !counts(*r)).count();
        for (place, version) in &self.synced {
            if !self.is_needed(*place) {
                continue;
            }
            let has = |r: &usize| match copies[*r](*place) {
                Some(Held::Version(found)) if found >= *version => true,
                Some(Held::Damaged) => true,
                _ => self.damaged[*r].contains(place),
            };
            let holders = (0..REPLICAS).filter(|r| counts(*r)).filter(has).count();
            if holders + lost < SYNC {
                return Err(format!(
                    "{version} of {} in {} was synced, and is on {holders} replicas, with {lost} lost",
                    place.0, place.1
                ));
            }
        }
        Ok(())
    }

    /// Nothing that a deposed owner began after that was synced.
    fn check_fence(&self) -> Checked {
        for owner in &self.owners {
            if let Some(write) = owner.writes.iter().find(|w| w.overtaken && w.synced) {
                return Err(format!(
                    "{} was synced after its owner was deposed",
                    write.version
                ));
            }
        }
        Ok(())
    }

    /// True if the owner waits for nothing.
    pub fn is_settled(&self, o: usize) -> bool {
        let owner = &self.owners[o];
        let removed = |key: &BlockKey| self.removed.contains(&key.file);
        let mut writes = owner.writes.iter().filter(|w| !removed(&w.key));
        writes.all(|w| w.synced && w.acked.iter().all(|acked| *acked))
            && owner.requests_left.iter().all(Vec::is_empty)
            && (0..REPLICAS).all(|r| !self.is_owed_any(r))
    }

    /// True if a replica has all that was synced.
    pub fn has_all(&self, r: usize) -> bool {
        let copies = self.copies(r);
        let mut needed = self
            .synced
            .iter()
            .filter(|(place, _)| self.is_needed(**place));
        needed.all(|(place, version)| match copies(*place) {
            Some(Held::Version(found)) => found >= *version,
            _ => false,
        })
    }

    /// In the end all have the same, nothing of what was removed by the last owner, and count right.
    pub fn check_equal(&mut self) -> Checked {
        // What came after the last retention is looked at with the next. What pins alone have kept goes with it.
        self.pins.clear();
        let newest = self.owners.len() - 1;
        if !self.owners[newest].images.is_empty() {
            self.retain(newest);
        }
        for r in 0..REPLICAS {
            // Twice: what the first look puts aside, the second drops.
            for _ in 0..3 {
                self.replicas[r].tidy();
                self.commit(r);
            }
            let stored = self.replicas[r].engine.stored();
            let counted = self.replicas[r].slots();
            if counted != stored.len() as u64 {
                return Err(format!(
                    "replica {r} counts {counted} slots and has {}",
                    stored.len()
                ));
            }
        }
        let copies: Vec<_> = (0..REPLICAS).map(|r| self.copies(r)).collect();
        for place in self.synced.keys().filter(|place| self.is_needed(**place)) {
            let found: Vec<_> = copies.iter().map(|copies| copies(*place)).collect();
            if found.iter().any(|copy| *copy != found[0]) {
                return Err(format!("{} in {}: {found:?}", place.0, place.1));
            }
        }
        self.check_removed()?;
        self.check_pruned()
    }

    /// No replica has a version that it may give back.
    fn check_pruned(&self) -> Checked {
        for (r, replica) in self.replicas.iter().enumerate() {
            let Some(retention) = replica.retention() else {
                continue;
            };
            let stored = replica.engine.stored();
            let slots: Vec<&Slot> = stored.keys().filter(|slot| slot.key.file == DATA).collect();
            for of_block in slots.chunk_by(|a, b| a.key == b.key) {
                let versions: Vec<Generation> =
                    of_block.iter().map(|slot| slot.generation).collect();
                let dropped = dax::replica::prune(&versions, &retention);
                if !dropped.is_empty() {
                    let key = of_block[0].key;
                    return Err(format!(
                        "replica {r} still has {dropped:?} of {key}, which no image shows"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Files that every replica was told to remove are gone.
    fn check_removed(&self) -> Checked {
        for r in 0..REPLICAS {
            let stored = self.replicas[r].engine.stored();
            let told = |slot: &&Slot| self.told_to_remove[r].contains(&slot.key.file);
            if let Some(slot) = stored.keys().find(told) {
                return Err(format!(
                    "replica {r} still has {} of a removed file",
                    slot.key
                ));
            }
        }
        Ok(())
    }
}
