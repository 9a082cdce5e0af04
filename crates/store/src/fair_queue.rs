//! Work of many volumes, handed out fairly. Pure.
//!
//! Invariants: what one volume put in comes out in its order; a round has work of every volume that
//! has any, unless it took more than its share before; nobody's backlog makes another's round larger
//! or later.

use std::collections::{HashMap, VecDeque};

use crate::keys::VolumeId;

/// The least that a volume gets of a round, in bytes, however many others there are.
const MIN_SHARE: usize = 64 << 10;

/// Waiting work, one lane for each volume that has any.
pub(crate) struct FairQueue<T> {
    lanes: HashMap<VolumeId, Lane<T>>,
    /// Those lanes, the next one first.
    turns: VecDeque<VolumeId>,
    weight: usize,
}

struct Lane<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    /// What it took beyond its share of the last round, which the next ones make up for.
    debt: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue {
            lanes: HashMap::new(),
            turns: VecDeque::new(),
            weight: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// True if there is no work.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The weight of all of it.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The weight of a volume's work.
    pub fn weight_of(&self, volume: VolumeId) -> usize {
        self.lanes.get(&volume).map_or(0, |lane| lane.weight)
    }

    /// Adds work at the end of its volume's lane.
    pub fn push(&mut self, volume: VolumeId, item: T, weight: usize) {
        let lane = self.lanes.entry(volume).or_insert_with(|| {
            self.turns.push_back(volume);
            Lane {
                items: VecDeque::new(),
                weight: 0,
                debt: 0,
            }
        });
        lane.items.push_back((item, weight));
        lane.weight += weight;
        self.weight += weight;
    }

    /// Takes a round of about `bytes`, in equal shares (deficit round robin). Takes something if
    /// there is anything.
    pub fn take_round(&mut self, bytes: usize, into: &mut Vec<T>) {
        while into.is_empty() && !self.turns.is_empty() {
            let share = (bytes / self.turns.len()).max(MIN_SHARE);
            for _ in 0..self.turns.len() {
                self.take_turn(share, into);
            }
        }
    }

    fn take_turn(&mut self, share: usize, into: &mut Vec<T>) {
        let Some(volume) = self.turns.pop_front() else {
            return;
        };
        let lane = self.lanes.get_mut(&volume);
        let lane = lane.expect("a volume whose turn it is has a lane");
        let mut taken = lane.debt;
        while taken < share
            && let Some((item, weight)) = lane.items.pop_front()
        {
            into.push(item);
            taken += weight;
            lane.weight -= weight;
            self.weight -= weight;
        }
        lane.debt = taken.saturating_sub(share);
        self.end_turn(volume);
    }

    /// Takes one item of the next volume that `may` have its turn.
    pub fn take_one(&mut self, may: impl Fn(VolumeId) -> bool) -> Option<(VolumeId, T)> {
        let at = self.turns.iter().position(|volume| may(*volume))?;
        let volume = self.turns.remove(at)?;
        let lane = self.lanes.get_mut(&volume)?;
        let taken = lane.items.pop_front();
        if let Some((_, weight)) = &taken {
            lane.weight -= weight;
            self.weight -= weight;
        }
        self.end_turn(volume);
        taken.map(|(item, _)| (volume, item))
    }

    /// Who has more comes again after all others.
    fn end_turn(&mut self, volume: VolumeId) {
        let empty = |lane: &Lane<T>| lane.items.is_empty();
        if self.lanes.get(&volume).is_none_or(empty) {
            self.lanes.remove(&volume);
        } else {
            self.turns.push_back(volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn a_backlog_leaves_every_other_volume_its_place_in_each_round() {
        let mut lanes = FairQueue::default();
        for n in 0..1000 {
            lanes.push(VolumeId(1), (1, n), 8 * KIB);
        }
        lanes.push(VolumeId(2), (2, 0), 8 * KIB);
        let mut round = Vec::new();
        lanes.take_round(256 * KIB, &mut round);
        assert_eq!(round.iter().filter(|(volume, _)| *volume == 1).count(), 16);
        assert!(round.contains(&(2, 0)));
        assert_eq!(lanes.weight(), lanes.weight_of(VolumeId(1)));
    }

    #[test]
    fn excess_over_a_share_is_made_up_for() {
        let mut lanes = FairQueue::default();
        for n in 0..40 {
            lanes.push(VolumeId(1), (1, n), 300 * KIB);
            lanes.push(VolumeId(2), (2, n), 100 * KIB);
        }
        let mut taken = [0; 3];
        for _ in 0..12 {
            let mut round = Vec::new();
            lanes.take_round(200 * KIB, &mut round);
            for (volume, _) in round {
                taken[volume] += [0, 300, 100][volume];
            }
        }
        assert_eq!(taken, [0, 1200, 1200], "in KiB");
    }

    #[test]
    fn volumes_take_turns_one_by_one() {
        let mut lanes = FairQueue::default();
        for n in 0..3 {
            lanes.push(VolumeId(1), n, 1);
        }
        lanes.push(VolumeId(2), 10, 1);
        let mut next = || lanes.take_one(|_| true).map(|(_, item)| item);
        let order: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(order, [0, 10, 1, 2]);
        lanes.push(VolumeId(1), 3, 1);
        assert!(lanes.take_one(|volume| volume != VolumeId(1)).is_none());
        assert!(!lanes.is_empty());
    }

    proptest! {
        /// Nothing is lost, and each volume's work keeps its order.
        #[test]
        fn all_comes_out_in_its_volumes_order(
            items in proptest::collection::vec((0u32..5, 0usize..200_000), 0..200),
            bytes in 1usize..1_000_000,
        ) {
            let mut lanes = FairQueue::default();
            for (n, (volume, weight)) in items.iter().enumerate() {
                lanes.push(VolumeId(*volume), (*volume, n), *weight);
            }
            let mut out: Vec<(u32, usize)> = Vec::new();
            while !lanes.is_empty() {
                let mut round = Vec::new();
                lanes.take_round(bytes, &mut round);
                prop_assert!(!round.is_empty());
                out.extend(round);
            }
            prop_assert_eq!(lanes.weight(), 0);
            prop_assert_eq!(out.len(), items.len());
            for volume in 0..5 {
                let order: Vec<_> = out.iter().filter(|i| i.0 == volume).collect();
                prop_assert!(order.is_sorted());
            }
        }
    }
}
