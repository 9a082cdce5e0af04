//! Schedules as tests, and the entry for `make sim-cassandra`.

use std::time::Instant;

use dax::simulation::coverage::Coverage;
use dax::simulation::settings::{flaw, number};

use super::flaw::Flaw;
use super::schedule::{Report, run};

/// Schedules that every run of the tests does.
const SCHEDULES: u64 = 1000;
/// Within which every flaw must be caught.
const FLAW_SCHEDULES: u64 = 3000;

fn asked_flaw() -> Option<Flaw> {
    flaw(&Flaw::ALL)
}

/// Seeds from 0 on, on all processors; panics with the lowest that fails.
fn run_many(seeds: u64) -> Coverage {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let of_thread = |thread: u64| {
        let mut coverage = Coverage::default();
        let mut failure = None;
        for seed in (thread..seeds).step_by(threads as usize) {
            let Report {
                coverage: counted,
                violation,
                ..
            } = run(seed, None, false);
            coverage.add(&counted);
            failure = violation.map(|v| (seed, v));
            if failure.is_some() {
                break;
            }
        }
        (coverage, failure)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|t| scope.spawn(move || of_thread(t)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut total = Coverage::default();
    results.iter().for_each(|(coverage, _)| total.add(coverage));
    let failures = results.into_iter().filter_map(|(_, failure)| failure);
    if let Some((seed, violation)) = failures.min_by_key(|(seed, _)| *seed) {
        panic!(
            "seed {seed} breaks {}: {}\nto see it again: make sim-cassandra SEED={seed} TRACE=1",
            violation.checker, violation.what
        );
    }
    total
}

/// What must have happened in a hundred schedules, at least: about half of what was counted when this
/// was written.
const PER_HUNDRED: [(&str, u64); 10] = [
    ("takeovers", 150),
    ("clients paused", 500),
    ("coordinators paused", 500),
    ("hints delivered", 130),
    ("zombies", 10),
    ("commits acknowledged", 2000),
    ("absences promoted", 150),
    ("versions promoted", 110),
    ("seals completed", 300),
    ("transactions applied after they were given up", 150),
];

fn assert_worth_something(coverage: &Coverage) {
    let schedules = coverage.of("schedules");
    for (what, least) in PER_HUNDRED {
        let count = coverage.of(what);
        assert!(
            count * 100 >= least * schedules,
            "{count} {what} in {schedules} schedules"
        );
    }
}

#[test]
fn schedules_keep_the_promises() {
    let coverage = run_many(SCHEDULES);
    println!("{coverage}");
    assert_worth_something(&coverage);
}

#[test]
fn a_seed_gives_the_same_trace_every_time() {
    for seed in 0..10 {
        let (one, other) = (run(seed, None, false), run(seed, None, false));
        assert_eq!(one.trace_hash, other.trace_hash, "seed {seed}");
        assert_eq!(one.coverage, other.coverage, "seed {seed}");
    }
    assert_ne!(
        run(1, None, false).trace_hash,
        run(2, None, false).trace_hash
    );
}

/// The promise that a flaw breaks. That nothing goes on any more is none.
fn broken_promise(seed: u64, flaw: Flaw) -> Option<dax::simulation::checkers::Violation> {
    let violation = run(seed, Some(flaw), false).violation;
    violation.filter(|v| v.checker != "liveness")
}

fn flaws() -> Vec<Flaw> {
    match asked_flaw() {
        Some(flaw) => vec![flaw],
        None => Flaw::ALL.to_vec(),
    }
}

/// The checkers can fail.
#[test]
fn every_flaw_is_caught() {
    let mut missed = Vec::new();
    for flaw in flaws() {
        let caught = (0..FLAW_SCHEDULES).find_map(|seed| Some((seed, broken_promise(seed, flaw)?)));
        match caught {
            Some((seed, violation)) => {
                let checker = violation.checker;
                println!(
                    "{flaw:?}: caught by schedule {}: {checker}: {}",
                    seed + 1,
                    violation.what
                );
            }
            None => missed.push(flaw),
        }
    }
    assert!(
        missed.is_empty(),
        "not caught within {FLAW_SCHEDULES} schedules: {missed:?}"
    );
}

/// `make sim-cassandra`: SEEDS of them, or one SEED, with TRACE=1 to see it step by step and FLAW to break
/// something.
#[test]
#[ignore = "long; run by make sim-cassandra"]
fn many() {
    let started = Instant::now();
    if let Some(seed) = number("SEED") {
        let report = run(seed, asked_flaw(), number("TRACE") == Some(1));
        println!(
            "{}seed {seed}: trace {:016x}",
            report.coverage, report.trace_hash
        );
        let violation = report.violation;
        assert_eq!(
            violation.map(|v| format!("{}: {}", v.checker, v.what)),
            None
        );
        return;
    }
    let seeds = number("SEEDS").unwrap_or(20_000);
    let coverage = run_many(seeds);
    println!(
        "{coverage}{seeds} schedules in {:.0} s",
        started.elapsed().as_secs_f64()
    );
    assert_worth_something(&coverage);
}
