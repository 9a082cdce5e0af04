//! Zones in virtual time: the real committer, janitor, inventories and put rule of several zones over engines in memory,
//! driven step by step from one seed, with what goes wrong with disks and processes.
//!
//! ```text
//!   schedule ──▶ owners (what a writer does, in short) ──requests──▶ replica: committer, janitor ──▶ engine in memory
//!       │            ▲                                                    │
//!       │            └───────────────── answers ◀─────────────────────────┘
//!       └──▶ checks after every step: what was acknowledged, what was synced, who may write
//! ```
//!
//! `dax::simulation` has the real clients, and replicas that follow the rules of `dax::replica`; here are the real
//! replicas, and a client that is short enough to be right. A seed gives the same history every time.

mod checks;
mod children;
mod faults;
mod fills;
mod owner;
mod replica;
mod schedule;
mod scrub;
mod tests;
mod workload;

/// One thing done wrong on purpose, which the checks must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A read that fails and may succeed later is called damage, so nothing counts as stored there.
    UnreadableIsDamage,
    /// True if commits are missing is judged by the number that the keyspace `meta` has.
    MetaNumberAlone,
    /// What a replica acknowledges while it is being rebuilt counts.
    RebuildingAcksCount,
    /// A removal is forgotten although not all of its blocks could be dropped.
    UndoneForgotten,
    /// A part of a write is put behind whatever is there, without a look at the checksum.
    BaseBelieved,
    /// A write is refused because what it begins with cannot be read.
    BaseHoldsUp,
    /// An owner that seals does not say that pinned images are needed.
    // hazard: PAST-3
    PinForgotten,
    /// Parked blocks are not looked at when their image leaves.
    // hazard: PAST-6
    ParkedForEver,
    /// A child begins with epoch 1.
    // hazard: LAYER-1
    ChildFromEpochOne,
    /// Blocks of one version are read from the volume below.
    // hazard: LAYER-2
    SingleFromLayer,
    /// A replica that is being rebuilt says that the volume below does not have a block.
    // hazard: LAYER-3
    AbsentWhileRebuilding,
    /// An owner does not say that images are needed which children lie over.
    // hazard: LAYER-7
    ChildForgotten,
    /// A copy of a fill is put in the place of what the child wrote last.
    // hazard: LAYER-9
    CopyReplaces,
    /// A child is marked as filled before a pass has seen everything.
    // hazard: LAYER-10
    FilledEarly,
    /// A file that the child removed is copied all the same.
    // hazard: LAYER-11
    RemovedComesBack,
    /// A child is filled from a volume that is being rebuilt.
    // hazard: LAYER-12
    FilledWhileRebuilding,
    /// A child that was rebuilt counts as filled.
    // hazard: LAYER-12
    RebuiltIsFilled,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 17] = [
        Flaw::UnreadableIsDamage,
        Flaw::MetaNumberAlone,
        Flaw::RebuildingAcksCount,
        Flaw::UndoneForgotten,
        Flaw::BaseBelieved,
        Flaw::BaseHoldsUp,
        Flaw::PinForgotten,
        Flaw::ParkedForEver,
        Flaw::ChildFromEpochOne,
        Flaw::SingleFromLayer,
        Flaw::AbsentWhileRebuilding,
        Flaw::ChildForgotten,
        Flaw::CopyReplaces,
        Flaw::FilledEarly,
        Flaw::RemovedComesBack,
        Flaw::FilledWhileRebuilding,
        Flaw::RebuiltIsFilled,
    ];
}
