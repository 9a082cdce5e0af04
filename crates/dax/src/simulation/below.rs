//! The volume below, where the simulated volume lies over an image of another one: one schedule of four.
//!
//! The parent's owner does nothing any more, so what its image shows is known for ever. A replica that lost its disk has lost
//! the parent as well, and gets it back in its own time, mostly later or earlier than the child. Which schedules are layered,
//! and what is there, does not touch the chance of the others.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::contents::block_of;
use super::flaw::Flaw;
use super::history::{Action, Content, NOTHING, Outcome};
use super::replica::Replica;
use super::schedule::Schedule;
use super::workload::Intent;
use super::world::World;
use crate::client::core::Call;
use crate::client::core::tests::peer::{ConnId, Sent};
use crate::ids::{BlockKey, Epoch, FileId, Generation, Version};
use crate::replica::Fence;
use crate::storage::{EpochGrant, Lineage};
use crate::wire::{Request, StoredBlock};

/// A file of the parent, in which the child writes nothing.
const BELOW: FileId = FileId(8);
const BLOCKS: u64 = 4;
/// The last epoch that the parent had accepted.
const ACCEPTED: Epoch = Epoch(3);
/// It comes back with one read of so many.
const RESTORED: u64 = 300;
/// One schedule of so many is layered.
const LAYERED: u64 = 4;

/// A place and its contents.
type Blocks = BTreeMap<(BlockKey, Generation), StoredBlock>;

/// Blocks of the parent that a replica has.
#[derive(Debug, Clone)]
pub(crate) struct Below {
    image: Lineage,
    blocks: Blocks,
    /// It has not lost any of it, or has got all of it back.
    pub complete: bool,
}

impl Below {
    /// The same after the loss of the disk.
    pub fn lost(&self) -> Below {
        Below {
            image: self.image.clone(),
            blocks: Blocks::new(),
            complete: false,
        }
    }

    /// Block that a read finds which has found nothing in the child; an error if that is not known here.
    pub fn read(
        &self,
        key: BlockKey,
        up_to: Generation,
        flaw: Option<Flaw>,
    ) -> Result<Option<&StoredBlock>, ()> {
        if up_to == Generation::SINGLE {
            let single = self.blocks.get(&(key, up_to));
            return Ok(single.filter(|_| flaw == Some(Flaw::SingleFromBelow)));
        }
        if !self.complete && flaw != Some(Flaw::AbsentBelow) {
            return Err(());
        }
        let shown = self.image.truncated(up_to);
        let of_block = (key, Generation::SINGLE)..=(key, Generation::MAX);
        let found = self.blocks.range(of_block).rev();
        let is_shown = |generation| generation != Generation::SINGLE && shown.contains(generation);
        Ok(found
            .map(|(_, block)| block)
            .find(|block| is_shown(block.generation)))
    }
}

fn g(epoch: u32, number: u32) -> Generation {
    Generation {
        epoch: Epoch(epoch),
        number,
    }
}

/// The image: epoch 2 took over after generation 2 of epoch 1.
fn image() -> Lineage {
    Lineage::up_to(g(1, 2))
        .continued(g(2, 0))
        .truncated(g(2, 3))
}

/// Generations in which the parent has a block. The first one has all of them; the third is not in the image.
fn written(block: u64) -> Vec<Generation> {
    let all = [
        Generation::SINGLE,
        g(1, 1),
        g(1, 5), // left out by the takeover
        g(2, 1),
        g(2, 7), // after the image
    ];
    let has = |at: &usize| (block >> (at % 2)) & 1 == 0 || *at == 0 || *at == 4;
    (0..all.len()).filter(has).map(|at| all[at]).collect()
}

fn content(block: u64, generation: Generation) -> Content {
    let place = u64::from(generation.epoch.0) * 8 + u64::from(generation.number);
    1 << 40 | block << 8 | place
}

/// Contents that a read as of `up_to` must show.
fn right(block: u64, up_to: Generation) -> Content {
    let shown = image().truncated(up_to);
    let written = written(block).into_iter();
    let newest = written
        .filter(|g| *g != Generation::SINGLE && up_to != Generation::SINGLE && shown.contains(*g))
        .max();
    newest.map_or(NOTHING, |generation| content(block, generation))
}

