//! Children that are filled: a command asks for it, looks, and says that it has ended, while replicas copy, fail and are rebuilt.

use dax::ids::{BlockKey, Generation, Version, VolumeName};
use dax::layer::{FILL, FILLED};
use dax::storage::{Fill, Retention};
use dax::wire::{Request, Response};
use rand::Rng;

use super::children::Child;
use super::owner::{REPLICAS, block_write};
use super::replica::Replica;
use super::schedule::{Checked, DATA, Schedule};
use crate::engine::Found;

/// A child as the command that has it filled knows it, and those who send it again.
#[derive(Default)]
pub(super) struct Filling {
    /// Times in a row that all replicas have said that they have everything.
    looks: u32,
    /// They have, for good.
    pub ended: bool,
    /// Its file of data was removed.
    pub removed: bool,
    /// Its removal was refused, and some replica may have closed it.
    pub closed: bool,
    /// Stores that were told so, and those that were sent all when they had lost it.
    told: [Option<u64>; REPLICAS],
    sent: [Option<u64>; REPLICAS],
    /// Stores that have all of it since it was made, or since they were rebuilt.
    pub whole: [Option<u64>; REPLICAS],
}

impl Schedule {
    /// Something happens to the fill of some child.
    pub(super) fn tend_fills(&mut self) {
        for r in 0..REPLICAS {
            for _ in 0..self.rng.random_range(0..6) {
                self.replicas[r].fill();
                if self.chance(80) {
                    self.commit(r);
                }
            }
        }
        for at in 0..self.children.len() {
            let mut child = self.children.remove(at);
            match self.rng.random_range(0..20) {
                _ if child.leaving => {}
                0 => self.remove_data(&mut child),
                1 => self.retain_child(&child),
                2..16 => self.have_filled(&mut child),
                _ => {}
            }
            self.children.insert(at, child);
            self.tell_removed(at);
        }
    }

    /// One step of the command.
    fn have_filled(&mut self, child: &mut Child) {
        for r in 0..REPLICAS {
            self.put_record(r, child, FILL);
        }
        let done = |r: &Replica| r.fill_of(&child.name).is_some_and(|fill| fill.done);
        child.filling.looks = match self.replicas.iter().all(done) {
            true => child.filling.looks + 1,
            false => 0,
        };
        if child.filling.looks >= 2 && !child.filling.ended {
            child.filling.ended = true;
            self.note(|| format!("{} is filled", child.name));
            self.coverage.one("children filled");
        }
        for r in 0..REPLICAS {
            if child.filling.ended && self.chance(70) {
                self.put_record(r, child, FILLED);
            }
        }
    }

    fn put_record(&mut self, r: usize, child: &Child, name: &str) {
        let put = Request::PutRecord {
            epoch: None,
            name: name.to_owned(),
            version: Version {
                epoch: child.epoch,
                seq: 1,
            },
            value: Some(name.as_bytes().to_vec().into()),
        };
        if self.replicas[r].grant_of(&child.name).is_some() {
            self.ask_of(r, &child.name, put);
        }
    }

    /// The child's owner says which image it needs.
    fn retain_child(&mut self, child: &Child) {
        let (epoch, images) = (child.epoch, vec![child.image()]);
        for r in 0..REPLICAS {
            if self.replicas[r].grant_of(&child.name).is_some() {
                let retention = Retention {
                    images: images.clone(),
                };
                self.ask_of(r, &child.name, Request::Retain { epoch, retention });
            }
        }
    }

    /// The child's owner removes its file of data, which no image needs.
    fn remove_data(&mut self, child: &mut Child) {
        let over = |other: &Child| other.layer().parent == child.name;
        if self.chance(30) && !self.children.iter().any(over) && !child.filling.removed {
            self.note(|| format!("{} removes its data", child.name));
            self.coverage.one("children that removed a file");
            child.filling.removed = true;
        }
    }

    /// Tells replicas that have not heard of it, among them those that lost what they had heard with their disk.
    fn tell_removed(&mut self, at: usize) {
        let child = &self.children[at];
        if !child.filling.removed || child.leaving {
            return;
        }
        let (name, epoch) = (child.name.clone(), child.epoch);
        for r in 0..REPLICAS {
            let store = self.replicas[r].store;
            let knows = self.replicas[r].grant_of(&name).is_some();
            if !knows || self.children[at].filling.told[r] == Some(store) {
                continue;
            }
            let files = vec![DATA];
            let told = self.ask_of(r, &name, Request::RemoveFiles { epoch, files });
            if told == Some(Response::Done) {
                self.children[at].filling.told[r] = Some(store);
            }
        }
    }

    /// A replica that lost a child is sent what its owner has, and what others show; later it is told the records, and that it is
    /// rebuilt. True if it is.
    pub(super) fn rebuild_child(&mut self, r: usize, child: &mut Child) -> bool {
        let store = self.replicas[r].store;
        let counts = |other: &Replica| {
            let volume = other.open(&child.name);
            volume.is_some_and(|(_, volume)| !volume.is_rebuilding())
        };
        // Less is no quorum beside this one: a scrub waits.
        if self.replicas.iter().filter(|other| counts(other)).count() < REPLICAS - 1 {
            return false;
        }
        if child.filling.sent[r] != Some(store) {
            let copies = self.shown_copies(r, child);
            if self.write_child(r, child, &copies) {
                child.filling.sent[r] = Some(store);
            }
            return false;
        }
        for name in [FILL, FILLED] {
            let has = |other: &Replica| other.has_record(&child.name, name);
            if self.replicas.iter().any(has) {
                self.put_record(r, child, name);
            }
        }
        let epoch = child.epoch;
        let done = self.ask_of(r, &child.name, Request::Rebuilt { epoch });
        let done = done == Some(Response::Done);
        if done {
            child.filling.whole[r] = Some(store);
        }
        done
    }

