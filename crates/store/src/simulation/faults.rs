//! What goes wrong.
//!
//! Invariant: never more than one replica at a time lacks what it acknowledged, by a lost disk, a damaged copy, or
//! commits that a fault of the disk took; more than that nobody survives with k = 2 of 3.

use dax::ids::{BlockKey, Generation};
use rand::Rng;

use super::owner::REPLICAS;
use super::replica::Replica;
use super::schedule::Schedule;
use crate::engine::memory::Space;

impl Schedule {
    /// True if this replica may lack something: no other does.
    pub(super) fn may_hurt(&self, r: usize) -> bool {
        (0..REPLICAS).all(|other| other == r || !self.is_hurt(other))
    }

    pub(super) fn hang_up(&mut self, r: usize) {
        for owner in &mut self.owners {
            // It finds out at its next connection whether there is another disk.
            owner.links[r] = None;
        }
    }

    pub(super) fn lose_disk(&mut self, r: usize) {
        self.coverage.one("disks lost");
        self.note(|| format!("replica {r} loses its disk"));
        self.hang_up(r);
        self.stores += 1;
        self.replicas[r].empty(self.stores);
        self.lost[r] = true;
        self.acked[r].clear();
        self.damaged[r].clear();
        self.told_to_remove[r].clear();
        for owner in &mut self.owners {
            owner.forget_acks(r);
        }
    }

    /// Its machine stops; a fault of the disk may take commits with it that were synced.
    pub(super) fn crash(&mut self, r: usize, lost: usize) {
        let kept = self.rng.random_range(0..4);
        self.note(|| format!("replica {r} crashes, {kept} kept, {lost} lost"));
        self.hang_up(r);
        self.coverage.one(match lost {
            0 => "crashes",
            _ => "crashes with a fault of the disk",
        });
        if !self.replicas[r].crash(kept, lost) {
            self.coverage
                .one("stores refused because commits are missing");
            self.lose_disk(r);
        }
    }

    /// Somebody owns the next epoch without one replica, and one of those that accepted it loses its disk, and with it the
    /// fence. The deposed owner, who knows nothing of it, finds that one and the one that was away.
    pub(super) fn depose_and_empty(&mut self, away: usize) {
        let emptied = (away + 1) % REPLICAS;
        let all_up = self.replicas.iter().all(Replica::is_up);
        if !all_up || !self.may_hurt(emptied) || self.owners.is_empty() {
            return;
        }
        self.crash(away, 0);
        let before = self.epoch;
        let deposed = self.owners.len() - 1;
        self.owners[deposed].links = [const { None }; REPLICAS];
        self.take_over();
        if self.epoch == before || !self.may_hurt(emptied) {
            return;
        }
        self.coverage
            .one("owners deposed by replicas one of which lost its disk");
        self.lose_disk(emptied);
        self.replicas[away].start();
        for r in [emptied, away] {
            self.connect(deposed, r);
        }
        self.write(deposed, BlockKey::new(self.file, 0), Generation::SINGLE);
        for r in [emptied, away] {
            self.commit(r);
        }
    }

    pub(super) fn go_wrong(&mut self) {
        let r = self.rng.random_range(0..REPLICAS);
        match self.rng.random_range(0..9) {
            0 | 1 if self.replicas[r].is_up() => self.crash(r, 0),
            2 if self.replicas[r].is_up() && self.may_hurt(r) => {
                let lost = self.rng.random_range(1..5);
                self.crash(r, lost);
            }
            3 if self.replicas[r].is_up() && self.may_hurt(r) => self.lose_disk(r),
            4 if self.may_hurt(r) => {
                // Nothing older is on its way.
                self.commit(r);
                let n = self.rng.random_range(0..1000);
                if let Some(slot) = self.replicas[r].engine.damage(n) {
                    self.coverage.one("copies damaged");
                    self.note(|| {
                        format!(
                            "replica {r}: {} in {} is damaged",
                            slot.key, slot.generation
                        )
                    });
                    self.damaged[r].insert((slot.key, slot.generation));
                }
            }
            5 if self.replicas[r].is_up() => {
                let (failing, every) = (self.rng.random_range(1..8), self.rng.random_range(1..3));
                self.coverage.one("times that reads failed");
                self.replicas[r].engine.fail_reads(failing, every);
            }
            6 if self.chance(30) => self.depose_and_empty(r),
            7 if self.chance(50) => {
                let n = self.rng.random_range(0..1000);
                if let Some(slot) = self.replicas[r].engine.spoil(n) {
                    self.coverage.one("sectors that cannot be read");
                    self.note(|| {
                        let (key, generation) = (slot.key, slot.generation);
                        format!("replica {r}: {key} in {generation} is not read any more")
                    });
                }
            }
            7 => {
                let full = self.chance(50);
                self.replicas[r].engine.set_full(full);
            }
            _ => {
                let space = if self.chance(50) {
                    Space::Meta
                } else {
                    Space::Blocks
                };
                self.replicas[r].engine.flush(space);
                self.coverage.one("keyspaces flushed alone");
            }
        }
    }
}
