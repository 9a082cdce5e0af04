//! Histories as tests, and the entry for `make sim-mirror`.

use simulate::Simulation;

use super::{Flaw, World};

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-mirror",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 240),
        ("committed", 700),
        ("executed from the log", 850),
        ("in doubt, and committed", 110),
        ("deadlocks", 120),
        ("fenced", 11),
        ("state transfers", 3),
        ("found to differ", 1),
        ("commits lost with their server", 20),
    ],
    flaws: &Flaw::ALL,
    run: World::run,
};

#[test]
fn histories_keep_the_promises() {
    SIMULATION.keeps_promises(400);
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(5);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(1000);
}

#[test]
#[ignore = "long; run by make sim-mirror"]
fn many() {
    SIMULATION.as_asked();
}