impl World {
    /// Lays the volume over another one, if this is such a schedule.
    pub fn lay(&mut self, seed: u64) {
        if seed % LAYERED != LAYERED - 1 {
            return;
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        self.coverage.one("layered volumes");
        let (replicas, sync) = (
            self.replicas.len(),
            usize::from(self.settings.sync_replicas),
        );
        let mut stored = vec![Blocks::new(); replicas];
        for block in 0..BLOCKS {
            for generation in written(block) {
                let key = BlockKey::new(BELOW, block);
                let version = Version {
                    epoch: generation.epoch,
                    seq: u64::from(generation.number) + 1,
                };
                let data = block_of(content(block, generation));
                let copy = StoredBlock::new(key, generation, version, data);
                // On as many as make it durable, at least.
                let (first, count) = (
                    rng.random_range(0..replicas),
                    rng.random_range(sync..=replicas),
                );
                for at in first..first + count {
                    stored[at % replicas].insert((key, generation), copy.clone());
                }
            }
        }
        for (replica, blocks) in self.replicas.iter_mut().zip(stored) {
            let below = Below {
                image: image(),
                blocks,
                complete: true,
            };
            replica.peer.lie_over(below);
        }
    }

    /// True if some replica has not got the parent back.
    pub fn lacks_below(&self) -> bool {
        let mut below = self.replicas.iter().filter_map(|r| r.peer.below.as_ref());
        below.any(|below| !below.complete)
    }

    /// A store that holds nothing, of the parent neither.
    pub fn blank_store(&self, store: u64) -> Replica {
        let mut blank = Replica::blank(store, self.flaw);
        if let Some(below) = &self.replicas[0].peer.below {
            blank.peer.lie_over(below.lost());
        }
        blank
    }

    /// Gives a replica a request. Zones accept that an exchange of members begins only when the parent has exchanged its own:
    /// those that it has then have all of it.
    pub fn hand_over(
        &mut self,
        replica: u8,
        conn: ConnId,
        id: u64,
        request: Request,
    ) -> (Vec<Sent>, Option<bool>) {
        if let Request::SetMembers { membership, .. } = &request
            && membership.begins()
            && self.flaw != Some(Flaw::ChildExchangedAlone)
        {
            self.restore_below(true);
        }
        self.replicas[usize::from(replica)].take(conn, id, request)
    }

    /// The parent's owner brings a replica that lost all of it, or each replica, all that the others have.
    pub fn restore_below(&mut self, each: bool) {
        let below = self.replicas.iter().filter_map(|r| r.peer.below.as_ref());
        let all: Blocks = below
            .filter(|below| below.complete)
            .flat_map(|below| below.blocks.clone())
            .collect();
        let below = self
            .replicas
            .iter_mut()
            .filter_map(|r| r.peer.below.as_mut());
        for below in below.filter(|below| each || !below.complete) {
            below.blocks.clone_from(&all);
            below.complete = true;
            self.coverage.one("volumes below that came back");
        }
    }
}

impl crate::client::core::tests::peer::Peer {
    /// The volume lies over another one.
    pub fn lie_over(&mut self, below: Below) {
        if self.flaw != Some(Flaw::ChildFromEpochOne) {
            self.fence = Fence::new(EpochGrant {
                epoch: ACCEPTED,
                owner: String::new(),
            });
        }
        self.below = Some(below);
    }
}

impl Schedule {
    /// A client reads what the volume below shows, now and then; and what was lost of it comes back.
    pub(super) fn look_below(&mut self) {
        if self.world.replicas[0].peer.below.is_none() || !self.world.chance(30) {
            return;
        }
        if self.world.below(RESTORED) == 0 {
            self.world.restore_below(false);
        }
        let Some(reader) = self.some_reader() else {
            return;
        };
        let block = self.world.below(BLOCKS);
        let key = BlockKey::new(BELOW, block);
        let up_to = match self.world.below(6) {
            0 => Generation::SINGLE,
            1 => g(1, 2),
            2 => g(2, 3),
            _ => Generation::MAX,
        };
        let right = right(block, up_to);
        let call = Call::Read { key, up_to };
        let client = self.readers[reader].client;
        self.start(client, call, Action::Other, Intent::Below(right));
    }

    pub(super) fn some_reader(&mut self) -> Option<usize> {
        let index = self.world.below(self.readers.len() as u64) as usize;
        (!self.world.is_paused(self.readers[index].client)).then_some(index)
    }

    /// A read of the volume below ended, or a client owns an epoch, which must be above those of the parent.
    pub(super) fn after_below(&mut self, intent: Intent, outcome: Outcome) {
        match (intent, outcome) {
            (Intent::Below(right), outcome) => self.looked_below(right, outcome),
            (Intent::Own, Outcome::Owned(epoch)) => self.check_first_epoch(epoch),
            _ => {}
        }
    }

    fn looked_below(&mut self, right: Content, outcome: Outcome) {
        self.world.coverage.one("reads of the volume below");
        if let Outcome::Block(generation, content) = outcome
            && content != right
        {
            let what = format!("{content} of {generation} was read below, and not {right}");
            self.wrong("layers", what);
        }
    }

    fn check_first_epoch(&mut self, epoch: Epoch) {
        if self.world.replicas[0].peer.below.is_some() && epoch <= ACCEPTED {
            self.wrong("layers", format!("{epoch} was one of the parent's"));
        }
    }
}
