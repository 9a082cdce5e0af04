//! The rules of one replica: what it accepts, what it replaces, what it shows and what it may drop.
//!
//! Pure decisions, shared by the zone server and the in-process backend, so that there is one place
//! that says what a replica does. They keep the invariants that the whole protocol rests on:
//! an accepted epoch never goes down, and a stored version never goes down.

use crate::ids::{Epoch, Generation, Version};
use crate::storage::{EpochGrant, Retention};

/// Why a replica refuses a writer's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A higher epoch was accepted. For good.
    Fenced,
    /// The epoch is higher than the accepted one: its owner must announce it (`OwnEpoch`) first.
    Unannounced,
}

/// What became of a membership that a replica was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is newer than the one that was kept; it must be durable before anybody hears of it.
    New,
    /// It is not newer.
    Old,
}

/// What became of an `OwnEpoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Accepted; the new grant must be durable before anybody hears of it.
    Accepted,
    /// It was accepted before, from the same owner; nothing to store.
    Repeated,
    /// Another owner, or a higher epoch, was first.
    Refused,
}

/// The epoch that a replica has accepted for a volume.
///
/// ```text
///   none ──own(1,a)──▶ 1 of a ──own(2,b)──▶ 2 of b ──own(5,a)──▶ 5 of a      never back
///                        │ own(1,b): refused, first come
///                        └ own(1,b) settled: 1 of b (a cannot have won)
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    grant: EpochGrant,
}

impl Default for Fence {
    fn default() -> Fence {
        Fence::new(EpochGrant {
            epoch: Epoch::NONE,
            owner: String::new(),
        })
    }
}

impl Fence {
    /// A fence as it was stored.
    pub fn new(grant: EpochGrant) -> Fence {
        Fence { grant }
    }

    /// What was accepted last.
    pub fn grant(&self) -> &EpochGrant {
        &self.grant
    }

    /// First come per epoch; the same owner may repeat; lower is refused. `settled` says that a
    /// quorum has accepted this owner, which ends a tie inside the epoch.
    pub fn own(&mut self, epoch: Epoch, owner: &str, settled: bool) -> Claim {
        if epoch == Epoch::NONE || epoch > Epoch::MAX || epoch < self.grant.epoch {
            return Claim::Refused;
        }
        if epoch == self.grant.epoch {
            if owner == self.grant.owner {
                return Claim::Repeated;
            }
            // Below the first epoch of a layered volume.
            if !settled || self.grant.owner.is_empty() {
                return Claim::Refused;
            }
        }
        self.grant = EpochGrant {
            epoch,
            owner: owner.to_owned(),
        };
        Claim::Accepted
    }

    /// True if a writer of `epoch` may write, promote, put owner's records or remove.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn admit(&self, epoch: Epoch) -> Result<(), Refusal> {
        match epoch.cmp(&self.grant.epoch) {
            std::cmp::Ordering::Less => Err(Refusal::Fenced),
            std::cmp::Ordering::Equal if !self.grant.owner.is_empty() => Ok(()),
            _ => Err(Refusal::Unannounced),
        }
    }
}

/// The connection on which the writes of the accepted epoch come.
///
/// An epoch has one writer, and the writer has one connection to a replica at a time. What is still on its way on a
/// connection that it gave up is sent again on the next one, and is older than what has come there since. Usually its
/// version says so; a damaged copy has none, and would be replaced by something older that then passes for intact.
///
/// ```text
///   none ──write of epoch e on c──▶ e on c ──on d > c, or of epoch f > e──▶ e on d ...     never back
///                                     └ of epoch e on b < c: left
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteLink {
    epoch: Epoch,
    connection: u64,
}

impl WriteLink {
    /// True if a write that the fence admits counts, on a connection with this number; later connections have higher
    /// ones. If not, the writer has given the connection up.
    pub fn admit(&mut self, epoch: Epoch, connection: u64) -> bool {
        let next = WriteLink { epoch, connection };
        let counts = (epoch, connection) >= (self.epoch, self.connection);
        if counts {
            *self = next;
        }
        counts
    }
}

/// True if a client that goes by the membership of version `known` may count an answer of a replica that
/// keeps that of version `kept`. Questions under an epoch need no such look: whoever owned it met every quorum
/// that its predecessors' memberships were kept by, and nobody else makes newer ones.
pub fn may_count(known: Version, kept: Version) -> bool {
    known >= kept
}

/// What a replica that keeps the membership of version `kept` makes of one that it is told.
pub fn hear(kept: Version, told: Version) -> Heard {
    match told > kept {
        true => Heard::New,
        false => Heard::Old,
    }
}

/// True if `new` takes the place of `stored` (of a block in one generation, or of a record): newer
/// replaces, older or equal has no effect and still counts as acknowledged.
pub fn replaces(new: Version, stored: Option<Version>) -> bool {
    stored.is_none_or(|stored| new > stored)
}

/// Which of a block's generations a read as of `up_to` shows. `stored` in any order.
pub fn shown(
    stored: impl IntoIterator<Item = Generation>,
    up_to: Generation,
) -> Option<Generation> {
    stored.into_iter().filter(|g| *g <= up_to).max()
}

