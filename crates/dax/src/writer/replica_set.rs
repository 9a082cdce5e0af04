//! Sets of replicas.

use crate::ids::ReplicaId;

/// A set of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaSet(u32);

impl ReplicaSet {
    /// The most replicas that a client can have links to: two memberships at once.
    pub const MAX_REPLICAS: usize = 32;

    /// The first so many replicas.
    pub fn first(replicas: usize) -> ReplicaSet {
        ReplicaSet(((1u64 << replicas) - 1) as u32)
    }
    /// Adds one.
    pub fn insert(&mut self, replica: ReplicaId) {
        self.0 |= 1 << replica.0;
    }
    /// Takes one out.
    pub fn remove(&mut self, replica: ReplicaId) {
        self.0 &= !(1 << replica.0);
    }
    /// True if it is in.
    pub fn contains(self, replica: ReplicaId) -> bool {
        self.0 & (1 << replica.0) != 0
    }
    /// Those in either.
    pub fn union(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 | other.0)
    }
    /// Those in both.
    pub fn intersection(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 & other.0)
    }
    /// Those that are not in the other.
    pub fn without(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(self.0 & !other.0)
    }
    /// Number of replicas in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    /// True if there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// In order.
    pub fn iter(self) -> impl Iterator<Item = ReplicaId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = (left != 0).then(|| ReplicaId(left.trailing_zeros() as u8))?;
            left &= left - 1;
            Some(first)
        })
    }
}

impl FromIterator<ReplicaId> for ReplicaSet {
    fn from_iter<I: IntoIterator<Item = ReplicaId>>(replicas: I) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        replicas.into_iter().for_each(|replica| set.insert(replica));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_sets_are_sets() {
        let mut set = ReplicaSet::first(3);
        assert_eq!(set.len(), 3);
        set.remove(ReplicaId(1));
        assert_eq!(set.iter().collect::<Vec<_>>(), [ReplicaId(0), ReplicaId(2)]);
        assert_eq!(ReplicaSet::first(16).len(), 16);
        assert_eq!(
            ReplicaSet::first(3).without(set).iter().next(),
            Some(ReplicaId(1))
        );
    }
}
