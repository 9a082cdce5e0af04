//! Limits that pools share: connections to one server in all pools of a database, or of a user.
//!
//! Invariants: no connection that was asked for here exceeds a limit (those that come from another process are there already);
//! whoever waits longest gets the first place that fits; nobody waits while there is a place.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::topology::Place;

/// Time after which a client gets the place of a connection that clients of another pool wait for as well: a new connection
/// costs more than one that is there.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// Order in which clients began to wait.
pub type Turn = u64;

/// Pools that share a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Those of a database, by the name that clients ask for.
    Database(Arc<str>),
    /// Those of a user.
    User(Arc<str>),
}

/// A pool's connections to one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Number of the pool.
    pub pool: u64,
    /// Server that the connection is to.
    pub place: Place,
    /// Database of the pool, by the name that clients ask for.
    pub database: Arc<str>,
    /// User of the pool.
    pub user: Arc<str>,
}

impl Owner {
    /// The groups that the pool is part of.
    pub fn groups(&self) -> [Group; 2] {
        [
            Group::Database(self.database.clone()),
            Group::User(self.user.clone()),
        ]
    }

    /// True if connections of both count for one limit.
    pub fn shares(&self, place: &Place, group: &Group) -> bool {
        self.place == *place && self.groups().contains(group)
    }

    fn is_beside(&self, other: &Owner) -> bool {
        self.place == other.place && self.pool == other.pool
    }
}

/// Most connections of groups to one server; 0: no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Most {
    /// Limit of each database that has none of its own.
    pub per_database: usize,
    /// Limit of each user that has none of its own.
    pub per_user: usize,
    /// Limits of these databases.
    pub databases: BTreeMap<String, usize>,
    /// Limits of these users.
    pub users: BTreeMap<String, usize>,
}

impl Most {
    /// The limit of a group; 0: none.
    pub fn of(&self, group: &Group) -> usize {
        let (own, name, general) = match group {
            Group::Database(name) => (&self.databases, name, self.per_database),
            Group::User(name) => (&self.users, name, self.per_user),
        };
        own.get(&**name).copied().unwrap_or(general)
    }
}

/// Answer to a client that needs a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It may be opened, and counts already.
    Opens,
    /// There is no place yet.
    Waits(Turn),
}

/// Notice to a client that waits for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaiterNotice {
    /// A connection may be opened, and counts already.
    Opens,
    /// One of two limits has a place: an idle connection may make one in the other.
    Looks,
}

/// Fate of a connection that its client gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// It stays in its pool.
    Stays,
    /// It goes to this client of its pool, who waits no longer.
    Goes(Turn),
    /// It is closed: it is one too many, or another pool needs its place.
    Closes,
}

#[derive(Debug)]
struct Waiter {
    owner: Owner,
    since: Instant,
}

/// Connections by group, and who waits for a place.
#[derive(Debug, Default)]
pub struct Quotas {
    most: Most,
    open: HashMap<(Place, Group), usize>,
    waiting: BTreeMap<Turn, Waiter>,
    last: Turn,
}

impl Quotas {
    /// Opens a connection, or waits for a place.
    pub fn ask(&mut self, owner: &Owner, now: Instant) -> Asked {
        if self.full(owner).is_empty() {
            self.adopt(owner);
            return Asked::Opens;
        }
        self.last += 1;
        let waiter = Waiter {
            owner: owner.clone(),
            since: now,
        };
        self.waiting.insert(self.last, waiter);
        Asked::Waits(self.last)
    }

    /// Counts a connection that is there, whatever the limits are.
    pub fn adopt(&mut self, owner: &Owner) {
        for group in owner.groups() {
            *self.open.entry((owner.place.clone(), group)).or_default() += 1;
        }
    }

    /// A connection has ended.
    pub fn close(&mut self, owner: &Owner) -> Vec<(Turn, WaiterNotice)> {
        for group in owner.groups() {
            let key = (owner.place.clone(), group);
            let left = self.open.get(&key).map_or(0, |count| count - 1);
            match left {
                0 => drop(self.open.remove(&key)),
                _ => drop(self.open.insert(key, left)),
            }
        }
        self.serve(Some(owner))
    }

    /// Somebody waits no longer.
    pub fn leave(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
    }

