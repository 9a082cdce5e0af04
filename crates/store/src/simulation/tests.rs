//! Histories as tests, and the entry for `make sim-zones`.

use simulate::Simulation;

use super::Flaw;
use super::schedule::Schedule;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-zones",
    unit: "histories",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 200),
        ("seals", 100),
        ("files removed", 20),
        ("pins", 100),
        ("pins dropped", 50),
        ("children", 40),
        ("children of children", 8),
        ("children rebuilt", 30),
        ("children removed", 50),
        ("removals refused", 10),
        ("children filled", 10),
        ("children that removed a file", 3),
        ("scrubs", 100),
        ("copies mended", 100),
        ("replicas rebuilt", 20),
        ("disks lost", 30),
        ("crashes", 200),
        ("crashes with a fault of the disk", 30),
        ("stores refused because commits are missing", 5),
        ("copies damaged", 50),
        ("writes refused because files cannot be read", 5),
        ("writes refused by full zones", 100),
        ("writes sent again", 300),
        ("writes onto what is there", 1000),
        ("writes refused for what they begin with", 300),
        ("sectors that cannot be read", 50),
    ],
    flaws: &Flaw::ALL,
    rare: &[],
    run: Schedule::run,
};

// hazard: ZONE-45
#[test]
fn zones_keep_what_they_acknowledge() {
    SIMULATION.keeps_promises(1000);
}

#[test]
fn a_seed_gives_the_same_history_every_time() {
    SIMULATION.repeats(10);
}

// hazard: ZONE-45
#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(300);
}

#[test]
#[ignore = "long; run by make sim-zones"]
fn many() {
    SIMULATION.as_asked();
}
