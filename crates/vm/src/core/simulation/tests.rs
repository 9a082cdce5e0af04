//! Histories as tests, and the entry for `make sim-vm`.

use simulate::Simulation;

use super::{Flaw, World};

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-vm",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[("checkpoints", 1000), ("takeovers", 20), ("killed", 100)],
    flaws: &Flaw::ALL,
    rare: &[
        (Flaw::HalfApplied, 168),
        (Flaw::SessionsIgnored, 6748),
        (Flaw::AnyIsLast, 1487),
        (Flaw::StaleClock, 522),
    ],
    run: World::run,
};

#[test]
fn histories_keep_the_promises() {
    SIMULATION.keeps_promises(1000);
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(5);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(10_000);
}

#[test]
#[ignore = "long; run by make sim-vm"]
fn many() {
    SIMULATION.as_asked();
}
