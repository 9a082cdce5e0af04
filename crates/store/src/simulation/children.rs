//! Volumes that are laid over pinned images, and over each other: made, read, lost with a disk, removed.
//!
//! A child's owner writes once, when the child is made; so whatever a quorum reads of a child is known for as long as it
//! exists. Its image stays pinned as long.

use std::collections::BTreeMap;
use std::sync::Arc;

use dax::error::{Error, ErrorKind};
use dax::ids::{BlockKey, Epoch, Generation, Version, VolumeName};
use dax::layer::Layer;
use dax::storage::{Lineage, VolumeSettings};
use dax::wire::{Request, Response};
use rand::Rng;

use super::fills::Filling;
use super::owner::{REPLICAS, SYNC, block_write};
use super::replica::{Replica, volume_name};
use super::schedule::{Checked, DATA, Schedule};
use super::workload::BLOCKS;
use crate::volume::Volume;

/// Children at a time, at most.
const CHILDREN: usize = 3;

pub(super) struct Child {
    pub name: VolumeName,
    settings: VolumeSettings,
    pub epoch: Epoch,
    /// The image of the volume at the bottom that all rests on.
    pub root: Lineage,
    /// Versions that it has written.
    own: BTreeMap<BlockKey, Version>,
    /// Versions that it shows of the volumes below.
    shown: BTreeMap<BlockKey, Version>,
    /// It is about to be removed.
    pub leaving: bool,
    pub filling: Filling,
}

impl Child {
    fn generation(&self) -> Generation {
        Generation {
            epoch: self.epoch,
            number: 1,
        }
    }

    /// The image of all that it shows.
    pub fn image(&self) -> Lineage {
        let own = self.generation();
        let below = &self.layer().image;
        below.clone().continued(own).truncated(own)
    }

    pub fn layer(&self) -> &Layer {
        let layer = self.settings.layer.as_ref();
        layer.expect("every child has a layer")
    }
}

impl Schedule {
    /// Makes a child, lays one over another, or removes one; and sees that replicas which lost one get it back.
    pub(super) fn tend_children(&mut self) -> Checked {
        for r in 0..REPLICAS {
            self.bring_back(r);
        }
        match self.rng.random_range(0..4) {
            0 | 1 if self.children.len() < CHILDREN => self.branch(),
            2 if self.chance(50) => self.leave(),
            _ => {}
        }
        self.tend_fills();
        self.check_fills()?;
        self.check_children()
    }

    /// Lays a volume over an image that is pinned then, or over another child.
    fn branch(&mut self) {
        let is_there = |r: &Replica| r.is_up() && r.has_volume();
        if !self.replicas.iter().all(is_there) || self.lost.contains(&true) {
            return;
        }
        let is_open =
            |child: &Child| !child.leaving && !child.filling.removed && !child.filling.closed;
        let below = self.children.iter().rposition(is_open);
        let below = below.filter(|_| self.chance(40));
        let (parent, image, root, shown) =
            match (below, self.pins.last().or(self.seals.last()).cloned()) {
                (Some(at), _) => {
                    let child = &self.children[at];
                    let mut shown = child.shown.clone();
                    shown.extend(&child.own);
                    (child.name.clone(), child.image(), child.root.clone(), shown)
                }
                (None, Some(pinned)) => {
                    let shown = self.shown_by(&pinned);
                    (volume_name(), pinned.clone(), pinned, shown)
                }
                (None, None) => return,
            };
        let grant = |r: &Replica| r.grant_of(&parent).map(|grant| grant.epoch);
        let accepted = self.replicas.iter().filter_map(grant).max();
        self.branches += 1;
        let layer = Layer {
            parent,
            image,
            first_epoch: accepted.unwrap_or_default().next(),
            proof: None,
        };
        let name = VolumeName::new(format!("child-{}", self.branches));
        let mut child = Child {
            name: name.expect("a plain name"),
            epoch: layer.first_epoch,
            settings: VolumeSettings::default().under(layer),
            root,
            own: BTreeMap::new(),
            shown,
            leaving: false,
            filling: Filling::default(),
        };
        for r in 0..REPLICAS {
            let made = self.make_child(r, &child, false);
            assert_eq!(made, Some(Response::Done));
        }
        // As a client does: the next epoch after the accepted one.
        let accepted = self.replicas[0].grant_of(&child.name);
        child.epoch = accepted.map_or(Epoch(1), |grant| grant.epoch.next());
        for block in 0..BLOCKS {
            if self.chance(30) {
                let version = Version {
                    epoch: child.epoch,
                    seq: block + 1,
                };
                child.own.insert(BlockKey::new(DATA, block), version);
            }
        }
        self.note(|| format!("{} is laid over {}", child.name, child.layer().parent));
        for r in 0..REPLICAS {
            // What is not on all of them, nobody knows: it is not looked at.
            child.leaving |= !self.write_child(r, &child, &[]);
            child.filling.whole[r] = Some(self.replicas[r].store);
        }
        self.coverage.one(match below {
            None => "children",
            Some(_) => "children of children",
        });
        self.children.push(child);
    }

