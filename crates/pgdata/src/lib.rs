//! What Understudy knows of PostgreSQL: the classes of its paths, its relation files, control file,
//! page headers, log and timelines, the blocks that redo is about to read, both sides of its streaming
//! protocol, and the settings that a server on shared storage needs.
//!
//! ```text
//!   paths ──▶ layout: shared, private, log, discarded         settings ──▶ postgresql.conf
//!   global/pg_control ──▶ control, sealer: is this checkpoint a seal?
//!   log ──▶ segment, timeline, wal ──▶ lookahead: which blocks redo reads next
//!            │
//!            └──▶ feed: a walsender for the standby's PostgreSQL ◀── feedback: its needs, told to the active's
//! ```
//!
//! Everything but the drivers of [`feed`] and [`feedback`] is pure: bytes and paths in, facts out. PostgreSQL 13 to 18
//! on little-endian 64-bit machines, with log pages of 8 KiB.
//!
//! Invariants: bytes that are not understood are an error or "unknown", never a guess, because seals and takeovers are
//! decided by them; nothing here changes a file of PostgreSQL.
//!
//! ```
//! use pgdata::parse_lsn;
//! use pgdata::segment::{SegmentName, SegmentSize};
//!
//! let name = SegmentName::parse("000000020000000100000023", SegmentSize::DEFAULT).expect("a segment");
//! let at = parse_lsn("1/23456789").expect("a position");
//! assert!(name.range(SegmentSize::DEFAULT).contains(&at));
//! assert_eq!(name.timeline.0, 2);
//! ```

mod bytes_at;
pub mod confirm;
pub mod control;
pub mod expected_warnings;
pub mod feed;
pub mod feedback;
pub mod layout;
pub mod lookahead;
pub mod page;
mod receiver;
pub mod relation;
pub mod sealer;
pub mod segment;
pub mod settings;
pub mod slot;
pub mod timeline;
pub mod wal;
pub mod warmth;
pub mod xid;

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds from 1970 to 2000, where PostgreSQL's clock starts.
const POSTGRES_EPOCH_SECONDS: i64 = 946_684_800;

/// Microseconds since 2000, as PostgreSQL's messages carry them.
fn postgres_now() -> i64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
    micros.saturating_sub(POSTGRES_EPOCH_SECONDS * 1_000_000)
}

/// Parses a log position as PostgreSQL prints it, `0/16B3748`.
pub fn parse_lsn(text: &str) -> Option<volume::lsn::Lsn> {
    let (high, low) = text.trim().split_once('/')?;
    let half = |digits: &str| {
        let fits = (1..=8).contains(&digits.len()) && !digits.starts_with('+');
        fits.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    Some(volume::lsn::Lsn(
        u64::from(half(high)?) << 32 | u64::from(half(low)?),
    ))
}

#[cfg(test)]
mod tests {
    use volume::lsn::Lsn;

    use super::parse_lsn;

    #[test]
    fn positions_are_parsed_as_printed() {
        for lsn in [Lsn(0), Lsn(0x16B3748), Lsn(0xAB_0000_0001), Lsn(u64::MAX)] {
            assert_eq!(parse_lsn(&lsn.to_string()), Some(lsn));
        }
        for bad in [
            "",
            "0",
            "0/",
            "/0",
            "0/123456789",
            "x/0",
            "0/+1",
            "0/-1",
            "1/2/3",
        ] {
            assert_eq!(parse_lsn(bad), None, "{bad}");
        }
    }
}
