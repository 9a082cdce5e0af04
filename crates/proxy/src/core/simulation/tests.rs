//! Histories as tests, and the entry for `make sim-proxy`.

use simulate::Simulation;

use super::{Flaw, World};

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-proxy",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 160),
        ("committed", 2000),
        ("failed", 19),
        ("reads on standbys", 800),
        ("refused by standbys", 20),
        ("replayed", 200),
        ("in doubt", 48),
        ("in doubt, and committed", 5),
        ("handed over", 100),
    ],
    flaws: &Flaw::ALL,
    rare: &[
        (Flaw::EpochBelieved, 148),
        (Flaw::NewsBelieved, 1261),
        (Flaw::LossForgets, 1076),
        (Flaw::AnyStandby, 101),
        (Flaw::RestartIgnored, 154),
        (Flaw::UnprovenPosition, 1588),
        (Flaw::DurableIsShown, 981),
        (Flaw::CallsAreProof, 2125),
        (Flaw::SeenLeftBehind, 135),
    ],
    run: World::run,
};

// hazard: PROXY-74, PROXY-75, PROXY-76, PROXY-77
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
    SIMULATION.catches_flaws(20_000);
}

#[test]
#[ignore = "long; run by make sim-proxy"]
fn many() {
    SIMULATION.as_asked();
}
