//! Rules that the simulation can switch off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Output is released when its checkpoint is made, not when the standby holds it.
    ReleasedEarly,
    /// A standby says that it holds a checkpoint when its first part is there.
    AcknowledgedEarly,
    /// A host that has taken over goes on acknowledging.
    AcknowledgedLate,
    /// A host that lost its standby releases output before the record says that it runs alone.
    AloneUnrecorded,
    /// A standby takes over though the record does not name it.
    UnnamedTakeover,
    /// A record is written whoever owns the highest epoch.
    FenceIgnored,
    /// A standby takes over with half a checkpoint applied.
    HalfApplied,
    /// The standby's disk is written as writes come in, not by whole checkpoints.
    DiskUnbuffered,
    /// A page that was written is left out of a checkpoint.
    PageDropped,
    /// Output waits for the standby only once the record names it.
    HeldLate,
    /// A confirmation that belongs to an earlier following counts.
    SessionsIgnored,
    /// Any checkpoint that is made after an operator wanted the standby to take over counts as the last one.
    AnyIsLast,
    /// A host whose record is on the zones does not know it for its own if it did not hear that it was written.
    OwnRecordUnknown,
    /// Output that waits for no checkpoint is heard however long the host stood still.
    DeadlineIgnored,
    /// A host takes for the time what it was when it looked last.
    StaleClock,
    /// A machine is started from a disk that may have lost what was not synced.
    UnsyncedStarted,
    /// A host that took over says that its disk is synced when it is not.
    SyncUnrecorded,
}

#[cfg(test)]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 17] = [
        Flaw::ReleasedEarly,
        Flaw::AcknowledgedEarly,
        Flaw::AcknowledgedLate,
        Flaw::AloneUnrecorded,
        Flaw::UnnamedTakeover,
        Flaw::FenceIgnored,
        Flaw::HalfApplied,
        Flaw::DiskUnbuffered,
        Flaw::PageDropped,
        Flaw::HeldLate,
        Flaw::SessionsIgnored,
        Flaw::AnyIsLast,
        Flaw::OwnRecordUnknown,
        Flaw::DeadlineIgnored,
        Flaw::StaleClock,
        Flaw::UnsyncedStarted,
        Flaw::SyncUnrecorded,
    ];
}
