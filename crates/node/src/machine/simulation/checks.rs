//! What must hold at every step.

use std::collections::{BTreeMap, HashMap, HashSet};

use std::ops::Bound;

use dax::ids::Epoch;

use super::zones::{Commit, MAJORITY, Owner, ZONES};

/// A promise that does not hold: which, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::machine) struct Broken(pub String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

pub(in crate::machine) type Held<T> = Result<T, Broken>;

pub(super) fn holds(what: bool, why: impl FnOnce() -> String) -> Held<()> {
    match what {
        true => Ok(()),
        false => Err(Broken(why())),
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Which zones accepted an epoch, from whom.
    votes: BTreeMap<Epoch, HashMap<Owner, HashSet<usize>>>,
    /// Who owns each epoch.
    owners: BTreeMap<Epoch, Owner>,
    stored: HashMap<Commit, HashSet<usize>>,
    /// What each owner found at the end of the log.
    found: BTreeMap<Epoch, HashSet<Commit>>,
    /// Commits that clients were told of.
    pub acknowledged: HashSet<Commit>,
}

impl Checks {
    /// The highest epoch that is owned.
    pub fn highest(&self) -> Epoch {
        self.owners.keys().next_back().copied().unwrap_or(Epoch(0))
    }

    /// The last owner before `epoch` that read the end of the log: whom a standby must have followed.
    pub fn before(&self, epoch: Epoch) -> Epoch {
        let before = self.found.range(..epoch).next_back();
        before.map_or(Epoch(0), |(epoch, _)| *epoch)
    }

    /// How many were ever owned.
    pub fn epochs(&self) -> usize {
        self.owners.len()
    }

    /// A zone accepted an epoch.
    pub fn voted(&mut self, zone: usize, epoch: Epoch, owner: Owner) -> Held<()> {
        let zones = self
            .votes
            .entry(epoch)
            .or_default()
            .entry(owner)
            .or_default();
        zones.insert(zone);
        if zones.len() < MAJORITY {
            return Ok(());
        }
        let first = *self.owners.entry(epoch).or_insert(owner);
        holds(first == owner, || {
            format!("one owner per epoch: {epoch} belongs to {first:?} and {owner:?}")
        })
    }

    /// A node says that it owns an epoch.
    pub fn claims(&self, owner: Owner, epoch: Epoch) -> Held<()> {
        let real = self.owners.get(&epoch).copied();
        holds(real == Some(owner), || {
            format!("{owner:?} serves under {epoch}, which belongs to {real:?}")
        })
    }

    /// A zone stored a commit.
    pub fn stored(&mut self, zone: usize, commit: Commit) -> Held<()> {
        let zones = self.stored.entry(commit).or_default();
        let fresh = zones.insert(zone);
        let durable = fresh && zones.len() == MAJORITY;
        match durable {
            true => self.was_found(commit),
            false => Ok(()),
        }
    }

    /// Every successor that has read the end of the log already has found this commit there.
    fn was_found(&self, commit: Commit) -> Held<()> {
        let after = (Bound::Excluded(commit.0), Bound::Unbounded);
        let mut successors = self.found.range(after);
        let without = successors.find(|(_, found)| !found.contains(&commit));
        holds(without.is_none(), || {
            let successor = without.map(|(epoch, _)| epoch);
            format!("{commit:?} became durable behind the back of {successor:?}")
        })
    }

    /// A node told its client that a commit is durable.
    pub fn acknowledged(&mut self, commit: Commit) -> Held<()> {
        let zones = self.stored.get(&commit).map_or(0, HashSet::len);
        self.acknowledged.insert(commit);
        self.was_found(commit)?;
        holds(zones >= MAJORITY, || {
            format!("{commit:?} was acknowledged with {zones} of {ZONES} zones")
        })
    }

    /// A new active has read the end of the log.
    pub fn recovered(&mut self, epoch: Epoch, found: HashSet<Commit>) -> Held<()> {
        let lost = self
            .acknowledged
            .iter()
            .find(|commit| commit.0 < epoch && !found.contains(commit));
        holds(lost.is_none(), || {
            format!("{epoch} does not find {lost:?}, which was acknowledged")
        })?;
        self.found.insert(epoch, found);
        Ok(())
    }
}
