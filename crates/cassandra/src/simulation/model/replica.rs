//! One replica: rows of cells and deleted ranges, what its disk has of them.

use std::collections::{BTreeMap, BTreeSet};

use super::cell::{Cell, Timestamp, newest};
use super::{Mutation, Query};

/// A row: its partition, and its place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub partition: u64,
    pub row: u64,
}

/// Rows of one partition that were deleted as a range, ends included: a range tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gone {
    pub from: u64,
    pub to: u64,
    pub timestamp: Timestamp,
}

impl Gone {
    fn hides(&self, row: u64, cell: &Cell) -> bool {
        (self.from..=self.to).contains(&row) && self.timestamp >= cell.timestamp
    }
}

/// What there is of one partition: cells by their place in it, tombstones as well, and deleted ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    pub cells: BTreeMap<u64, Cell>,
    pub gone: BTreeSet<Gone>,
}

impl Rows {
    /// What is left of both.
    pub fn merge(&mut self, other: &Rows) {
        for (row, cell) in &other.cells {
            self.put(*row, cell.clone());
        }
        self.gone.extend(&other.gone);
    }

    fn put(&mut self, row: u64, cell: Cell) {
        let before = self.cells.remove(&row);
        if let Some(cell) = newest(before, Some(cell)) {
            self.cells.insert(row, cell);
        }
    }

    /// What a reader sees.
    pub fn live(&self) -> impl DoubleEndedIterator<Item = (u64, &Cell)> {
        let rows = self.cells.iter().map(|(row, cell)| (*row, cell));
        rows.filter(|(row, cell)| cell.is_live() && !self.is_hidden(*row, cell))
    }

    fn is_hidden(&self, row: u64, cell: &Cell) -> bool {
        self.gone.iter().any(|gone| gone.hides(row, cell))
    }

    fn purge(&mut self) {
        let Rows { cells, gone } = self;
        let is_hidden = |row, cell: &Cell| gone.iter().any(|gone| gone.hides(row, cell));
        cells.retain(|row, cell| cell.is_live() && !is_hidden(*row, cell));
        gone.clear();
    }
}

type Partitions = BTreeMap<u64, Rows>;

#[derive(Debug)]
pub struct Replica {
    partitions: Partitions,
    /// What a crash leaves, where a write is visible before it is durable.
    on_disk: Option<Partitions>,
}

impl Replica {
    pub fn new(batch: bool) -> Replica {
        Replica {
            partitions: BTreeMap::new(),
            on_disk: (!batch).then(BTreeMap::new),
        }
    }

    pub fn apply(&mut self, mutation: &Mutation) {
        for (place, cell) in &mutation.cells {
            let rows = self.partitions.entry(place.partition).or_default();
            rows.put(place.row, cell.clone());
        }
        for (partition, gone) in &mutation.gone {
            let rows = self.partitions.entry(*partition).or_default();
            rows.gone.insert(*gone);
        }
    }

    /// Everything that lives here.
    pub fn live(&self) -> impl Iterator<Item = (Place, &Cell)> {
        self.partitions.iter().flat_map(|(partition, rows)| {
            let partition = *partition;
            let live = rows.live();
            live.map(move |(row, cell)| (Place { partition, row }, cell))
        })
    }

    pub fn rows(&self, query: &Query) -> Rows {
        let Some(all) = self.partitions.get(&query.partition) else {
            return Rows::default();
        };
        let cells = all.cells.range(query.from..=query.to);
        let gone = all.gone.iter();
        Rows {
            cells: cells.map(|(row, cell)| (*row, cell.clone())).collect(),
            gone: gone
                .filter(|gone| gone.from <= query.to && query.from <= gone.to)
                .copied()
                .collect(),
        }
    }

    pub fn crash(&mut self) {
        if let Some(on_disk) = &self.on_disk {
            self.partitions.clone_from(on_disk);
        }
    }

    pub fn sync_log(&mut self) {
        if let Some(on_disk) = &mut self.on_disk {
            on_disk.clone_from(&self.partitions);
        }
    }

    pub fn purge(&mut self) {
        self.partitions.values_mut().for_each(Rows::purge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_range_hides_what_is_not_newer_until_it_is_forgotten() {
        let place = |row| Place { partition: 1, row };
        let live = |row, timestamp| Mutation::one(place(row), Cell::live(timestamp, "x"));
        let gone = Gone {
            from: 2,
            to: 3,
            timestamp: 5,
        };
        let mut replica = Replica::new(true);
        replica.apply(&live(1, 4));
        replica.apply(&live(2, 5));
        replica.apply(&live(3, 6));
        replica.apply(&Mutation::gone(1, gone));
        let seen = |replica: &Replica| -> Vec<u64> {
            let live = replica.live();
            live.map(|(place, _)| place.row).collect()
        };
        assert_eq!(seen(&replica), [1, 3]);
        replica.apply(&live(2, 4));
        assert_eq!(seen(&replica), [1, 3], "it arrives late");
        replica.purge();
        replica.apply(&live(2, 4));
        assert_eq!(seen(&replica), [1, 2, 3]);
    }
}
