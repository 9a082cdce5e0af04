//! Deliberate breakage: what the checkers must catch.
//!
//! What the client itself must do, it leaves out, in places that exist in tests only; what Cassandra must do, and what
//! the database on top must, is left out around it.

use std::time::Duration;

use crate::lease::{Terms, Time};

/// One rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A new owner begins at once (L2).
    NoLeaseWait,
    /// A new owner waits half of the lease (L2).
    HalfLeaseWait,
    /// A lease is counted from the answer to its renewal (L1).
    LeaseFromAnswer,
    /// A renewal that timed out counts (L1).
    UnknownRenewalCounts,
    /// A claim counts from the last renewal it saw, without making sure that there was no other (L5).
    RenewalsNotCompared,
    // hazard: CASS-3
    /// The gate is passed before the writes are acknowledged.
    GateBeforeWrites,
    // hazard: CASS-3
    /// There is no gate.
    NoGate,
    // hazard: CASS-3
    /// ReadPromote does not pass the gate.
    PromotionWithoutGate,
    /// A look at the epoch row serves also who came after it began (the gate without a lease).
    LookServesLatecomers,
    // hazard: CASS-1
    /// A read by an owner believes what an older epoch says of absence (C2).
    OldAbsenceBelieved,
    // hazard: CASS-2
    /// Several writes of one record are under way at a time.
    PutsOverlap,
    /// Tables with `read_repair = 'NONE'`.
    NoReadRepair,
    /// `commitlog_sync: periodic` with direct access.
    PeriodicCommitLog,
    /// A write counts at one replica.
    WrittenAtOne,
    /// An answer of one replica is believed, whatever its version.
    UncheckedReads,
    /// ReadPromote writes nothing.
    PromotionWithoutRewrite,
    /// ReadPromote writes nothing where it finds nothing (C2).
    AbsenceNotPromoted,
    /// ReadPromote writes a tombstone where it finds nothing (C2).
    AbsenceAsTombstone,
    /// A block that is written again while its write is pending keeps the timestamp (C1).
    SameTimestampTwice,
    /// Timestamps without an epoch: a clock's microseconds, as Cassandra's own clients make them.
    ClockTimestamps,
    /// An owner reclaims although it cannot put its seal (the gate).
    ReclaimWithoutGate,
    /// A seal is put before what it covers is synced.
    SealBeforeSync,
    // hazard: LAYER-1
    /// A layered volume begins with epoch 1.
    FirstEpochIgnored,
    // hazard: LAYER-2
    /// A block of one version is read from the volume below.
    SingleFallsThrough,
    // hazard: LAYER-2
    /// All that the volume below has counts as its image.
    ImageNotAsked,
    // hazard: CASS-5
    /// Where the volume below cannot be asked, there is nothing.
    UnaskedIsAbsent,
    // hazard: LAYER-10
    /// A block that is found in a volume below, or nowhere, counts although the volume may have been filled meanwhile.
    BelowNotSettled,
    // hazard: LAYER-10
    /// A volume that is filled needs the others no more when the copies begin.
    FilledTooEarly,
    // hazard: LAYER-2
    /// Copies are of all that the volume below has.
    FilledFromAll,
}

impl Flaw {
    /// The schedules of the tests must catch each.
    pub const ALL: [Flaw; 29] = [
        Flaw::NoLeaseWait,
        Flaw::HalfLeaseWait,
        Flaw::LeaseFromAnswer,
        Flaw::UnknownRenewalCounts,
        Flaw::RenewalsNotCompared,
        Flaw::NoGate,
        Flaw::GateBeforeWrites,
        Flaw::PromotionWithoutGate,
        Flaw::LookServesLatecomers,
        Flaw::OldAbsenceBelieved,
        Flaw::PutsOverlap,
        Flaw::ReclaimWithoutGate,
        Flaw::NoReadRepair,
        Flaw::PeriodicCommitLog,
        Flaw::WrittenAtOne,
        Flaw::UncheckedReads,
        Flaw::PromotionWithoutRewrite,
        Flaw::AbsenceNotPromoted,
        Flaw::AbsenceAsTombstone,
        Flaw::SameTimestampTwice,
        Flaw::ClockTimestamps,
        Flaw::SealBeforeSync,
        Flaw::FirstEpochIgnored,
        Flaw::SingleFallsThrough,
        Flaw::ImageNotAsked,
        Flaw::UnaskedIsAbsent,
        Flaw::BelowNotSettled,
        Flaw::FilledTooEarly,
        Flaw::FilledFromAll,
    ];

    /// When a claimant goes on that is to wait until then, if it is to be too early.
    pub fn wait_ends(self, until: Time) -> Option<Time> {
        match self {
            Flaw::NoLeaseWait => Some(Duration::ZERO),
            Flaw::HalfLeaseWait => Some(until.saturating_sub(Terms::default().lease / 2)),
            _ => None,
        }
    }
}
