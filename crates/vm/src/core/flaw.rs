//! Rules that the simulation can switch off, to see that somebody notices.

/// One rule that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    // hazard: VM-1
    /// Output is released when its checkpoint is made, not when the standby holds it.
    ReleasedEarly,
    // hazard: VM-2
    /// A standby says that it holds a checkpoint when its first part is there.
    AcknowledgedEarly,
    // hazard: VM-3
    /// A host that has taken over goes on acknowledging.
    AcknowledgedLate,
    // hazard: VM-5
    /// A host that lost its standby releases output before the record says that it runs alone.
    AloneUnrecorded,
    // hazard: VM-6
    /// A standby takes over though the record does not name it.
    UnnamedTakeover,
    // hazard: VM-5
    /// A record is written whoever owns the highest epoch.
    FenceIgnored,
    // hazard: VM-7
    /// A standby takes over with half a checkpoint applied.
    HalfApplied,
    // hazard: VM-8
    /// The standby's disk is written as writes come in, not by whole checkpoints.
    DiskUnbuffered,
    // hazard: VM-9
    /// A page that was written is left out of a checkpoint.
    PageDropped,
    // hazard: VM-1
    /// Output waits for the standby only once the record names it.
    HeldLate,
    // hazard: VM-4
    /// A confirmation that belongs to an earlier following counts.
    SessionsIgnored,
    // hazard: VM-21
    /// Any checkpoint that is made after an operator wanted the standby to take over counts as the last one.
    AnyIsLast,
    // hazard: VM-20
    /// A host whose record is on the zones does not know it for its own if it did not hear that it was written.
    OwnRecordUnknown,
    // hazard: VM-33
    /// Output that waits for no checkpoint is heard however long the host stood still.
    DeadlineIgnored,
    // hazard: VM-33
    /// A host takes for the time what it was when it looked last.
    StaleClock,
    // hazard: VM-34
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
