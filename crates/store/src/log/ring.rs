//! Where in the log's file a record goes. Pure: knows positions, not the file.
//!
//! Positions only grow; the place in the file is the position modulo the capacity. A record lies in one
//! piece: one that does not fit before the end of the file goes to its beginning.
//!
//! Invariant: a place is given out again only once everything in it has been released.

/// Records begin at multiples of this many bytes, so that no write touches what was acknowledged before.
pub(super) const ALIGN: u64 = 4096;

/// A point in the endless log; multiples of the capacity are the beginning of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position(pub u64);

/// A file written over and over.
#[derive(Debug)]
pub(super) struct Ring {
    capacity: u64,
    /// Behind the last record.
    head: Position,
}

impl Ring {
    /// A ring over `capacity` bytes, all of them free.
    pub fn new(capacity: u64) -> Ring {
        assert!(capacity.is_multiple_of(ALIGN), "a ring of whole blocks");
        Ring {
            capacity,
            head: Position(0),
        }
    }

    /// Behind the last record.
    pub fn head(&self) -> Position {
        self.head
    }

    /// Bytes that it goes over before it begins again.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes the next place for `bytes` (a multiple of [`ALIGN`]) and gives its offset in the file;
    /// `None` if what is there is not released.
    pub fn place(&mut self, bytes: u64, released: Position) -> Option<u64> {
        let start = self.start_of(bytes);
        if !self.has_room(bytes, released) {
            return None;
        }
        self.head = Position(start + bytes);
        Some(start % self.capacity)
    }

    /// True if there is a place for `bytes`.
    pub fn has_room(&self, bytes: u64, released: Position) -> bool {
        let end = self.start_of(bytes) + bytes;
        bytes <= self.capacity && end - released.0 <= self.capacity
    }

    /// Where a record of `bytes` would begin.
    fn start_of(&self, bytes: u64) -> u64 {
        debug_assert!(bytes.is_multiple_of(ALIGN), "whole blocks");
        let left = self.capacity - self.head.0 % self.capacity;
        match bytes <= left {
            true => self.head.0,
            false => self.head.0 + left,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_ring_gives_nothing_until_something_is_released() {
        let mut ring = Ring::new(4 * ALIGN);
        assert_eq!(ring.place(3 * ALIGN, Position(0)), Some(0));
        let first = ring.head();
        assert_eq!(ring.place(2 * ALIGN, Position(0)), None);
        assert_eq!(ring.head(), first, "nothing was taken");
        assert_eq!(ring.place(ALIGN, Position(0)), Some(3 * ALIGN));
        assert_eq!(ring.place(2 * ALIGN, first), Some(0));
    }

    #[test]
    fn record_that_can_never_fit_gets_no_place() {
        let mut ring = Ring::new(4 * ALIGN);
        assert_eq!(ring.place(5 * ALIGN, ring.head()), None);
    }

    proptest! {
        /// Against a list of the records that are not released.
        #[test]
        fn places_never_overlap_unreleased_ones(
            steps in prop::collection::vec((1..9u64, any::<bool>()), 1..200),
        ) {
            let capacity = 16 * ALIGN;
            let mut ring = Ring::new(capacity);
            let mut live: VecDeque<(u64, u64, Position)> = VecDeque::new();
            let mut released = Position(0);
            for (blocks, release) in steps {
                if release && let Some((_, _, end)) = live.pop_front() {
                    released = end;
                }
                let bytes = blocks * ALIGN;
                let Some(offset) = ring.place(bytes, released) else {
                    prop_assert!(!live.is_empty(), "an empty ring has room");
                    continue;
                };
                prop_assert!(offset + bytes <= capacity, "in one piece");
                for (other, len, _) in &live {
                    prop_assert!(offset + bytes <= *other || other + len <= offset);
                }
                live.push_back((offset, bytes, ring.head()));
            }
        }
    }
}
