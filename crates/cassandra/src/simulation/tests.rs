//! Schedules as tests, and the entry for `make sim-cassandra`.

use simulate::Simulation;

use super::flaw::Flaw;
use super::schedule::run;

const SIMULATION: Simulation<Flaw> = Simulation {
    target: "sim-cassandra",
    unit: "schedules",
    seeds: 20_000,
    per_hundred: &[
        ("takeovers", 200),
        ("clients paused", 400),
        ("coordinators paused", 300),
        ("hints delivered", 150),
        ("zombies", 15),
        ("owners frozen at the gate", 5),
        ("owners frozen while their predecessor was", 12),
        ("takeovers that went on after a later one", 6),
        ("commits acknowledged", 3000),
        ("absences promoted", 600),
        ("versions promoted", 2000),
        ("seals completed", 700),
        ("transactions applied after they were given up", 150),
        ("layered volumes", 20),
        ("reads of the volumes below", 1000),
        ("volumes filled", 10),
    ],
    flaws: &Flaw::ALL,
    rare: &[
        (Flaw::UnknownRenewalCounts, 139),
        (Flaw::GateBeforeWrites, 230),
        (Flaw::LookServesLatecomers, 2342),
        (Flaw::OldAbsenceBelieved, 1018),
        (Flaw::ReclaimWithoutGate, 100),
        (Flaw::SameTimestampTwice, 1176),
    ],
    run,
};

// hazard: CASS-4
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
    SIMULATION.catches_flaws(4000);
}

#[test]
#[ignore = "long; run by make sim-cassandra"]
fn many() {
    SIMULATION.as_asked();
}
