//! Quorum reads never go back: what one has returned, or something newer, is found by every later one.
//!
//! That is what `read_repair = 'BLOCKING'` gives. Compared are timestamps, of rows of one version.

use std::collections::BTreeMap;

use dax::simulation::checkers::Violation;
use dax::simulation::history::OpNumber;

use super::model::{Place, Timestamp};

#[derive(Debug, Default)]
pub struct Monotonic {
    /// The newest that a quorum read has returned.
    returned: BTreeMap<Place, Timestamp>,
    /// The same when each read that is under way began.
    under_way: BTreeMap<OpNumber, (Place, Timestamp)>,
}

/// Nothing was there.
const NEVER: Timestamp = Timestamp::MIN;

impl Monotonic {
    /// A read of a row begins.
    pub fn began(&mut self, op: OpNumber, place: Place) {
        let returned = self.returned.get(&place).copied().unwrap_or(NEVER);
        self.under_way.insert(op, (place, returned));
    }

    /// A quorum has answered it, or another one of the same operation.
    ///
    /// # Errors
    /// An earlier read had returned something newer.
    pub fn ended(&mut self, op: OpNumber, found: Option<Timestamp>) -> Result<(), Violation> {
        let Some((place, before)) = self.under_way.remove(&op) else {
            return Ok(());
        };
        let found = found.unwrap_or(NEVER);
        let newest = self.returned.entry(place).or_insert(NEVER);
        *newest = (*newest).max(found);
        match found < before {
            true => Err(Violation {
                checker: "monotonic",
                what: format!("{place:?} was read at {before}, and at {found} afterwards"),
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_reads_must_see_it_and_overlapping_ones_may() {
        let place = Place {
            partition: 1,
            row: 0,
        };
        let mut reads = Monotonic::default();
        reads.began(1, place);
        reads.began(2, place);
        reads.ended(1, Some(5)).unwrap();
        // It began before the other one ended.
        reads.ended(2, None).unwrap();
        for (found, right) in [(Some(5), true), (Some(4), false), (None, false)] {
            reads.began(3, place);
            assert_eq!(reads.ended(3, found).is_ok(), right, "{found:?}");
        }
    }
}
