//! Schedules as tests, and the entry for `make sim`.

use simulate::Simulation;

use super::flaw::Flaw;
use super::schedule::Schedule;

/// Schedules that every run of the tests does, and within which every flaw must be caught.
const SCHEDULES: u64 = 2000;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim",
    unit: "schedules",
    seeds: 100_000,
    per_hundred: &[
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
        ("sectors that cannot be read", 10),
        ("bits that changed in a writer's memory", 20),
        ("copies mended", 500),
        ("ticks that left a lazy replica trailing", 700),
        ("writes of pieces", 800),
        ("writes of differences", 400),
        ("upgrades finished", 5),
        ("layered volumes", 20),
        ("volumes below that came back", 5),
        ("reads of the volume below", 500),
        ("connections cut", 100),
        ("requests lost with their connection", 3000),
        (
            "requests that arrived after their connection was given up",
            200,
        ),
        ("clients with two entries for one store", 15),
        ("schedules after which all replicas were equal", 100),
    ],
    flaws: &Flaw::ALL,
    rare: &[
        (Flaw::RepairAsNewVersion, 268),
        (Flaw::LostAcksCount, 345),
        (Flaw::UnadmittedReads, 513),
        (Flaw::RefusedForEver, 204),
    ],
    run: Schedule::run,
};

#[test]
fn schedules_keep_the_promises() {
    SIMULATION.keeps_promises(SCHEDULES);
}

#[test]
fn a_seed_gives_the_same_trace_every_time() {
    SIMULATION.repeats(40);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(SCHEDULES);
}

#[test]
#[ignore = "long; run by make sim"]
fn many() {
    SIMULATION.as_asked();
}