/// Which of a block's generations may be dropped. `stored` in any order.
///
/// Kept are: for each image its newest generation, everything above the end of every image, and
/// [`Generation::SINGLE`], which only removal gives back. Without images nothing is dropped.
pub fn prune(stored: &[Generation], retention: &Retention) -> Vec<Generation> {
    let Some(end) = retention.images.iter().map(|i| i.end()).max() else {
        return Vec::new();
    };
    let mut sorted = stored.to_vec();
    sorted.sort_unstable();
    let newest = retention.images.iter();
    let mut kept: Vec<Generation> = newest.filter_map(|i| i.newest_of(&sorted)).collect();
    kept.sort_unstable();
    let droppable =
        |g: &&Generation| **g <= end && **g != Generation::SINGLE && kept.binary_search(g).is_err();
    stored.iter().filter(droppable).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Lineage, Span};

    fn g(epoch: u32, number: u32) -> Generation {
        Generation {
            epoch: Epoch(epoch),
            number,
        }
    }

    #[test]
    fn the_first_owner_of_an_epoch_keeps_it() {
        let mut fence = Fence::default();
        let table = [
            (0, "a", false, Claim::Refused),
            (2, "a", false, Claim::Accepted),
            (2, "a", false, Claim::Repeated),
            (2, "b", false, Claim::Refused),
            (1, "b", true, Claim::Refused),
            (2, "b", true, Claim::Accepted),
            (5, "a", false, Claim::Accepted),
            (4, "b", true, Claim::Refused),
            (Epoch::MAX.0 + 1, "b", true, Claim::Refused),
        ];
        for (epoch, owner, settled, expected) in table {
            assert_eq!(
                fence.own(Epoch(epoch), owner, settled),
                expected,
                "{epoch} {owner}"
            );
        }
        assert_eq!(fence.grant().epoch, Epoch(5));
        assert_eq!(fence.grant().owner, "a");
    }

    // hazard: LAYER-1
    #[test]
    fn nobody_owns_an_epoch_below_the_first_of_a_layered_volume() {
        let mut fence = Fence::new(EpochGrant {
            epoch: Epoch(4),
            owner: String::new(),
        });
        for (epoch, settled) in [(1, false), (4, false), (4, true)] {
            assert_eq!(fence.own(Epoch(epoch), "a", settled), Claim::Refused);
            assert!(fence.admit(Epoch(epoch)).is_err());
        }
        assert_eq!(fence.own(Epoch(5), "a", false), Claim::Accepted);
        assert_eq!(fence.admit(Epoch(5)), Ok(()));
    }

    #[test]
    fn writes_need_the_accepted_epoch() {
        let mut fence = Fence::default();
        assert_eq!(fence.admit(Epoch::NONE), Err(Refusal::Unannounced));
        fence.own(Epoch(2), "a", false);
        assert_eq!(fence.admit(Epoch(1)), Err(Refusal::Fenced));
        assert_eq!(fence.admit(Epoch(2)), Ok(()));
        assert_eq!(fence.admit(Epoch(3)), Err(Refusal::Unannounced));
    }

    // hazard: ZONE-38
    #[test]
    fn writes_come_on_the_latest_connection_of_the_latest_epoch() {
        let mut link = WriteLink::default();
        assert!(link.admit(Epoch(1), 5));
        assert!(link.admit(Epoch(1), 5));
        assert!(!link.admit(Epoch(1), 4), "given up");
        assert!(link.admit(Epoch(1), 7));
        assert!(!link.admit(Epoch(1), 5), "given up");
        assert!(link.admit(Epoch(2), 3), "another client's");
        assert!(!link.admit(Epoch(1), 9), "the epoch is over");
    }

    #[test]
    fn versions_compare_epoch_first() {
        let v = |e, seq| Version {
            epoch: Epoch(e),
            seq,
        };
        assert!(replaces(v(1, 1), None));
        assert!(replaces(v(2, 1), Some(v(1, 9))));
        assert!(!replaces(v(1, 9), Some(v(2, 1))));
        assert!(!replaces(v(2, 1), Some(v(2, 1))));
    }

    #[test]
    fn a_read_shows_the_newest_generation_that_counts() {
        let stored = [g(1, 1), g(2, 4), g(1, 3)];
        assert_eq!(shown(stored, Generation::MAX), Some(g(2, 4)));
        assert_eq!(shown(stored, g(2, 3)), Some(g(1, 3)));
        assert_eq!(shown(stored, g(1, 0)), None);
    }

    #[test]
    fn pruning_keeps_what_some_image_shows() {
        let stored = [g(1, 1), g(1, 2), g(1, 3), g(1, 4)];
        let keep = |images: Vec<Lineage>| prune(&stored, &Retention { images });
        assert_eq!(keep(vec![]), vec![], "no images: nobody said anything yet");
        assert_eq!(keep(vec![Lineage::up_to(g(1, 2))]), vec![g(1, 1)]);
        assert_eq!(
            keep(vec![Lineage::up_to(g(1, 2)), Lineage::up_to(g(1, 4))]),
            vec![g(1, 1), g(1, 3)]
        );
        assert_eq!(keep(vec![Lineage::up_to(g(1, 0))]), vec![]);
    }

    #[test]
    fn pruning_drops_what_a_takeover_left_out() {
        let stored = [g(1, 2), g(1, 5), g(2, 1)];
        let image = Lineage(vec![Span {
            from: Generation::SINGLE,
            to: g(1, 3),
        }])
        .continued(g(2, 0));
        let retention = Retention {
            images: vec![image.truncated(g(1, 3)), image],
        };
        assert_eq!(prune(&stored, &retention), vec![g(1, 5)]);
    }

    #[test]
    fn single_versions_are_never_pruned() {
        let retention = Retention {
            images: vec![Lineage::up_to(g(9, 9))],
        };
        assert_eq!(prune(&[Generation::SINGLE], &retention), vec![]);
        let below = [Generation::SINGLE, g(1, 1)];
        assert_eq!(prune(&below, &retention), vec![]);
    }
}