    /// The newest synced versions of an image.
    fn shown_by(&self, image: &Lineage) -> BTreeMap<BlockKey, Version> {
        let synced = self.synced.iter();
        let of_image = synced.filter(|((key, g), _)| key.file == DATA && image.contains(*g));
        // In the order of generations.
        of_image
            .map(|((key, _), version)| (*key, *version))
            .collect()
    }

    fn make_child(&mut self, r: usize, child: &Child, rebuild: bool) -> Option<Response> {
        let create = Request::CreateVolume {
            volume: child.name.clone(),
            settings: child.settings.clone(),
            rebuild,
            membership: None,
        };
        self.ask_of(r, &child.name, create)
    }

    /// Sends a replica all that the child has written, and copies of a fill; false if it refuses some of it.
    pub fn write_child(
        &mut self,
        r: usize,
        child: &Child,
        copies: &[(BlockKey, Generation, Version)],
    ) -> bool {
        let conn = self.next_conn;
        self.next_conn += 1;
        self.replicas[r].connect_to(&child.name, conn);
        let own = Request::OwnEpoch {
            epoch: child.epoch,
            owner: "owner".into(),
            settled: true,
        };
        let owned = self.ask_on(r, conn, own);
        assert!(matches!(
            owned,
            Some(Response::Owned { accepted: true, .. })
        ));
        let own = child.own.iter().map(|(key, version)| {
            block_write(child.epoch, *key, child.generation(), *version, None)
        });
        let kept = own.filter(|_| !child.filling.removed);
        for (number, write) in (1..).zip(kept.chain(Schedule::copy_writes(child, copies))) {
            self.replicas[r].send(conn, number, write);
        }
        let mut filled = true;
        for (to, _, answer) in self.replicas[r].commit() {
            filled &= to != conn || !matches!(answer, Response::WriteRefused { .. });
            self.hear(r, to, answer);
        }
        filled
    }

    /// A replica that lost its disk is sent the children again, once it has heard of what they lie over.
    fn bring_back(&mut self, r: usize) {
        if !self.replicas[r].is_up() || !self.replicas[r].has_volume() {
            return;
        }
        for mut child in std::mem::take(&mut self.children) {
            let lost = self.replicas[r].grant_of(&child.name).is_none();
            if lost && !child.leaving {
                let made = self.make_child(r, &child, true);
                assert_eq!(made, Some(Response::Done));
            }
            let lacks = |(_, volume): (_, Arc<Volume>)| volume.is_rebuilding();
            let lacks = self.replicas[r].open(&child.name).is_some_and(lacks);
            if lacks && self.rebuild_child(r, &mut child) {
                self.coverage.one("children rebuilt");
            }
            self.children.push(child);
        }
    }

    /// Removes a child that nothing lies over, from all replicas, at once or as they come back.
    fn leave(&mut self) {
        let Some(at) = self.children.len().checked_sub(1) else {
            return;
        };
        let at = self.rng.random_range(0..=at);
        let mut child = self.children.remove(at);
        let over = |other: &Child| other.layer().parent == child.name;
        let needs = |other: &&Child| over(other) && self.needs_parent(other);
        let is_below = self.children.iter().any(|other| needs(&other));
        let all_up = self.replicas.iter().all(Replica::is_up);
        let knows = |r: &Replica| r.grant_of(&child.name).is_some();
        if !child.leaving && (!all_up || !self.replicas.iter().all(knows)) {
            return self.children.insert(at, child);
        }
        let epoch = child.epoch;
        for close in [true, false] {
            for r in 0..REPLICAS {
                if !self.replicas[r].is_up() || self.replicas[r].grant_of(&child.name).is_none() {
                    continue;
                }
                let remove = Request::RemoveVolume { epoch, close };
                let answer = self.ask_of(r, &child.name, remove);
                let Some(Response::Error { kind, .. }) = answer else {
                    continue;
                };
                // Files that cannot be read keep it for now.
                assert!(is_below || kind != ErrorKind::Conflict, "{answer:?}");
                self.coverage.one("removals refused");
                child.leaving |= !close;
                child.filling.closed = true;
                return self.children.insert(at, child);
            }
            // A replica that lost its disk may know nothing of what lies over the child; the others do.
            assert!(!is_below, "{} is closed, and has children", child.name);
        }
        child.leaving = true;
        let knows = |r: &Replica| !r.is_up() || r.grant_of(&child.name).is_some();
        if self.replicas.iter().any(knows) {
            return self.children.insert(at, child);
        }
        self.note(|| format!("{} is removed", child.name));
        self.coverage.one("children removed");
    }

