use std::collections::HashSet;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn owner(pool: u64, database: &str, user: &str) -> Owner {
    Owner {
        pool,
        place: Place::Active,
        database: database.into(),
        user: user.into(),
    }
}

fn limited(per_database: usize, per_user: usize) -> Quotas {
    let mut quotas = Quotas::default();
    let most = Most {
        per_database,
        per_user,
        ..Most::default()
    };
    assert_eq!(quotas.set(most), []);
    quotas
}

#[test]
fn pools_of_a_database_share_its_limit() {
    let mut quotas = limited(2, 0);
    let (one, other) = (owner(1, "d", "a"), owner(2, "d", "b"));
    let now = Instant::now();
    assert_eq!(quotas.ask(&one, now), Asked::Opens);
    assert_eq!(quotas.ask(&one, now), Asked::Opens);
    assert_eq!(quotas.ask(&owner(3, "e", "a"), now), Asked::Opens);
    assert_eq!(quotas.ask(&other, now), Asked::Waits(1));
    assert_eq!(quotas.full(&other), [Group::Database("d".into())]);
    assert_eq!(quotas.close(&one), [(1, WaiterNotice::Opens)]);
    assert!(!quotas.is_busy());
    let standby = Owner {
        place: Place::Standby("s".into()),
        ..one
    };
    assert_eq!(quotas.ask(&standby, now), Asked::Opens, "another server");
}

#[test]
fn names_may_have_limits_of_their_own() {
    let most = Most {
        per_user: 1,
        users: [("a".to_owned(), 0), ("b".to_owned(), 2)].into(),
        ..Most::default()
    };
    let of = |user: &str| most.of(&Group::User(user.into()));
    assert_eq!((of("a"), of("b"), of("c")), (0, 2, 1));
}

#[test]
fn an_idle_connection_makes_place_for_another_pool() {
    let mut quotas = limited(1, 0);
    let (one, other) = (owner(1, "d", "a"), owner(2, "d", "b"));
    let now = Instant::now();
    assert_eq!(quotas.ask(&one, now), Asked::Opens);
    assert_eq!(quotas.comes_back(&one, now), Back::Stays);
    assert_eq!(quotas.ask(&other, now), Asked::Waits(1));
    assert_eq!(quotas.comes_back(&one, now), Back::Closes);
    assert_eq!(quotas.close(&one), [(1, WaiterNotice::Opens)]);
}

/// A connection is of more use to its own pool, but not for ever.
#[test]
fn a_busy_pool_gives_way_to_who_has_waited_longer() {
    let mut quotas = limited(1, 0);
    let (one, other) = (owner(1, "d", "a"), owner(2, "d", "b"));
    let now = Instant::now();
    assert_eq!(quotas.ask(&one, now), Asked::Opens);
    assert_eq!(quotas.ask(&one, now), Asked::Waits(1));
    assert_eq!(quotas.ask(&other, now), Asked::Waits(2));
    assert_eq!(quotas.ask(&one, now), Asked::Waits(3));
    let late = now + PATIENCE;
    assert_eq!(quotas.comes_back(&one, late), Back::Goes(1), "it was first");
    assert_eq!(quotas.comes_back(&one, now), Back::Goes(3), "it is early");
    assert_eq!(quotas.ask(&one, now), Asked::Waits(4));
    assert_eq!(quotas.comes_back(&one, late), Back::Closes);
    assert_eq!(quotas.close(&one), [(2, WaiterNotice::Opens)]);
}

