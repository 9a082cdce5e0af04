//! Numbers that a session counts.

use super::reason::REASONS;

/// Numbers of a session.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Units that were answered.
    pub batches: u64,
    /// Those that left no transaction open.
    pub transactions: u64,
    /// Those that a standby answered.
    pub on_standby: u64,
    /// Statements that a standby could not run, or had to give up, and the active ran.
    pub refused_by_standby: u64,
    /// Transactions that went on after a loss of their server, on another.
    pub replayed: u64,
    /// Transactions that could not, by reason ([`REASONS`]).
    pub not_replayed: [u64; REASONS.len()],
    /// Commits whose answer was lost.
    pub in_doubt: u64,
    /// Those of them that had committed.
    pub in_doubt_committed: u64,
    /// Those of which nobody knows.
    pub in_doubt_unknown: u64,
}

impl Counts {
    /// A batch was answered, with this status of its transaction.
    pub(super) fn answered(&mut self, status: u8) {
        self.batches += 1;
        self.transactions += u64::from(status == b'I');
    }
}
