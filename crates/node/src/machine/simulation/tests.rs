//! Histories as tests, and the entry for `make sim-node`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::checks::Broken;
use super::flaw::Flaw;
use super::{Tally, World};

/// Histories that every run of the tests does.
const HISTORIES: u64 = 1000;
/// Within so many every flaw must be caught.
const CAUGHT_WITHIN: u64 = 3000;

/// What must have happened in a hundred histories, at least: about half of what was counted when this
/// was written.
const PER_HUNDRED: [(&str, u64); 9] = [
    ("takeovers", 100),
    ("takeovers that died", 9),
    ("takeovers hit", 9),
    ("killed", 110),
    ("frozen", 40),
    ("fenced", 7),
    ("orders", 18),
    ("enlisted", 7),
    ("followed the next", 30),
];

fn run_one(seed: u64, flaw: Option<Flaw>) -> Result<Tally, Broken> {
    let trace = number("TRACE") == Some(1);
    let run = || World::run(seed, flaw, trace);
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(Broken(format!("it panics: {}", text.unwrap_or_default())))
    })
}

/// Seeds from `from` on, on all processors; the first that breaks a promise.
fn run_many(from: u64, count: u64, flaw: Option<Flaw>) -> Result<Tally, (u64, Broken)> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let work = |start: u64| {
        let mut all = Tally::default();
        for seed in (start..from + count).step_by(threads as usize) {
            let tally = run_one(seed, flaw).map_err(|broken| (seed, broken))?;
            for (what, times) in tally.0 {
                *all.0.entry(what).or_default() += times;
            }
        }
        Ok(all)
    };
    let results: Vec<Result<Tally, (u64, Broken)>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|n| scope.spawn(move || work(from + n)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("panics are caught"))
            .collect()
    });
    let mut all = Tally::default();
    let mut first: Option<(u64, Broken)> = None;
    for result in results {
        match result {
            Ok(tally) => {
                for (what, times) in tally.0 {
                    *all.0.entry(what).or_default() += times;
                }
            }
            Err(broken) if first.as_ref().is_none_or(|(seed, _)| broken.0 < *seed) => {
                first = Some(broken);
            }
            Err(_) => {}
        }
    }
    first.map_or(Ok(all), Err)
}

/// A setting from the environment; none if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number(name: &str) -> Option<u64> {
    let number = setting(name)?.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}: use a number")))
}

fn flaw() -> Option<Flaw> {
    let name = setting("FLAW")?;
    let known = Flaw::ALL.into_iter().find(|f| format!("{f:?}") == name);
    Some(known.unwrap_or_else(|| panic!("FLAW={name}: use one of {:?}", Flaw::ALL)))
}

fn judge(outcome: Result<Tally, (u64, Broken)>) {
    let tally = match outcome {
        Ok(tally) => tally,
        Err((seed, broken)) => {
            panic!("seed {seed}: {broken}\nto see it again: make sim-node SEED={seed} TRACE=1")
        }
    };
    println!("{tally:?}");
    let histories = tally.0["histories"];
    for (what, least) in PER_HUNDRED {
        let count = tally.0.get(what).copied().unwrap_or_default();
        let enough = count * 100 >= least * histories;
        assert!(
            enough || histories < 100,
            "{count} {what} in {histories} histories"
        );
    }
}

#[test]
fn histories_keep_the_promises() {
    judge(run_many(0, HISTORIES, None));
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    for seed in 0..12 {
        assert_eq!(run_one(seed, None), run_one(seed, None), "seed {seed}");
    }
    assert_ne!(run_one(1, None), run_one(2, None));
}

/// The checks can fail: each flaw is caught.
#[test]
fn every_flaw_is_caught() {
    for flaw in Flaw::ALL {
        let mut seeds = 0..CAUGHT_WITHIN;
        let caught = seeds.find_map(|seed| Some((seed, run_one(seed, Some(flaw)).err()?)));
        match caught {
            Some((seed, broken)) => println!("{flaw:?}: caught by seed {seed}: {broken}"),
            None => panic!("{flaw:?} is not caught within {CAUGHT_WITHIN} histories"),
        }
    }
}

/// `make sim-node`: SEEDS of them, or one SEED, with FLAW to break something.
#[test]
#[ignore = "long; run by make sim-node"]
fn many() {
    let (from, histories) = match number("SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("SEEDS").unwrap_or(20_000)),
    };
    judge(run_many(from, histories, flaw()));
}
