//! How far stores were seen to be, by which one whose directory was put back to an earlier state is noticed.
//!
//! Plain data and one rule. A store numbers its commits, draws a number for each run of its process, and keeps at
//! which commit each run began, as PostgreSQL keeps a history of timelines; who owns an epoch notes how far a run was
//! seen to be, and tells every store what it knows of the others. A store whose history leaves a run before a commit
//! that the run had acknowledged goes on without it: the directory is a copy from before. That stays so however much
//! it commits afterwards. docs/understand/protocol.md, *What if a store goes back in time?*, says what follows, and what cannot be noticed.

use serde::{Deserialize, Serialize};

use crate::ids::{StoreId, Version};

/// Runs that a store remembers. What was seen of an earlier one says nothing any more.
const RUNS_MAX: usize = 64;

/// One run of a store's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Tells it from all others; random.
    pub run: u64,
    /// The number of the last commit that it found.
    pub began: u64,
}

/// The last runs of a store's process, oldest first; the last is the one that speaks. Durable before the store says
/// anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runs(Vec<Run>);

/// How far a store is, as it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position {
    /// How it came there.
    pub runs: Runs,
    /// The number of its last commit.
    pub commit: u64,
}

/// How far a store was once seen to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Store that was seen.
    pub store: StoreId,
    /// In which run of its process.
    pub run: u64,
    /// The number of a commit that it had made durable.
    pub commit: u64,
}

/// How far the stores of a volume were seen to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sightings {
    /// Grows with each telling, in the order of epochs.
    pub version: Version,
    /// One of each run of a store at most.
    pub stores: Vec<Sighting>,
}

/// What a store says of itself and of others when it is met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// How far it is.
    pub position: Position,
    /// What it was told of others last.
    pub sightings: Sightings,
}

impl Runs {
    /// These, oldest first.
    pub fn new(runs: Vec<Run>) -> Runs {
        Runs(runs)
    }

    /// All that are known, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Run> {
        self.0.iter()
    }

    /// Another one begins; the oldest is forgotten if there are too many.
    pub fn begin(&mut self, run: Run) {
        self.0.push(run);
        let forgotten = self.0.len().saturating_sub(RUNS_MAX);
        self.0.drain(..forgotten);
    }

    /// The one that speaks; none of a store that does not keep them.
    pub fn current(&self) -> Option<u64> {
        self.0.last().map(|last| last.run)
    }

    /// The history of a store that lost something, was told so in this run, and is to be rebuilt from others: its commits are
    /// told as so much further ([`next_life`]). What was seen of it before is below that, so it says nothing any more;
    /// what is seen of it later is not.
    pub fn forgiven(&self, run: u64, lift: u64) -> Runs {
        let from = self.0.iter().position(|known| known.run == run);
        // If that run was forgotten, all that are known came after it.
        let mut runs = self.0[from.unwrap_or(0)..].to_vec();
        for later in &mut runs[usize::from(from.is_some())..] {
            later.began = later.began.saturating_add(lift);
        }
        if from.is_some() {
            runs[0].began = lift;
        }
        Runs(runs)
    }

    /// The number of the last commit that the store has of a run that is over: where the next one began. Of a run
    /// that it does not know, the store has at most what the oldest one found. None of the run that speaks.
    fn left(&self, run: u64) -> Option<u64> {
        let known = self.0.iter().rposition(|known| known.run == run);
        let next = known.map_or(0, |index| index + 1);
        self.0.get(next).map(|next| next.began)
    }
}

/// By how much a store's commits are told as further, after it was told that it had gone back: what was ever seen of it
/// before, by whomever, is below it, as its commits are below 2^40 in each life. `seen` is the farthest that is known.
pub fn next_life(seen: u64) -> u64 {
    const COMMITS_MAX: u64 = 1 << 40;
    (seen / COMMITS_MAX + 1).saturating_mul(COMMITS_MAX)
}

impl Sighting {
    /// True if a store that is as far as it says cannot have been where it was seen.
    pub fn denies(&self, position: &Position) -> bool {
        let left = position.runs.left(self.run);
        left.is_some_and(|left| left < self.commit)
    }
}

impl Sightings {
    /// How far a store was seen to be, in each of its runs of which that is known.
    pub fn of(&self, store: StoreId) -> impl Iterator<Item = &Sighting> {
        self.stores.iter().filter(move |seen| seen.store == store)
    }