    /// True if this client still waits.
    pub fn is_waiting(&self, turn: Turn) -> bool {
        self.waiting.contains_key(&turn)
    }

    /// A client gives a connection back.
    pub fn comes_back(&mut self, owner: &Owner, now: Instant) -> Back {
        let mut groups = owner.groups().into_iter();
        if groups.any(|group| self.exceeds(&owner.place, &group)) {
            return Back::Closes;
        }
        let mut waiting = self.waiting.iter();
        let own = waiting.find(|(_, waiter)| waiter.owner.is_beside(owner));
        let mut waiting = self.waiting.iter();
        let other = waiting.find(|(_, waiter)| {
            !waiter.owner.is_beside(owner) && self.is_helped(&waiter.owner, owner)
        });
        match (own, other) {
            (None, None) => Back::Stays,
            (None, Some(_)) => Back::Closes,
            (Some((own, _)), Some((other, waiter)))
                if other < own && now.duration_since(waiter.since) >= PATIENCE =>
            {
                Back::Closes
            }
            (Some((own, _)), _) => {
                let own = *own;
                self.leave(own);
                Back::Goes(own)
            }
        }
    }

    /// Groups of a pool without a place.
    pub fn full(&self, owner: &Owner) -> Vec<Group> {
        let mut groups = owner.groups().to_vec();
        groups.retain(|group| !self.has_room(&owner.place, group, 0));
        groups
    }

    /// Goes by other limits from now on.
    pub fn set(&mut self, most: Most) -> Vec<(Turn, WaiterNotice)> {
        self.most = most;
        self.serve(None)
    }

    /// Groups that have more connections than they may.
    pub fn exceeded(&self) -> Vec<(Place, Group)> {
        let open = self.open.keys();
        let exceeded = open.filter(|(place, group)| self.exceeds(place, group));
        exceeded.cloned().collect()
    }

    /// True if a connection that comes back may have to go elsewhere.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.exceeded().is_empty()
    }

    /// The limit of a group; 0: none.
    pub fn most(&self, group: &Group) -> usize {
        self.most.of(group)
    }

    /// Connections of a group, by server.
    pub fn open(&self, group: &Group) -> BTreeMap<Place, usize> {
        let of = self.open.iter().filter(|((_, one), _)| one == group);
        of.map(|((place, _), count)| (place.clone(), *count))
            .collect()
    }

    fn count(&self, place: &Place, group: &Group) -> usize {
        let key = (place.clone(), group.clone());
        self.open.get(&key).copied().unwrap_or(0)
    }

    fn exceeds(&self, place: &Place, group: &Group) -> bool {
        let most = self.most.of(group);
        most > 0 && self.count(place, group) > most
    }

    /// True if the group has a place once so many of its connections have ended.
    fn has_room(&self, place: &Place, group: &Group, fewer: usize) -> bool {
        let most = self.most.of(group);
        most == 0 || self.count(place, group) < most + fewer
    }

    /// True if this pool can open a connection once one of `closing` has ended.
    fn is_helped(&self, owner: &Owner, closing: &Owner) -> bool {
        let mut groups = owner.groups().into_iter();
        groups.all(|group| {
            let fewer = usize::from(closing.shares(&owner.place, &group));
            self.has_room(&owner.place, &group, fewer)
        })
    }

    /// Gives places to those who wait, longest first. `closed` is who had a place that is free now.
    fn serve(&mut self, closed: Option<&Owner>) -> Vec<(Turn, WaiterNotice)> {
        let mut told = Vec::new();
        let turns: Vec<Turn> = self.waiting.keys().copied().collect();
        for turn in turns {
            let Some(Waiter { owner, .. }) = self.waiting.get(&turn) else {
                continue;
            };
            let owner = owner.clone();
            let full = self.full(&owner);
            if full.is_empty() {
                self.leave(turn);
                self.adopt(&owner);
                told.push((turn, WaiterNotice::Opens));
                continue;
            }
            let mut groups = owner.groups().into_iter();
            let has_gained = groups.any(|group| {
                let was = closed.is_none_or(|closed| closed.shares(&owner.place, &group));
                was && self.most.of(&group) > 0 && !full.contains(&group)
            });
            if has_gained {
                told.push((turn, WaiterNotice::Looks));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests;
