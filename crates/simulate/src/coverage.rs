//! How often what happened: histories in which nothing interesting happens prove nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// It happened once more.
    pub fn one(&mut self, what: &'static str) {
        self.some(what, 1);
    }

    /// It happened so many times.
    pub fn some(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// How often it happened.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// Adds another one's counts.
    pub fn add(&mut self, other: &Coverage) {
        for (what, count) in &other.0 {
            self.some(what, *count);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(what, count)| writeln!(f, "  {count:>12} {what}"))
    }
}
