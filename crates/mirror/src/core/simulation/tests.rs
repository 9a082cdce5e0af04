//! Histories as tests, and the entry for `make sim-mirror`.

use simulate::Simulation;

use super::{Flaw, World};

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-mirror",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 240),
        ("committed", 1_200),
        ("executed from the log", 1_000),
        ("in doubt, and committed", 150),
        ("waits for locks", 1_000),
        ("pieces", 300),
        ("streams that ended", 200),
        ("members with a surplus", 15),
        ("fenced", 11),
        ("state transfers", 15),
        ("found to differ", 1),
        ("commits lost with their server", 7),
    ],
    flaws: &Flaw::ALL,
    rare: &[],
    run: World::run,
};

// hazard: MIRROR-65
// hazard: MIRROR-80
#[test]
fn histories_keep_the_promises() {
    SIMULATION.keeps_promises(400);
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(5);
}

// hazard: MIRROR-25
// hazard: MIRROR-26
// hazard: MIRROR-28
// hazard: MIRROR-30
// hazard: MIRROR-33
// hazard: MIRROR-38
// hazard: MIRROR-39
// hazard: MIRROR-43
#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(1000);
}

#[test]
#[ignore = "long; run by make sim-mirror"]
fn many() {
    SIMULATION.as_asked();
}
