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

/// Which transactions were under way at one moment, as `pg_current_snapshot()` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Transactions below it have ended.
    pub least: Xid8,
    /// Transactions from it on have not.
    pub end: Xid8,
    /// Those in between that have not ended.
    under_way: Vec<Xid8>,
}

impl Snapshot {
    /// Parses what it looks like in SQL: `10:20:10,14,15`.
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.splitn(3, ':');
        let (least, end) = (Xid8::parse(parts.next()?)?, Xid8::parse(parts.next()?)?);
        let ids = parts.next()?.split(',').filter(|id| !id.is_empty());
        Some(Snapshot {
            least,
            end,
            under_way: ids.map(Xid8::parse).collect::<Option<_>>()?,
        })
    }

    /// An id near this snapshot, of which the log has the lower half only.
    pub fn whole(&self, xid: u32) -> Xid8 {
        let distance = xid.wrapping_sub(self.end.0 as u32).cast_signed();
        Xid8(self.end.0.saturating_add_signed(i64::from(distance)))
    }

    /// True if whoever looked saw nothing of this transaction.
    pub fn lacks(&self, xid: u32) -> bool {
        let xid = self.whole(xid);
        xid >= self.end || self.under_way.contains(&xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_lacks_what_is_under_way_or_to_come() {
        let snapshot = Snapshot::parse("10:20:10,14").unwrap();
        let lacking: Vec<u32> = (8..22).filter(|xid| snapshot.lacks(*xid)).collect();
        assert_eq!(lacking, [10, 14, 20, 21]);
        assert_eq!(Snapshot::parse("7:7:").unwrap().least, Xid8(7));
        for wrong in ["", "7", "7:8", "7:8:x", "x:8:"] {
            assert_eq!(Snapshot::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_are_near_the_snapshot_on_both_sides_of_a_wraparound() {
        let snapshot = Snapshot::parse("4294967290:4294967300:4294967295").unwrap();
        assert!(snapshot.lacks(u32::MAX) && snapshot.lacks(4));
        assert!(!snapshot.lacks(u32::MAX - 1) && !snapshot.lacks(3));
    }
}