    /// Takes up what somebody else knows. Whether it is news.
    pub fn hear(&mut self, heard: &Sighting) -> bool {
        let is_same = |seen: &&mut Sighting| (seen.store, seen.run) == (heard.store, heard.run);
        match self.stores.iter_mut().find(is_same) {
            Some(seen) if seen.commit >= heard.commit => return false,
            Some(seen) => seen.commit = heard.commit,
            None => self.stores.push(heard.clone()),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that began runs at commits, and is at a commit a thousand further.
    fn at(runs: &[(u64, u64)]) -> Position {
        let runs: Vec<Run> = runs
            .iter()
            .map(|&(run, began)| Run { run, began })
            .collect();
        let commit = runs.last().map_or(0, |last| last.began) + 1000;
        let runs = Runs::new(runs);
        Position { runs, commit }
    }

    fn seen(run: u64, commit: u64) -> Sighting {
        let store = StoreId::new(1).unwrap();
        Sighting { store, run, commit }
    }

    #[test]
    fn a_store_that_left_a_run_before_what_was_acknowledged_is_denied() {
        let seen = seen(7, 100);
        assert!(!seen.denies(&at(&[(7, 50)])), "the same run");
        assert!(
            !seen.denies(&at(&[(7, 50), (8, 100)])),
            "nothing is missing"
        );
        assert!(
            !seen.denies(&at(&[(7, 50), (8, 120)])),
            "and what nobody saw"
        );
        assert!(
            seen.denies(&at(&[(7, 50), (8, 99)])),
            "one commit is missing"
        );
        assert!(seen.denies(&at(&[(6, 20)])), "a copy of before that run");
    }

    /// A store went back, and committed more than it had lost before anybody could tell it; it was started once
    /// more, and began behind everything that had ever been seen of it.
    // hazard: ZONE-5
    #[test]
    fn a_store_that_went_back_is_denied_however_far_it_goes_on() {
        let seen = seen(7, 100);
        assert!(seen.denies(&at(&[(7, 50), (8, 99), (9, 5000)])));
        assert!(seen.denies(&at(&[(6, 20), (8, 99), (9, 5000)])));
    }

    #[test]
    fn of_runs_long_forgotten_nothing_is_said() {
        let mut runs = Runs::default();
        (0..1000).for_each(|run| {
            runs.begin(Run {
                run,
                began: run * 10,
            })
        });
        assert_eq!(runs.iter().len(), RUNS_MAX);
        let position = Position {
            runs,
            commit: 10_000,
        };
        assert!(!seen(7, 75).denies(&position));
        assert!(!seen(998, 9990).denies(&position));
        assert!(seen(998, 9991).denies(&position));
        assert!(!seen(5, 50).denies(&Position::default()), "it keeps none");
    }

    #[test]
    fn a_store_that_was_told_is_denied_by_what_comes_later_only() {
        let earlier = [seen(7, 100), seen(6, 40), seen(99, 80)];
        let told = at(&[(6, 0), (8, 60)]);
        assert!(earlier[0].denies(&told) && earlier[2].denies(&told));
        let lift = next_life(100);
        let forgiven = |runs: &[(u64, u64)]| Position {
            runs: at(runs).runs.forgiven(8, lift),
            commit: lift + 200,
        };
        // Also when it has been started again, and when that run itself is forgotten.
        for runs in [
            &[(6, 0), (8, 60)][..],
            &[(6, 0), (8, 60), (9, 150)],
            &[(9, 150), (10, 160)],
        ] {
            let position = forgiven(runs);
            assert!(
                !earlier.iter().any(|seen| seen.denies(&position)),
                "{runs:?}"
            );
        }
        let later = forgiven(&[(6, 0), (8, 60), (9, 150)]);
        assert!(seen(8, lift + 151).denies(&later));
        assert!(!seen(8, lift + 150).denies(&later));
    }

    /// It went back, was rebuilt, and went back again, to what it was when it had just been rebuilt: the runs since then were
    /// taken for earlier ones, and it counted.
    // hazard: ZONE-10
    #[test]
    fn a_store_that_goes_back_twice_is_denied_twice() {
        let lift = next_life(500);
        let copy = |runs: &[(u64, u64)]| Position {
            runs: at(runs).runs.forgiven(8, lift),
            commit: lift + 5000,
        };
        // That nobody who told it knew of, and that is farther than what was known.
        let before = seen(5, 900);
        let since = seen(27, lift + 62);
        for runs in [&[(6, 0), (8, 60)][..], &[(6, 0), (8, 60), (31, 61)]] {
            assert!(!before.denies(&copy(runs)), "{runs:?}");
            assert!(since.denies(&copy(runs)), "{runs:?}");
        }
    }

    #[test]
    fn numbers_of_the_next_life_are_above_all_before() {
        assert_eq!(next_life(0), 1 << 40);
        assert_eq!(next_life((1 << 40) + 7), 2 << 40);
        assert_eq!(next_life(u64::MAX), u64::MAX, "nobody has that many");
    }

    #[test]
    fn of_each_run_the_farthest_is_kept() {
        let mut sightings = Sightings::default();
        assert!(sightings.hear(&seen(7, 50)));
        assert!(!sightings.hear(&seen(7, 50)) && !sightings.hear(&seen(7, 40)));
        assert!(sightings.hear(&seen(8, 10)) && sightings.hear(&seen(7, 60)));
        assert_eq!(sightings.stores, [seen(7, 60), seen(8, 10)]);
    }
}
