//! The commit of a member's that a record of the log is of.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in a server's WAL.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Reads what [`fmt::Display`] writes, as PostgreSQL's type `pg_lsn` does.
    pub fn parse(text: &str) -> Option<Lsn> {
        let (high, low) = text.split_once('/')?;
        let of = |part| u32::from_str_radix(part, 16).ok().map(u64::from);
        Some(Lsn(of(high)? << 32 | of(low)?))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The commit that rows are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The server's system identifier.
    pub system: u64,
    /// Its timeline.
    pub timeline: u32,
    /// The transaction's number there.
    pub xid: u32,
    /// The end of its commit in the WAL; of a piece that is not the last, where that begins.
    pub end: Lsn,
}

/// The part of a record with rows that says what it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Header {
    /// The commit.
    pub origin: Origin,
    /// Counted from 0: a long transaction has several records.
    pub piece: u32,
    /// The transaction ends with it.
    pub is_last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_written_as_postgresql_does() {
        let lsn = Lsn(0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert_eq!(Lsn::parse("16/B374D848"), Some(lsn));
        assert_eq!(Lsn::parse("16"), None);
        assert_eq!(Lsn::parse("16/100000000"), None);
    }
}
