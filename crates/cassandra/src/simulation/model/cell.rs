//! One cell: the last write wins, by its timestamp.

/// `USING TIMESTAMP`.
pub type Timestamp = i64;

/// What a row has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Of the write or delete that made it.
    pub timestamp: Timestamp,
    /// None once deleted: a tombstone.
    pub value: Option<Vec<u8>>,
}

impl Cell {
    pub fn live(timestamp: Timestamp, value: impl Into<Vec<u8>>) -> Cell {
        Cell {
            timestamp,
            value: Some(value.into()),
        }
    }

    pub fn tombstone(timestamp: Timestamp) -> Cell {
        Cell {
            timestamp,
            value: None,
        }
    }

    pub fn is_live(&self) -> bool {
        self.value.is_some()
    }

    /// True if it replaces `other`: the higher timestamp, then a tombstone, then the greater bytes.
    fn replaces(&self, other: &Cell) -> bool {
        let rank = |cell: &Cell| (cell.timestamp, cell.value.is_none());
        (rank(self), &self.value) > (rank(other), &other.value)
    }
}

/// What is left of two.
pub fn newest(one: Option<Cell>, other: Option<Cell>) -> Option<Cell> {
    match (one, other) {
        (Some(one), Some(other)) if other.replaces(&one) => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_wins_and_ties_have_an_order() {
        let cells = [
            Cell::live(1, "z"),
            Cell::live(2, "a"),
            Cell::live(2, "ab"),
            Cell::live(2, "b"),
            Cell::tombstone(2),
            Cell::live(3, "a"),
        ];
        for (n, one) in cells.iter().enumerate() {
            for (m, other) in cells.iter().enumerate() {
                let left = newest(Some(one.clone()), Some(other.clone()));
                assert_eq!(left.as_ref(), Some(&cells[n.max(m)]), "{one:?} {other:?}");
            }
        }
    }
}
