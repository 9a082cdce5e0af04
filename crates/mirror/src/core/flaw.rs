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
    /// A standby executes what conflicts at the same time.
    ConflictsInParallel,
    /// A member that differs goes on.
    DifferenceIgnored,
    /// A new primary serves before it has the rest of the log.
    ServesTooEarly,
    /// A standby goes on over a gap in the log.
    GapIgnored,
    /// A manager that lost its epoch goes on.
    FenceIgnored,
    /// A new primary does not wait for the end of the lease of the one before.
    LeaseIgnored,
    /// Commits that a member has made itself are executed there.
    OwnCommitsExecuted,
    /// A transaction of which the log does not have the end is executed.
    TornExecuted,
    /// Something is executed on a member that was primary's before it is known what that has more than the log.
    SurplusIgnored,
    /// The log gives back what a member has, whether or not it is on its disk.
    TrimmedTooEarly,
    /// What was done in an earlier life of a member's server counts.
    LifeIgnored,
    /// A session is begun although the server may have crashed since it was asked what it has: the driver's rule.
    #[cfg(test)]
    LifeUnchecked,
    /// A stream that begins again gives the log what it has been given: the driver's rule.
    #[cfg(test)]
    GivenTwice,
    /// A position is confirmed before the log has all that comes before it: the driver's rule.
    #[cfg(test)]
    ConfirmedTooEarly,
}

#[cfg(test)]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 17] = [
        Flaw::AcknowledgedTooEarly,
        Flaw::SentTooEarly,
        Flaw::LedgerForgotten,
        Flaw::ConflictsInParallel,
        Flaw::DifferenceIgnored,
        Flaw::ServesTooEarly,
        Flaw::GapIgnored,
        Flaw::FenceIgnored,
        Flaw::LeaseIgnored,
        Flaw::OwnCommitsExecuted,
        Flaw::TornExecuted,
        Flaw::SurplusIgnored,
        Flaw::TrimmedTooEarly,
        Flaw::LifeIgnored,
        Flaw::LifeUnchecked,
        Flaw::GivenTwice,
        Flaw::ConfirmedTooEarly,
    ];
}
