//! Deliberate breakage: what the checkers must catch. Built for tests only.

/// One thing done wrong, at one place of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// ReadPromote is a plain quorum read (DAX 4 without 5).
    NoPromotion,
    /// A write counts as synced at one replica of N.
    SyncedAtOne,
    /// Versions are compared by a clock's timestamp alone, as in the text of DAX 5; the clocks of two
    /// machines differ by up to 50 ms.
    TimestampsAlone,
    /// Replicas take writes of any epoch.
    NoFence,
    /// An epoch counts as owned once one replica has accepted it.
    OwnedAtOne,
    /// Replicas acknowledge what is not durable yet.
    AckBeforeCommit,
    /// Read(1) is not checked against the version list.
    UncheckedReads,
    /// A listed block's answer is believed if it is of the right generation, whatever its version.
    GenerationBelieved,
    /// Entries of pending writes are evicted from the version list.
    PendingEvicted,
    /// A repair sends what it read as a new version.
    RepairAsNewVersion,
    /// A replica that lost its disk counts in quorums at once.
    RebuildingCounts,
    /// A pending write of a block replaces an older one of another generation.
    GenerationsMerged,
    /// A seal is written before its cut is synced.
    SealBeforeSync,
    /// A record counts as put at one replica.
    PutAtOne,
    // hazard: ZONE-1
    /// Two entries of a client's configuration that lead to one store count as two replicas.
    StoreCountsTwice,
    /// What a replica acknowledged before it lost its disk still counts.
    LostAcksCount,
    /// An owner tells a position without proof that its epoch still stands.
    PositionWithoutProof,
    // hazard: ZONE-2
    /// Who counts by an older membership than a store keeps is not told, and answered all the same: a quorum of
    /// each of two memberships.
    OldMembersCount,
    /// Who comes to the members counts before it has everything.
    JoinsUnfilled,
    // hazard: ZONE-46
    /// A replica that lost its disk counts again after it was compared with one other.
    RebuiltFromOne,
    // hazard: ZONE-46
    /// Replicas answer an owner whose epoch they have not accepted, and their answers count.
    UnadmittedReads,
    // hazard: ZONE-46
    /// Replicas let go of versions for any owner, deposed ones too.
    UnfencedRemoval,
    // hazard: ZONE-4
    /// A store that lacks what it had acknowledged counts as before.
    WentBackCounts,
    // hazard: D1, D2
    /// Replicas put what a write sends behind whatever they have, without a look at the checksum.
    BaseBelieved,
    /// A write that a replica refuses again and again is waited for, and so is what a scrub sends it.
    RefusedForEver,
    // hazard: D5
    /// A writer whose copy of a write has changed in memory sends it again and again.
    ChangedKept,
    // hazard: U2
    /// More is allowed to be written although not all who are there read it.
    RaisedUnasked,
    // hazard: U2
    /// A client that does not read what may be written is let in.
    OldLetIn,
    // hazard: LAYER-1
    /// A layered volume begins with epoch 1.
    ChildFromEpochOne,
    // hazard: LAYER-2
    /// A block of one version is read from the volume below.
    SingleFromBelow,
    // hazard: LAYER-3
    /// A replica that has lost the volume below says that it does not have a block.
    AbsentBelow,
    // hazard: LAYER-8
    /// A layered volume exchanges its members before the volume below has exchanged its own.
    ChildExchangedAlone,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 32] = [
        Flaw::NoPromotion,
        Flaw::SyncedAtOne,
        Flaw::TimestampsAlone,
        Flaw::NoFence,
        Flaw::OwnedAtOne,
        Flaw::AckBeforeCommit,
        Flaw::UncheckedReads,
        Flaw::GenerationBelieved,
        Flaw::PendingEvicted,
        Flaw::RepairAsNewVersion,
        Flaw::RebuildingCounts,
        Flaw::GenerationsMerged,
        Flaw::SealBeforeSync,
        Flaw::PutAtOne,
        Flaw::StoreCountsTwice,
        Flaw::LostAcksCount,
        Flaw::PositionWithoutProof,
        Flaw::OldMembersCount,
        Flaw::JoinsUnfilled,
        Flaw::RebuiltFromOne,
        Flaw::UnadmittedReads,
        Flaw::UnfencedRemoval,
        Flaw::WentBackCounts,
        Flaw::BaseBelieved,
        Flaw::RefusedForEver,
        Flaw::ChangedKept,
        Flaw::RaisedUnasked,
        Flaw::OldLetIn,
        Flaw::ChildFromEpochOne,
        Flaw::SingleFromBelow,
        Flaw::AbsentBelow,
        Flaw::ChildExchangedAlone,
    ];
}
