//! Whole clusters: started, loaded, broken, verified. Run with `make test-system`; those on Apache
//! Cassandra (`cassandra`) with `make test-cassandra`.
//!
//! Each test works in a directory of its own below `UNDERSTUDY_TEST_DIR` (or the temporary
//! directory) and leaves it there only when it fails.

mod asleep;
mod backups;
mod bases;
mod branch_kills;
mod branched;
mod branches;
mod cassandra;
mod debezium;
mod demo;
mod differences;
mod engines;
mod exchange;
mod failover;
mod family;
mod filled;
mod first_hour;
mod horizons;
mod import;
mod machines;
mod mirrored;
mod operator;
mod ordered;
mod page;
mod past;
mod prepared;
mod proxied;
mod queries;
mod refilled;
mod repository;
mod rest;
mod rewound;
mod secure;
mod segments;
mod several;
mod slots;
mod slow;
mod spare;
mod stage;
mod starts;
mod steps;
mod transactions;
mod undone;
mod unproved;
mod upgrade;
mod verbs;
mod versions;
mod warmth;
mod watching;
mod workloads;
mod zones;
