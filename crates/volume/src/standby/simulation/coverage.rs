//! How often things happened: histories in which nothing does would pass as well.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub fn add(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn of(&self, what: &'static str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Coverage) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(what, times)| writeln!(f, "{times:>10} {what}"))
    }
}
