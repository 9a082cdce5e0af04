//! Histories as tests, and the entry for `make sim-node`.

use simulate::Simulation;

use super::World;
use super::flaw::Flaw;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-node",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 100),
        ("takeovers that died", 9),
        ("takeovers hit", 9),
        ("killed", 110),
        ("frozen", 40),
        ("fenced", 7),
        ("orders", 18),
        ("enlisted", 7),
        ("followed the next", 30),
    ],
    flaws: &Flaw::ALL,
    rare: &[(Flaw::ReadsOutsideTheFence, 4066)],
    run: World::run,
};

#[test]
fn histories_keep_the_promises() {
    SIMULATION.keeps_promises(1000);
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(12);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(6000);
}

#[test]
#[ignore = "long; run by make sim-node"]
fn many() {
    SIMULATION.as_asked();
}
