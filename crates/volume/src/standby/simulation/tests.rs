//! Histories as tests, and the entry for `make sim-standby`.

use simulate::Simulation;

use super::flaw::Flaw;
use super::schedule::Schedule;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-standby",
    unit: "histories",
    seeds: 12_000,
    per_hundred: &[
        ("records", 2500),
        ("seals", 300),
        ("attaches", 250),
        ("moves", 50),
        ("records applied", 10_000),
        ("standbys crashed", 20),
        ("takeovers", 100),
        ("takeovers that died", 50),
        ("fenced while writing back", 7),
        ("syncs answered early", 100),
        ("log lost that was answered", 3),
        ("pins", 10),
        ("pins that came too late", 3),
        ("pins dropped", 4),
        ("looks at kept images", 80),
        ("chains read to their end", 50),
        ("forks in the segment of the last one", 500),
        ("forks on a boundary", 20),
    ],
    flaws: &Flaw::ALL,
    rare: &[
        (Flaw::TakenBeforeWritten, 169),
        (Flaw::CutsDropped, 167),
        (Flaw::KeptFromEarlier, 2263),
        (Flaw::AnswersAfterSleep, 180),
        (Flaw::SealedBeforeItsLog, 214),
        (Flaw::EndOfTheDurable, 174),
    ],
    run: Schedule::run,
};

#[test]
fn histories_keep_the_promises() {
    SIMULATION.keeps_promises(800);
}

/// What they found is told in the module.
#[test]
fn histories_that_found_something_keep_the_promises_too() {
    for seed in [5027, 12746] {
        assert_eq!(SIMULATION.run_one(seed, None).broken, None, "seed {seed}");
    }
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(12);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(5000);
}

#[test]
#[ignore = "long; run by make sim-standby"]
fn many() {
    SIMULATION.as_asked();
}
