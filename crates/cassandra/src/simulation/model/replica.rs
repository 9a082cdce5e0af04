//! One replica: rows of cells, what its disk has of them.

use std::collections::BTreeMap;

use super::cell::{Cell, newest};
use super::{Mutation, Query};

/// A row: its partition, and its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub partition: u64,
    pub row: u64,
}

/// Rows of one partition, by their place in it; tombstones as well.
pub type Rows = BTreeMap<u64, Cell>;

/// See the module.
#[derive(Debug)]
pub struct Replica {
    rows: BTreeMap<Place, Cell>,
    /// What a crash leaves, where a write is visible before it is durable.
    on_disk: Option<BTreeMap<Place, Cell>>,
}

impl Replica {
    pub fn new(batch: bool) -> Replica {
        Replica {
            rows: BTreeMap::new(),
            on_disk: (!batch).then(BTreeMap::new),
        }
    }

    pub fn apply(&mut self, mutation: &Mutation) {
        for (place, cell) in &mutation.0 {
            let before = self.rows.remove(place);
            if let Some(cell) = newest(before, Some(cell.clone())) {
                self.rows.insert(*place, cell);
            }
        }
    }

    /// Everything that lives here.
    pub fn live(&self) -> impl Iterator<Item = (Place, &Cell)> {
        let rows = self.rows.iter().filter(|(_, cell)| cell.is_live());
        rows.map(|(place, cell)| (*place, cell))
    }

    pub fn rows(&self, query: &Query) -> Rows {
        let place = |row| Place {
            partition: query.partition,
            row,
        };
        let rows = self.rows.range(place(query.from)..=place(query.to));
        rows.map(|(place, cell)| (place.row, cell.clone()))
            .collect()
    }

    pub fn crash(&mut self) {
        if let Some(on_disk) = &self.on_disk {
            self.rows.clone_from(on_disk);
        }
    }

    pub fn sync_log(&mut self) {
        if let Some(on_disk) = &mut self.on_disk {
            on_disk.clone_from(&self.rows);
        }
    }

    pub fn purge(&mut self) {
        self.rows.retain(|_, cell| cell.is_live());
    }
}
