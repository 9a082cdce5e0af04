//! Transaction ids as PostgreSQL counts them for good: its type `xid8`, the 32 bits of a transaction id with the count of
//! its wraparounds above them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A transaction id that is never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Xid8(pub u64);

impl Xid8 {
    /// Parses what `xid8` looks like in SQL: a decimal number.
    pub fn parse(text: &str) -> Option<Xid8> {
        text.parse().ok().map(Xid8)
    }
}

impl fmt::Display for Xid8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
