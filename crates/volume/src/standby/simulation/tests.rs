//! Histories as tests, and the entry for `make sim-standby`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::checkers::{Broken, Held, broken};
use super::coverage::Coverage;
use super::flaw::Flaw;
use super::schedule::Schedule;

/// Histories that every run of the tests does.
const HISTORIES: u64 = 800;
/// Within so many every flaw must be caught.
const CAUGHT_WITHIN: u64 = 1500;

/// One history; a panic is a broken promise, too.
fn run_one(seed: u64, flaw: Option<Flaw>) -> (Held<()>, Coverage) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    super::trace::print(number("TRACE") == Some(1));
    let run = || runtime.block_on(Schedule::run(seed, flaw));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let what = text.unwrap_or_default();
        (Err(broken("no panics", what)), Coverage::default())
    })
}

/// Seeds from `from` on, on all processors, until one breaks a promise.
fn run_many(from: u64, histories: u64, flaw: Option<Flaw>) -> Result<Coverage, (u64, Broken)> {
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let result: Mutex<(Coverage, Option<(u64, Broken)>)> = Mutex::default();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + histories {
                break;
            }
            let (done, coverage) = run_one(seed, flaw);
            let mut result = result.lock().expect("nobody panics with it");
            result.0.merge(&coverage);
            if let Err(broken) = done {
                stop.store(true, Ordering::Relaxed);
                if result.1.as_ref().is_none_or(|(first, _)| seed < *first) {
                    result.1 = Some((seed, broken));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (coverage, first) = result.into_inner().expect("nobody panics with it");
    first.map_or(Ok(coverage), Err)
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

/// What must have happened in a hundred histories, at least: about half of what was counted when this
/// was written.
const PER_HUNDRED: [(&str, u64); 9] = [
    ("records", 2500),
    ("seals", 300),
    ("attaches", 250),
    ("moves", 50),
    ("records applied", 10_000),
    ("standbys crashed", 20),
    ("takeovers", 100),
    ("takeovers that died", 50),
    ("fenced while writing back", 7),
];

fn judge(outcome: Result<Coverage, (u64, Broken)>) {
    let coverage = match outcome {
        Ok(coverage) => coverage,
        Err((seed, broken)) => panic!(
            "seed {seed} breaks {broken}\nto see it again: make sim-standby SEED={seed} TRACE=1"
        ),
    };
    println!("{coverage}");
    let histories = coverage.of("histories");
    for (what, least) in PER_HUNDRED {
        let count = coverage.of(what);
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

/// What they found is told in the module.
#[test]
fn histories_that_found_something_keep_the_promises_too() {
    for seed in [5027, 12746] {
        if let Err(broken) = run_one(seed, None).0 {
            panic!("seed {seed} breaks {broken}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    for seed in 0..12 {
        let (one, other) = (run_one(seed, None).1, run_one(seed, None).1);
        assert_eq!(one, other, "seed {seed}");
    }
    assert_ne!(run_one(1, None).1, run_one(2, None).1);
}

/// The checkers can fail: each flaw is caught, on the way to the one that takes longest.
#[test]
fn every_flaw_is_caught() {
    for flaw in Flaw::ALL {
        match run_many(0, CAUGHT_WITHIN, Some(flaw)) {
            Ok(_) => panic!("{flaw:?} is not caught within {CAUGHT_WITHIN} histories"),
            Err((seed, broken)) => println!("{flaw:?}: caught by history {}: {broken}", seed + 1),
        }
    }
}

/// `make sim-standby`: SEEDS of them from FIRST on, or one SEED, with FLAW to break something.
#[test]
#[ignore = "long; run by make sim-standby"]
fn many() {
    let (from, histories) = match number("SEED") {
        Some(seed) => (seed, 1),
        None => {
            let histories = number("SEEDS").unwrap_or(12_000);
            (number("FIRST").unwrap_or(0), histories)
        }
    };
    let started = Instant::now();
    judge(run_many(from, histories, flaw()));
    let seconds = started.elapsed().as_secs_f64();
    println!("{histories} histories from {from} on in {seconds:.0} s");
}