    /// Any quorum reads what the child has written, or else what the image had.
    pub(super) fn check_children(&self) -> Checked {
        for child in self.children.iter().filter(|child| !child.leaving) {
            for block in 0..BLOCKS {
                let key = BlockKey::new(DATA, block);
                let own = child.own.get(&key);
                let right = own.or(child.shown.get(&key)).copied();
                if !child.filling.removed {
                    self.check_read(child, key, Generation::MAX, right)?;
                }
                if let Some(old) = child.shown.get(&key).filter(|old| old.epoch >= child.epoch) {
                    // What it cuts off now is older than its next version.
                    return Err(format!(
                        "{}: a cut in {} does not cover {old} of {key}",
                        child.name, child.epoch
                    ));
                }
                let single = BlockKey::new(self.file, block);
                self.check_read(child, single, Generation::SINGLE, None)?;
            }
        }
        Ok(())
    }

    fn check_read(
        &self,
        child: &Child,
        key: BlockKey,
        up_to: Generation,
        right: Option<Version>,
    ) -> Checked {
        let read = |r: &Replica| match r.read(&child.name, key, up_to) {
            Some(Response::Block(block)) => Some(block.map(|block| block.version)),
            _ => None,
        };
        let answers: Vec<Option<Version>> = self.replicas.iter().filter_map(read).collect();
        // A quorum may leave any one out.
        for left_out in 0..answers.len().max(1) {
            let quorum = answers.iter().enumerate();
            let quorum: Vec<_> = quorum
                .filter(|(at, _)| answers.len() == SYNC || *at != left_out)
                .collect();
            if quorum.len() < SYNC {
                continue;
            }
            let newest = quorum.into_iter().filter_map(|(_, version)| *version).max();
            if newest != right {
                return Err(format!(
                    "{}: a quorum of {answers:?} reads {newest:?} of {key}, and not {right:?}",
                    child.name
                ));
            }
        }
        Ok(())
    }

    /// In the end the children are there in every replica, and nothing of those that were removed is.
    pub(super) fn end_children(&mut self) -> Checked {
        for r in (0..REPLICAS).cycle().take(2 * REPLICAS) {
            self.bring_back(r);
        }
        self.end_fills()?;
        self.check_children()?;
        self.coverage
            .some("children at the end", self.children.len() as u64);
        while !self.children.is_empty() {
            self.leave();
        }
        for r in 0..REPLICAS {
            for _ in 0..2 {
                self.replicas[r].tidy();
                self.commit(r);
            }
            let stored = self.replicas[r].engine.stored();
            if let Some(slot) = stored.keys().find(|slot| slot.volume.0 != 1) {
                return Err(format!(
                    "replica {r} still has {} of a removed child",
                    slot.key
                ));
            }
        }
        Ok(())
    }
}

impl Replica {
    /// Reads a block of a volume as a client would; none if the replica is down, or does not know the volume.
    fn read(&self, volume: &VolumeName, key: BlockKey, up_to: Generation) -> Option<Response> {
        let (shared, volume) = self.open(volume)?;
        let answer = match volume.check_complete() {
            Ok(()) => crate::reads::read_block(shared, &volume, key, up_to),
            Err(_) => return None,
        };
        let told = |error: crate::engine::EngineError| {
            let error = error.told().unwrap_or_else(|e| panic!("{e}"));
            crate::decide::error(&Error::new(ErrorKind::Unavailable, error.to_string()))
        };
        Some(answer.unwrap_or_else(told))
    }
}
