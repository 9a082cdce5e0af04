//! Comparing what all replicas have, mending what differs, and letting one that lost its disk count again.

use std::collections::BTreeMap;

use dax::ids::{BlockKey, Generation, Version};
use dax::replica::prune;
use dax::storage::Retention;
use dax::wire::{InventoryEntry, Request, Response};

use super::owner::{REPLICAS, block_write};
use super::schedule::{Place, Schedule};

impl Schedule {
    /// Compares what all have, mends it, and lets who was rebuilt count. Gives up if somebody is away, or cannot answer.
    pub(super) fn scrub(&mut self, o: usize) -> Option<()> {
        let epoch = self.owners[o].epoch;
        let mut inventories: Vec<Vec<InventoryEntry>> = Vec::new();
        for r in 0..REPLICAS {
            let conn = self.owners[o].links[r].as_ref()?.conn;
            let ask = Request::Inventory { epoch, after: None };
            let Some(Response::Inventory { entries, .. }) = self.ask_on(r, conn, ask) else {
                return None;
            };
            inventories.push(entries);
        }
        let mut newest: BTreeMap<BlockKey, BTreeMap<Generation, Version>> = BTreeMap::new();
        for entry in inventories.iter().flatten() {
            let version = newest.entry(entry.key).or_default().entry(entry.generation);
            let version = version.or_default();
            *version = entry.version.unwrap_or_default().max(*version);
        }
        let mut images = self.owners[o].images.clone();
        images.extend(self.pins.iter().cloned());
        images.extend(self.children.iter().map(|child| child.root.clone()));
        for (key, generations) in newest {
            let stored: Vec<Generation> = generations.keys().copied().collect();
            let dropped = prune(
                &stored,
                &Retention {
                    images: images.clone(),
                },
            );
            for (generation, version) in generations {
                if dropped.contains(&generation)
                    || version == Version::ZERO
                    || self.removed.contains(&key.file)
                {
                    continue;
                }
                // A repair is a read by the owner, who knows what it has written.
                let own = self.owners[o].newest_in((key, generation));
                let repair = own.unwrap_or_default().max(version);
                for (r, inventory) in inventories.iter().enumerate() {
                    let same = |e: &&InventoryEntry| (e.key, e.generation) == (key, generation);
                    let has = inventory.iter().find(same).and_then(|e| e.version);
                    if has != Some(version) {
                        self.mend(o, r, (key, generation), repair)?;
                    }
                }
            }
        }
        for r in 0..REPLICAS {
            self.commit(r);
            let conn = self.owners[o].links[r].as_ref()?.conn;
            if self.owners[o].rebuilding[r] && self.has_all(r) {
                let done = self.ask_on(r, conn, Request::Rebuilt { epoch })?;
                if done == Response::Done {
                    self.lost[r] = false;
                    self.owners[o].rebuilding[r] = false;
                    self.coverage.one("replicas rebuilt");
                    self.note(|| format!("replica {r} is rebuilt by {epoch}"));
                    self.judge_syncs(false);
                }
            }
        }
        Some(())
    }

    /// Sends a copy as it was written.
    pub(super) fn mend(
        &mut self,
        o: usize,
        r: usize,
        (key, up_to): Place,
        version: Version,
    ) -> Option<()> {
        let write = block_write(self.owners[o].epoch, key, up_to, version, None);
        self.coverage.one("copies mended");
        let link = self.owners[o].links[r].as_mut()?;
        let (conn, number) = (link.conn, link.number_repair());
        self.replicas[r].send(conn, number, write);
        let mut refused = false;
        for (to, _, answer) in self.replicas[r].commit() {
            let is_own =
                matches!(answer, Response::WriteRefused { number: which, .. } if which == number);
            refused |= to == conn && is_own;
            self.hear(r, to, answer);
        }
        (!refused).then_some(())
    }
}
