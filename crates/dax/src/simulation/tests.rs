//! Schedules as tests, and the entry for `make sim`.

use std::time::Instant;

use super::coverage::Coverage;
use super::flaw::Flaw;
use super::runner::{first_to_catch, run_many, run_one};
use super::settings::{flaw, number};

/// Schedules that every run of the tests does, and within which every flaw must be caught.
const SCHEDULES: u64 = 2000;

/// What must have happened in a hundred schedules, at least: about half of what was counted when this
/// was written.
const PER_HUNDRED: [(&str, u64); 26] = [
    ("takeovers", 400),
    ("contests lost", 5),
    ("writers crashed", 80),
    ("clients paused", 200),
    ("writers that learned of their fence", 200),
    ("syncs, as clients count", 1500),
    ("seals completed", 400),
    ("retentions", 200),
    ("image reads that left a dead line", 50),
    ("versions promoted", 800),
    ("reads by quorum", 3000),
    ("reads from one replica", 500),
    ("answers that were stale", 5),
    ("reads from pending writes", 1200),
    ("replicas crashed", 250),
    ("replicas crashed, with torn writes", 250),
    ("replicas rebuilt", 20),
    ("disks lost", 40),
    ("copies damaged", 20),
    ("copies mended", 500),
    ("ticks that left a lazy replica trailing", 700),
    ("connections cut", 100),
    ("requests lost with their connection", 3000),
    (
        "requests that arrived after their connection was given up",
        200,
    ),
    ("clients with two entries for one store", 15),
    ("schedules after which all replicas were equal", 100),
];

fn assert_worth_something(coverage: &Coverage) {
    let schedules = coverage.of("schedules");
    for (what, least) in PER_HUNDRED {
        let count = coverage.of(what);
        let enough = count * 100 >= least * schedules;
        assert!(enough, "{count} {what} in {schedules} schedules");
    }
}

#[test]
fn schedules_keep_the_promises() {
    let coverage = run_many(0, SCHEDULES, false).unwrap_or_else(|f| panic!("{}", f.describe()));
    println!("{coverage}");
    assert_worth_something(&coverage);
}

#[test]
fn a_seed_gives_the_same_trace_every_time() {
    for seed in 0..40 {
        let (one, other) = (run_one(seed, None, false), run_one(seed, None, false));
        assert_eq!(one.trace_hash, other.trace_hash, "seed {seed}");
        assert_eq!(one.coverage, other.coverage, "seed {seed}");
    }
    let (one, other) = (run_one(1, None, false), run_one(2, None, false));
    assert_ne!(one.trace_hash, other.trace_hash);
}

/// The checkers can fail: each flaw is caught, on the way to the one that takes longest.
#[test]
fn every_flaw_is_caught() {
    for flaw in Flaw::ALL {
        let Some((schedules, violation)) = first_to_catch(flaw, SCHEDULES) else {
            panic!("{flaw:?} is not caught within {SCHEDULES} schedules");
        };
        println!(
            "{flaw:?}: caught by schedule {schedules}: {}",
            violation.checker
        );
    }
}

/// `make sim`: SEEDS of them from FIRST on, or one SEED, with TRACE=1 to see it step by step and FLAW to break
/// something.
#[test]
#[ignore = "long; run by make sim"]
fn many() {
    let started = Instant::now();
    if let Some(seed) = number("SEED") {
        let report = run_one(seed, flaw(&Flaw::ALL), number("TRACE") == Some(1));
        println!(
            "{}seed {seed}: trace {:016x}",
            report.coverage, report.trace_hash
        );
        let violation = report.violation;
        let violation = violation.map(|v| format!("{}: {}", v.checker, v.what));
        assert_eq!(violation, None);
        return;
    }
    if let Some(flaw) = flaw(&Flaw::ALL) {
        let caught = first_to_catch(flaw, number("SEEDS").unwrap_or(SCHEDULES));
        return println!("{flaw:?}: {caught:?}");
    }
    let seeds = number("SEEDS").unwrap_or(100_000);
    let first = number("FIRST").unwrap_or(0);
    let coverage = run_many(first, seeds, true).unwrap_or_else(|f| panic!("{}", f.describe()));
    let seconds = started.elapsed().as_secs_f64();
    println!("{coverage}{seeds} schedules from {first} on in {seconds:.0} s");
    assert_worth_something(&coverage);
}
