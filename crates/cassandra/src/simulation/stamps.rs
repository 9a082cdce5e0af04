//! Timestamps of versions: the versions' own, unless a flaw makes others of them.

use std::collections::BTreeMap;

use dax::ids::Version;

use super::flaw::Flaw;
use super::model::{Place, Timestamp};
use crate::lease::Time;
use crate::row;

/// Those of one client.
#[derive(Debug)]
pub struct Stamps {
    flaw: Option<Flaw>,
    /// What is not the version's own.
    made: BTreeMap<Version, Timestamp>,
    /// Writes of rows that nobody has acknowledged.
    pending: BTreeMap<Place, Timestamp>,
}

impl Stamps {
    pub fn new(flaw: Option<Flaw>) -> Stamps {
        Stamps {
            flaw,
            made: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// The timestamp of a version, which a flaw takes from a clock.
    pub fn of(&mut self, version: Version, clock: impl FnOnce() -> Time) -> Timestamp {
        if let Some(made) = self.made.get(&version) {
            return *made;
        }
        if self.flaw != Some(Flaw::ClockTimestamps) {
            return row::timestamp(version);
        }
        let clock = clock().as_micros() as Timestamp;
        let last = self.made.values().max().copied();
        let made = last.map_or(clock, |last| clock.max(last + 1));
        self.made.insert(version, made);
        made
    }

    /// That of a row which a flaw writes again with the timestamp of the write that is pending.
    pub fn pending(&mut self, place: Place, version: Version) -> Timestamp {
        if let Some(made) = self.made.get(&version) {
            return *made;
        }
        let own = row::timestamp(version);
        let made = *self.pending.entry(place).or_insert(own);
        self.made.insert(version, made);
        made
    }

    /// Rows are acknowledged.
    pub fn acknowledged(&mut self, rows: &BTreeMap<Place, Timestamp>) {
        self.pending.retain(|place, at| rows.get(place) != Some(at));
    }

    /// The version that a timestamp stands for, as far as this client can know.
    pub fn version(&self, timestamp: Timestamp) -> Version {
        let mut made = self.made.iter().rev();
        let own = made.find(|(_, made)| **made == timestamp);
        own.map_or_else(|| row::version(timestamp), |(version, _)| *version)
    }
}
