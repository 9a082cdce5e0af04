//! What is explored: how many clients do what how often, and which rule is broken, if any.

use dax::ids::{Epoch, Version};

/// Copies of the block (the paper's N).
pub const REPLICAS: usize = 3;
/// Copies that make a write durable (the paper's k).
pub const SYNC: usize = 2;
/// Replicas that answer a read: N-k+1.
pub const READ: usize = REPLICAS - SYNC + 1;
/// Clients: the first writer, and two that may take over.
pub const CLIENTS: usize = 3;

/// A client's place in the arrays.
pub type Who = usize;

/// As the clients call themselves in grants.
pub const NAMES: [&str; CLIENTS] = ["a", "b", "c"];

/// The protocol as it is, or with one rule broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Sound,
    /// Promotions are asked of any replica, and replicas answer them whatever they have accepted.
    UnfencedPromotion,
    /// Replicas answer promotions whatever they have accepted, but only those that have accepted
    /// the epoch are asked: one of the two guards is enough.
    PromotionGuardedByTheOwner,
    /// An owner reads from replicas that have not accepted its epoch.
    ReadsBeforeAcceptance,
    /// A promotion returns what a quorum agrees on, without asking all N or writing it again.
    QuorumAgrees,
    /// Each replica relabels its own version into the new epoch (DAX 5, Figure 5).
    Relabelling,
    /// Versions are compared by their counter alone.
    CounterAlone,
    /// One replica's acceptance makes an owner.
    EpochQuorumOfOne,
    /// Replicas take writes of epochs below the accepted one.
    UnfencedWrites,
    /// A replica answers before what it answers for is durable.
    AnswersBeforeCommit,
}

/// The bounds of one exploration.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub variant: Variant,
    /// Writes of contents that each client makes.
    pub writes: [u8; CLIENTS],
    /// Promotions that each client starts; after the first, its version list has lost the block.
    pub promotions: [u8; CLIENTS],
    /// True if the client reads.
    pub reads: [bool; CLIENTS],
    /// The epoch that each client proposes without looking; 0 for none.
    pub claims: [u8; CLIENTS],
    /// Clients that look before they propose, and look who won when they lose.
    pub contest: [bool; CLIENTS],
    /// No epoch above this is proposed.
    pub max_epoch: u8,
    /// Crashes of replicas, in all. With none, a replica commits each message by itself: a batch is
    /// the same messages with nothing in between, and a crash loses what was never answered.
    pub crashes: u8,
    /// States that differ in the names of replicas only are explored once.
    pub symmetric: bool,
}

impl Setup {
    /// Writer A, and B that takes over from it.
    pub fn takeover() -> Setup {
        Setup {
            variant: Variant::Sound,
            writes: [2, 1, 0],
            promotions: [0, 2, 0],
            reads: [false, true, false],
            claims: [0, 2, 0],
            contest: [false; CLIENTS],
            max_epoch: 2,
            crashes: 0,
            symmetric: true,
        }
    }

    /// A, B that takes over, and C that takes over from either.
    pub fn three_epochs() -> Setup {
        Setup {
            writes: [2, 0, 0],
            promotions: [0, 1, 1],
            reads: [false, false, true],
            claims: [0, 2, 3],
            max_epoch: 3,
            ..Setup::takeover()
        }
    }

    /// B and C look and claim at the same time, while A goes on.
    pub fn contest() -> Setup {
        Setup {
            writes: [1, 0, 0],
            promotions: [0, 1, 1],
            reads: [false; CLIENTS],
            claims: [0; CLIENTS],
            contest: [false, true, true],
            max_epoch: 3,
            ..Setup::takeover()
        }
    }

    /// A takeover while one replica crashes.
    pub fn crash() -> Setup {
        Setup {
            promotions: [0, 1, 0],
            writes: [2, 0, 0],
            crashes: 1,
            ..Setup::takeover()
        }
    }

    /// Three writes of A, which reads, too.
    pub fn wide_takeover() -> Setup {
        Setup {
            writes: [3, 1, 0],
            reads: [true, true, false],
            ..Setup::takeover()
        }
    }

    /// B writes and reads, too.
    pub fn wide_three_epochs() -> Setup {
        Setup {
            writes: [2, 1, 0],
            reads: [false, true, true],
            ..Setup::three_epochs()
        }
    }

    /// More to promote, and read.
    pub fn wide_contest() -> Setup {
        Setup {
            writes: [2, 0, 0],
            reads: [false, true, true],
            ..Setup::contest()
        }
    }

    /// Two crashes, while B writes and promotes again.
    pub fn wide_crash() -> Setup {
        Setup {
            writes: [2, 1, 0],
            promotions: [0, 2, 0],
            crashes: 2,
            ..Setup::crash()
        }
    }

    /// True if a rule is expected not to hold.
    pub fn is_broken(&self) -> bool {
        !matches!(
            self.variant,
            Variant::Sound | Variant::PromotionGuardedByTheOwner
        )
    }

    /// The same bounds with a rule broken, with the replicas told apart, so that the schedule that is
    /// found can be read.
    pub fn broken(self, variant: Variant) -> Setup {
        Setup {
            variant,
            symmetric: false,
            ..self
        }
    }

    /// How many replicas must accept an epoch (the larger of a majority and N-k+1).
    pub fn epoch_quorum(&self) -> usize {
        match self.variant {
            Variant::EpochQuorumOfOne => 1,
            _ => (REPLICAS / 2 + 1).max(READ),
        }
    }

    /// Where a client's counter starts. Each counts by itself, but the paper's timestamps go on from
    /// epoch to epoch, and its relabelling needs that.
    pub fn first_seq(&self, who: Who) -> u8 {
        match (self.variant, who) {
            (Variant::Relabelling, 1) => 4,
            _ => 0,
        }
    }

    /// True if a replica puts `new` in the place of `stored`.
    pub fn replaces(&self, new: Stamp, stored: Option<Stamp>) -> bool {
        match self.variant {
            Variant::CounterAlone => stored.is_none_or(|stored| new.seq > stored.seq),
            _ => dax::replica::replaces(new.version(), stored.map(Stamp::version)),
        }
    }

    /// True if a client takes `one` for newer than `other`.
    pub fn is_newer(&self, one: Stamp, other: Stamp) -> bool {
        match self.variant {
            Variant::CounterAlone => one.seq > other.seq,
            _ => one > other,
        }
    }
}

/// A [`Version`] in two bytes, for states that are small.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub epoch: u8,
    pub seq: u8,
}

impl Stamp {
    pub fn version(self) -> Version {
        Version {
            epoch: Epoch(self.epoch.into()),
            seq: self.seq.into(),
        }
    }
}
