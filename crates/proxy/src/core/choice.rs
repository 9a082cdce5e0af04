//! Which standby answers a read: one that has what the read must see, near before far, and of those the least busy.

use std::cmp::Reverse;

use volume::lsn::Lsn;

use super::topology::{NodeName, Standby, Topology};

/// Connections in use, by standby.
pub trait Load: Sync {
    /// Those to this one.
    fn of(&self, standby: &NodeName) -> usize;
}

/// A read that looks for a standby.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Position that the standby must have replayed.
    pub required: Lsn,
    /// Turn of the read in its session: it decides between standbys that are equally good.
    pub turn: u64,
    /// One read of so many warms a spare; 0: none.
    pub spare_every: u64,
    /// Standbys that go before others.
    pub near: &'a [String],
}

/// A standby for a read, or none.
pub fn choose<'a>(
    topology: &'a Topology,
    load: &dyn Load,
    wanted: Wanted<'_>,
) -> Option<&'a Standby> {
    let Wanted {
        required,
        turn,
        spare_every,
        near,
    } = wanted;
    let is_for_spare = spare_every > 0 && turn % spare_every == spare_every - 1;
    // With nobody else, spares are what they were kept for.
    let are_alone = topology.standbys.iter().all(|standby| standby.is_spare);
    let fitting = topology.standbys.iter();
    let fitting: Vec<&Standby> = fitting
        .filter(|standby| standby.replayed >= required)
        .collect();
    let spare = are_alone || is_for_spare && fitting.iter().any(|standby| standby.is_spare);
    let mut best: Vec<&Standby> = Vec::new();
    let mut rank = None;
    for standby in fitting.into_iter().filter(|one| one.is_spare == spare) {
        let is_near = near.iter().any(|name| **name == *standby.name);
        let own = Some((is_near, Reverse(load.of(&standby.name))));
        if own > rank {
            rank = own;
            best.clear();
        }
        if own == rank {
            best.push(standby);
        }
    }
    let at = turn.checked_rem(best.len() as u64)?;
    best.get(usize::try_from(at).unwrap_or(0)).copied()
}

/// Nothing is in use.
#[cfg(test)]
pub struct NoLoad;

#[cfg(test)]
impl Load for NoLoad {
    fn of(&self, _: &NodeName) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Busy(&'static [(&'static str, usize)]);

    impl Load for Busy {
        fn of(&self, standby: &NodeName) -> usize {
            let found = self.0.iter().find(|(name, _)| *name == &**standby);
            found.map_or(0, |(_, count)| *count)
        }
    }

    fn standby(name: &str, replayed: u64, is_spare: bool) -> Standby {
        Standby {
            name: name.into(),
            address: name.into(),
            replayed: Lsn(replayed),
            run: None,
            is_spare,
        }
    }

    fn topology() -> Topology {
        Topology {
            standbys: vec![
                standby("a", 100, false),
                standby("b", 90, false),
                standby("c", 100, true),
            ],
            ..Topology::default()
        }
    }

    fn wanted(required: u64, turn: u64) -> Wanted<'static> {
        Wanted {
            required: Lsn(required),
            turn,
            spare_every: 10,
            near: &[],
        }
    }

    fn chosen(required: u64, turn: u64) -> Option<String> {
        let chosen = choose(&topology(), &NoLoad, wanted(required, turn))?.clone();
        Some(chosen.name.to_string())
    }

    #[test]
    fn standbys_without_the_version_are_not_chosen() {
        assert_eq!(chosen(95, 0).as_deref(), Some("a"));
        assert_eq!(chosen(95, 1).as_deref(), Some("a"));
        assert_eq!(chosen(101, 0), None);
        assert_eq!(chosen(0, 1).as_deref(), Some("b"));
    }

    #[test]
    fn a_spare_gets_its_share() {
        assert_eq!(chosen(0, 9).as_deref(), Some("c"));
        assert_ne!(chosen(0, 8).as_deref(), Some("c"));
    }

    #[test]
    fn a_spare_serves_when_nobody_else_is_there() {
        let mut topology = topology();
        topology.standbys.retain(|standby| standby.is_spare);
        let chosen = choose(&topology, &NoLoad, wanted(100, 3));
        assert_eq!(chosen.map(|standby| &*standby.name), Some("c"));
    }

    #[test]
    fn the_least_busy_answers() {
        let topology = topology();
        let of = |load, required, turn| {
            let chosen = choose(&topology, &load, wanted(required, turn));
            chosen.map(|standby| &*standby.name)
        };
        for turn in 0..9 {
            assert_eq!(of(Busy(&[("a", 2), ("b", 1)]), 0, turn), Some("b"));
            assert_eq!(of(Busy(&[("a", 9), ("b", 1)]), 95, turn), Some("a"));
        }
        assert_eq!(of(Busy(&[("c", 7)]), 0, 9), Some("c"), "its share");
        let equal = Busy(&[("a", 3), ("b", 3)]);
        assert_eq!(of(equal, 0, 0), Some("a"));
        assert_eq!(of(Busy(&[("a", 3), ("b", 3)]), 0, 1), Some("b"));
    }

    #[test]
    fn near_standby_goes_first_if_it_has_the_version() {
        let topology = topology();
        let near = ["b".to_owned(), "elsewhere".to_owned()];
        let of = |required, turn| {
            let wanted = Wanted {
                near: &near,
                ..wanted(required, turn)
            };
            let chosen = choose(&topology, &Busy(&[("b", 50)]), wanted);
            chosen.map(|standby| &*standby.name)
        };
        for turn in 0..9 {
            assert_eq!(of(0, turn), Some("b"));
            assert_eq!(of(95, turn), Some("a"));
        }
        assert_eq!(of(0, 9), Some("c"), "a spare has its share wherever it is");
    }
}