#[test]
fn a_lower_limit_closes_what_comes_back() {
    let mut quotas = limited(0, 0);
    let one = owner(1, "d", "a");
    let now = Instant::now();
    for _ in 0..3 {
        assert_eq!(quotas.ask(&one, now), Asked::Opens);
    }
    let most = |per_user| Most {
        per_user,
        ..Most::default()
    };
    assert_eq!(quotas.set(most(2)), []);
    assert_eq!(
        quotas.exceeded(),
        [(Place::Active, Group::User("a".into()))]
    );
    assert_eq!(quotas.comes_back(&one, now), Back::Closes);
    assert_eq!(quotas.close(&one), []);
    assert_eq!(quotas.comes_back(&one, now), Back::Stays);
    assert_eq!(quotas.ask(&one, now), Asked::Waits(1));
    assert_eq!(quotas.set(most(0)), [(1, WaiterNotice::Opens)]);
}

/// Where two limits are reached, a place in one of them is a reason to look for an idle connection in the other.
#[test]
fn waiter_that_lacks_two_places_looks_again() {
    let mut quotas = limited(1, 1);
    let now = Instant::now();
    let (of_database, of_user) = (owner(1, "d", "x"), owner(2, "e", "u"));
    assert_eq!(quotas.ask(&of_database, now), Asked::Opens);
    assert_eq!(quotas.ask(&of_user, now), Asked::Opens);
    assert_eq!(quotas.ask(&owner(3, "d", "u"), now), Asked::Waits(1));
    assert_eq!(quotas.comes_back(&of_database, now), Back::Stays);
    assert_eq!(quotas.close(&of_user), [(1, WaiterNotice::Looks)]);
    assert_eq!(quotas.comes_back(&of_database, now), Back::Closes);
    assert_eq!(quotas.close(&of_database), [(1, WaiterNotice::Opens)]);
}

/// Random histories: no limit is exceeded, nobody waits beside a place, and a pool's clients are served in order.
#[test]
fn limits_hold_and_nobody_is_forgotten() {
    let owners: Vec<Owner> = (0..9)
        .map(|at| owner(at, &format!("d{}", at / 3), &format!("u{}", at % 3)))
        .collect();
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut quotas = limited(rng.random_range(0..4), rng.random_range(0..4));
        let mut used: Vec<usize> = Vec::new();
        let mut idle: Vec<usize> = Vec::new();
        let mut waiting: BTreeMap<Turn, usize> = BTreeMap::new();
        let mut now = Instant::now();
        for _ in 0..300 {
            now += Duration::from_millis(rng.random_range(0..60));
            let mut told = Vec::new();
            match rng.random_range(0..3) {
                0 => {
                    let at = rng.random_range(0..owners.len());
                    match quotas.ask(&owners[at], now) {
                        Asked::Opens => used.push(at),
                        Asked::Waits(turn) => drop(waiting.insert(turn, at)),
                    }
                }
                1 if !used.is_empty() => {
                    let at = used.swap_remove(rng.random_range(0..used.len()));
                    match quotas.comes_back(&owners[at], now) {
                        Back::Stays => idle.push(at),
                        Back::Goes(turn) => {
                            assert_eq!(waiting.remove(&turn), Some(at), "seed {seed}");
                            assert!(!waiting.iter().any(|(t, one)| *t < turn && *one == at));
                            used.push(at);
                        }
                        Back::Closes => told = quotas.close(&owners[at]),
                    }
                }
                2 if !idle.is_empty() => {
                    let at = idle.swap_remove(rng.random_range(0..idle.len()));
                    told = quotas.close(&owners[at]);
                }
                _ => {}
            }
            for (turn, word) in told {
                if word == WaiterNotice::Opens {
                    used.push(waiting.remove(&turn).expect("it waits"));
                }
            }
            assert!(quotas.exceeded().is_empty(), "seed {seed}");
            let pools: HashSet<usize> = waiting.values().copied().collect();
            for at in pools {
                assert!(!quotas.full(&owners[at]).is_empty(), "seed {seed}");
            }
            let open: usize = (0..3)
                .map(|at| Group::Database(format!("d{at}").into()))
                .map(|group| quotas.open(&group).values().sum::<usize>())
                .sum();
            assert_eq!(open, used.len() + idle.len(), "seed {seed}");
        }
    }
}
