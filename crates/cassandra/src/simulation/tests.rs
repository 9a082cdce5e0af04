//! Schedules as tests, and the entry for `make sim-cassandra`.

use simulate::Simulation;

use super::flaw::Flaw;
use super::schedule::run;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-cassandra",
    unit: "schedules",
    seeds: 20_000,
    per_hundred: &[
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
    ],
    flaws: &Flaw::ALL,
    run,
};

#[test]
fn schedules_keep_the_promises() {
    SIMULATION.keeps_promises(1000);
}

#[test]
fn a_seed_gives_the_same_trace_every_time() {
    SIMULATION.repeats(10);
}

#[test]
fn every_flaw_is_caught() {
    SIMULATION.catches_flaws(3000);
}

#[test]
#[ignore = "long; run by make sim-cassandra"]
fn many() {
    SIMULATION.as_asked();
}
