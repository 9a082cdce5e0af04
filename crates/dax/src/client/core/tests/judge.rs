//! What the simulation knows to be true, and checks every result against.
//!
//! Every write has contents of its own. Per block there is a floor: the newest contents that must
//! survive (synced, or chosen by a promotion). A result is right if it is the floor, or a later write
//! that was not ruled out since.

use std::collections::HashMap;

use bytes::Bytes;

use super::super::*;
use super::peer::Peer;
use super::world::{BLOCK, ClientId};

/// Contents of a write, by the order of all writes; 0 is "no block".
pub(super) type Content = u64;

#[derive(Debug, Clone, Copy, Default)]
struct Floor {
    content: Content,
    version: Version,
    /// The epoch that chose it; writes of older epochs that are not it are ruled out.
    chosen_in: Epoch,
}

#[derive(Debug)]
struct Write {
    client: ClientId,
    key: BlockKey,
    generation: Generation,
    version: Version,
    /// Made after a higher epoch was owned: it must never be synced.
    too_late: bool,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    writes: Vec<Write>,
    floors: HashMap<(BlockKey, Generation), Floor>,
    highest_owned: Epoch,
}

pub(super) fn data(content: Content) -> Bytes {
    let mut data = vec![0; BLOCK as usize];
    data[..8].copy_from_slice(&content.to_le_bytes());
    Bytes::from(data)
}

pub(super) fn content(block: Option<&Block>) -> Content {
    block.map_or(0, |b| {
        Content::from_le_bytes(b.data[..8].try_into().expect("eight bytes"))
    })
}

impl Judge {
    pub fn next_content(&self) -> Content {
        self.writes.len() as u64 + 1
    }

    pub fn wrote(
        &mut self,
        client: ClientId,
        key: BlockKey,
        generation: Generation,
        version: Version,
    ) {
        self.writes.push(Write {
            client,
            key,
            generation,
            version,
            too_late: version.epoch < self.highest_owned,
        });
    }

    fn write(&self, content: Content) -> &Write {
        &self.writes[content as usize - 1]
    }

    pub fn is_write(&self, content: Content, client: ClientId, key: BlockKey) -> bool {
        let write = (content as usize).checked_sub(1).map(|i| &self.writes[i]);
        write.is_some_and(|w| (w.client, w.key) == (client, key))
    }

    pub fn owned(&mut self, epoch: Epoch) {
        assert!(epoch > self.highest_owned, "{epoch} was owned before");
        self.highest_owned = epoch;
    }

    /// Raises the floors to what a completed sync covers.
    pub fn synced(&mut self, client: ClientId, upto: u64, replicas: &[Peer]) {
        for (index, write) in self.writes.iter().enumerate() {
            if write.client != client || write.version.seq > upto {
                continue;
            }
            assert!(
                !write.too_late,
                "synced after a higher epoch was owned: {write:?}"
            );
            let floor = self.floors.entry((write.key, write.generation));
            let floor = floor.or_default();
            if write.version > floor.version {
                let late = format!("{write:?} synced, but {floor:?} was chosen");
                assert!(write.version.epoch >= floor.chosen_in, "{late}");
                floor.version = write.version;
                floor.content = index as u64 + 1;
            }
        }
        self.check_durable(replicas);
    }

    /// Every floor is on k replicas, durably: any read quorum meets it.
    pub fn check_durable(&self, replicas: &[Peer]) {
        for ((key, generation), floor) in &self.floors {
            let holders = replicas
                .iter()
                .filter(|z| z.version(*key, *generation) >= floor.version);
            assert!(
                holders.count() >= 2,
                "{key} {generation} has lost {floor:?}"
            );
        }
    }

    /// Whether a new epoch may find these contents.
    fn may_survive(&self, key: BlockKey, generation: Generation, found: Content) -> bool {
        let floor = self
            .floors
            .get(&(key, generation))
            .copied()
            .unwrap_or_default();
        if found == floor.content {
            return true;
        }
        if found == 0 {
            return false;
        }
        let write = self.write(found);
        (write.key, write.generation) == (key, generation)
            && write.version > floor.version
            && write.version.epoch >= floor.chosen_in
    }

    /// A promotion returned: from now on nothing else of older epochs may be seen.
    pub fn promoted(&mut self, key: BlockKey, epoch: Epoch, block: Option<&Block>) {
        let found = content(block);
        if epoch < self.highest_owned {
            // Deposed meanwhile: it was right when the replicas answered, and decides nothing now.
            return;
        }
        assert!(
            self.may_survive(key, Generation::SINGLE, found),
            "{key} promoted {found}, floor {:?}",
            self.floors.get(&(key, Generation::SINGLE))
        );
        let Some(block) = block else {
            return;
        };
        let floor = self.floors.entry((key, Generation::SINGLE)).or_default();
        floor.chosen_in = epoch;
        if found != floor.content || block.version > floor.version {
            floor.content = found;
            floor.version = block.version;
        }
    }

    /// The newest floor of an image.
    pub fn floor(&self, key: BlockKey, up_to: Generation) -> (Generation, Version) {
        let floors = self.floors.iter();
        let of_image = floors.filter(|((k, g), _)| *k == key && *g <= up_to);
        let newest = of_image.map(|((_, g), floor)| (*g, floor.version)).max();
        newest.unwrap_or_default()
    }

    /// A read without an epoch: not behind what was synced when it started, and something that was
    /// once written there.
    pub fn read_by_anybody(
        &self,
        key: BlockKey,
        up_to: Generation,
        floor: (Generation, Version),
        block: Option<&Block>,
    ) {
        let found = block.map_or((Generation::SINGLE, Version::ZERO), |b| {
            (b.generation, b.version)
        });
        assert!(
            found >= floor,
            "{key} as of {up_to}: {found:?} is behind {floor:?}"
        );
        assert!(found.0 <= up_to);
        if block.is_some() {
            let write = self.write(content(block));
            assert_eq!((write.key, write.generation), (key, found.0));
        }
    }
}
