//! Rules that the simulation can switch off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A commit is acknowledged before the log is durable.
    AcknowledgedTooEarly,
    /// The standby is sent what is not durable yet.
    SentTooEarly,
    /// A member that is back is taken to have nothing above its floor.
    LedgerForgotten,
    /// Locks are not taken.
    NoLocks,
    /// Locks are given back before the commit.
    LocksNotStrict,
    /// A standby executes what conflicts at the same time.
    ConflictsInParallel,
    /// Nobody compares answers.
    DigestIgnored,
    /// A new primary serves before it has the rest of the log.
    ServesTooEarly,
    /// A standby goes on over a gap in the log.
    GapIgnored,
    /// A manager that lost its epoch goes on.
    FenceIgnored,
    /// A new primary does not wait for the end of the lease of the one before.
    LeaseIgnored,
    /// A commit that failed after it was logged is taken to have happened.
    LostCommitForgotten,
    /// The log gives back what a member has, whether or not it is on its disk.
    TrimmedTooEarly,
    /// What was done in an earlier life of a member's server counts.
    LifeIgnored,
    /// A session is begun although the server may have crashed since it was asked what it has: the driver's rule.
    #[cfg(test)]
    LifeUnchecked,
}

#[cfg(test)]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 15] = [
        Flaw::AcknowledgedTooEarly,
        Flaw::SentTooEarly,
        Flaw::LedgerForgotten,
        Flaw::NoLocks,
        Flaw::LocksNotStrict,
        Flaw::ConflictsInParallel,
        Flaw::DigestIgnored,
        Flaw::ServesTooEarly,
        Flaw::GapIgnored,
        Flaw::FenceIgnored,
        Flaw::LeaseIgnored,
        Flaw::LostCommitForgotten,
        Flaw::TrimmedTooEarly,
        Flaw::LifeIgnored,
        Flaw::LifeUnchecked,
    ];
}
