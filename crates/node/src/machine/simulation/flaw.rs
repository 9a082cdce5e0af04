//! Rules that can be switched off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine) enum Flaw {
    /// Zones accept writes of older epochs.
    NoFence,
    /// Zones give an epoch to whoever asks, again and again.
    SharedEpoch,
    /// An epoch counts as owned once one zone accepted it.
    MinorityOwns,
    /// An active that is refused goes on.
    RefusalIgnored,
    /// A standby counts the time in which its own reads are not answered.
    NeverBlind,
    /// A node does not hear of a pause.
    PauseIgnored,
    // hazard: ST1
    /// A node does not hear that texts sort otherwise on it.
    MisfitIgnored,
    // hazard: NODE-12
    /// A takeover fences whoever came since it was decided.
    NewerIgnored,
    /// A new active reads the end of the log also where its epoch was not accepted.
    ReadsOutsideTheFence,
    /// A new active reads the end of the log from one zone.
    TailOfOneZone,
    /// A spare does not watch.
    SpareAsleep,
    /// A commit counts as durable once one zone has it.
    MinorityCommits,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 12] = [
        Flaw::NoFence,
        Flaw::SharedEpoch,
        Flaw::MinorityOwns,
        Flaw::RefusalIgnored,
        Flaw::NeverBlind,
        Flaw::PauseIgnored,
        Flaw::MisfitIgnored,
        Flaw::NewerIgnored,
        Flaw::ReadsOutsideTheFence,
        Flaw::TailOfOneZone,
        Flaw::SpareAsleep,
        Flaw::MinorityCommits,
    ];
}
