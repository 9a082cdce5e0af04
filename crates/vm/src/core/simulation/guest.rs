//! A machine: pages, blocks, and commits that are in both.

use std::collections::{BTreeMap, BTreeSet};

const PAGES: u64 = 5;
const BLOCKS: u64 = 3;

/// What a page or a block holds.
pub type Contents = BTreeSet<u64>;

/// Where a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    InMemory(u64),
    OnDisk(u64),
}

/// The machine, its disk with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    pub pages: BTreeMap<u64, Contents>,
    pub blocks: BTreeMap<u64, Contents>,
    doing: Doing,
}

/// What a step of the machine did.
pub enum Did {
    Page(u64),
    Block(u64),
    Said(u64),
}

impl Guest {
    /// It starts from its disk: the database recovers.
    pub fn boot(blocks: BTreeMap<u64, Contents>) -> Guest {
        let mut pages = BTreeMap::new();
        for id in blocks.values().flatten() {
            let page: &mut Contents = pages.entry(id % PAGES).or_default();
            page.insert(*id);
        }
        Guest {
            pages,
            blocks,
            doing: Doing::Nothing,
        }
    }

    /// What is left of it where only memory, processor and disk were sent.
    pub fn processor(&self) -> Guest {
        Guest {
            pages: BTreeMap::new(),
            blocks: BTreeMap::new(),
            doing: self.doing,
        }
    }

    pub fn adopt(&mut self, processor: &Guest) {
        self.doing = processor.doing;
    }

    /// A commit goes one step further.
    pub fn step(&mut self, next: &mut u64) -> Did {
        match self.doing {
            Doing::Nothing => {
                *next += 1;
                let id = *next;
                self.pages.entry(id % PAGES).or_default().insert(id);
                self.doing = Doing::InMemory(id);
                Did::Page(id % PAGES)
            }
            Doing::InMemory(id) => {
                self.blocks.entry(id % BLOCKS).or_default().insert(id);
                self.doing = Doing::OnDisk(id);
                Did::Block(id % BLOCKS)
            }
            Doing::OnDisk(id) => {
                self.doing = Doing::Nothing;
                Did::Said(id)
            }
        }
    }

    /// True if a commit is in memory, as a client would see it.
    pub fn has(&self, id: u64) -> bool {
        self.pages
            .get(&(id % PAGES))
            .is_some_and(|page| page.contains(&id))
            && self
                .blocks
                .get(&(id % BLOCKS))
                .is_some_and(|block| block.contains(&id))
    }
}