    /// Owners of children look for damage, and mend it.
    fn mend_children(&mut self) {
        for child in std::mem::take(&mut self.children) {
            for r in (0..REPLICAS).filter(|_| !child.leaving) {
                let (epoch, after) = (child.epoch, None);
                self.ask_of(r, &child.name, Request::Inventory { epoch, after });
                let copies = self.shown_copies(r, &child);
                self.write_child(r, &child, &copies);
            }
            self.children.push(child);
        }
    }

    /// Copies of a fill that other replicas name in their inventories.
    fn shown_copies(&self, r: usize, child: &Child) -> Vec<(BlockKey, Generation, Version)> {
        let mut copies = Vec::new();
        // What nobody knows any more is not mended.
        for other in (0..REPLICAS).filter(|other| *other != r && !child.filling.removed) {
            let Some((_, volume)) = self.replicas[other].open(&child.name) else {
                continue;
            };
            if volume.layer().is_some() || volume.is_rebuilding() {
                continue;
            }
            for (slot, found) in self.replicas[other].engine.stored() {
                let is_copy = slot.volume == volume.id && slot.generation.epoch < child.epoch;
                if let Found::Block(block) = found
                    && is_copy
                {
                    copies.push((slot.key, slot.generation, block.version));
                }
            }
        }
        copies
    }

    /// True if a child needs its parent in some replica that can be asked.
    pub(super) fn needs_parent(&self, child: &Child) -> bool {
        let ended = |r: &Replica| r.fill_of(&child.name).is_none_or(|fill| fill.ended);
        !self.replicas.iter().all(ended)
    }

    /// True if a child needs the image that is pinned of the volume at the bottom.
    pub(super) fn needs_root(&self, child: &Child) -> bool {
        let mut child = child;
        while !child.filling.ended {
            let below = |other: &&Child| other.name == child.layer().parent;
            match self.children.iter().find(below) {
                Some(below) => child = below,
                None => return true,
            }
        }
        false
    }

    /// True if a replica lacks some of a child.
    pub(super) fn lacks_child(&self, r: usize) -> bool {
        let store = Some(self.replicas[r].store);
        let mut children = self.children.iter().filter(|child| !child.leaving);
        children.any(|child| child.filling.whole[r] != store)
    }

    /// No replica says that it has everything while it lacks what it would copy it from.
    pub(super) fn check_fills(&self) -> Checked {
        for child in self.children.iter().filter(|child| !child.leaving) {
            for (r, replica) in self.replicas.iter().enumerate() {
                let done = replica.fill_of(&child.name).is_some_and(|fill| fill.done);
                let lacks = replica.is_rebuilt_of(&child.layer().parent);
                if done && lacks && !replica.has_record(&child.name, FILLED) {
                    return Err(format!(
                        "replica {r} says that {} is filled, and lacks what it lies over",
                        child.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// In the end all that was asked for is filled, and nothing of what was removed is there.
    pub(super) fn end_fills(&mut self) -> Checked {
        for round in 0..60 {
            if round % 20 == 0 {
                self.mend_children();
            }
            for r in 0..REPLICAS {
                self.replicas[r].fill();
                self.replicas[r].tidy();
                self.commit(r);
            }
        }
        for at in 0..self.children.len() {
            self.tell_removed(at);
        }
        for r in 0..REPLICAS {
            self.replicas[r].tidy();
            self.commit(r);
            for child in self.children.iter().filter(|child| !child.leaving) {
                let Some((_, volume)) = self.replicas[r].open(&child.name) else {
                    continue;
                };
                let stored = self.replicas[r].engine.stored();
                let mut slots = stored.keys();
                let is_back =
                    |slot: &&crate::keys::Slot| slot.volume == volume.id && slot.key.file == DATA;
                if child.filling.removed && slots.any(|slot| is_back(&slot)) {
                    return Err(format!(
                        "replica {r}: a file that {} has removed is back",
                        child.name
                    ));
                }
                let asked = self.replicas[r].has_record(&child.name, FILL);
                if asked && volume.layer().is_some() {
                    let below = child.layer().parent.clone();
                    let lacks = self.replicas[r].is_rebuilt_of(&below);
                    return Err(format!(
                        "replica {r} does not fill {} over {below} ({lacks}): {:?} {} {:?}",
                        child.name,
                        volume.fill,
                        volume.is_rebuilding(),
                        volume.decided(),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Writes of copies, as an owner sends them who mends.
    pub(super) fn copy_writes(
        child: &Child,
        copies: &[(BlockKey, Generation, Version)],
    ) -> Vec<Request> {
        let write = |(key, generation, version): &(BlockKey, Generation, Version)| {
            block_write(child.epoch, *key, *generation, *version, None)
        };
        copies.iter().map(write).collect()
    }
}

impl Replica {
    /// Progress of a fill, as it says; none if it is down or does not know the volume.
    fn fill_of(&self, name: &VolumeName) -> Option<Fill> {
        let (_, volume) = self.open(name)?;
        Some(volume.fill.told(volume.is_rebuilding()))
    }

    /// True if it is up and knows that the volume is to be filled, or that it is in all replicas.
    fn has_record(&self, name: &VolumeName, record: &str) -> bool {
        self.open(name).is_some_and(|(_, volume)| match record {
            FILL => volume.fill.is_wanted(),
            _ => volume.fill.is_ended(),
        })
    }

    /// True if it is up and lacks the volume, or some of it.
    fn is_rebuilt_of(&self, name: &VolumeName) -> bool {
        self.open(name)
            .is_some_and(|(_, volume)| volume.is_rebuilding())
    }
}
