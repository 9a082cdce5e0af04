//! The client as it is, in virtual time: over a model of Cassandra's replicas and coordinators, used by databases that
//! commit, seal and take over, with faults chosen by a seed, checked by the same checkers as the block protocol on
//! zones.
//!
//! ```text
//!   schedule ──▶ executor ──▶ lives, owners ──▶ crate::client ──▶ machine ──▶ world ──▶ model (replicas, coordinators,
//!                (tasks)      (a database)      (what runs)       (its        (network,        epoch row)
//!                                  │                              Environment) clocks)
//!                                  └── history of events ──▶ dax::simulation::checkers
//! ```
//!
//! `conformance` holds the model against the real server. `make sim-cassandra` runs many seeds. Built for
//! tests only.

mod below;
mod commits;
mod conformance;
mod executor;
mod faults;
mod flaw;
mod life;
mod machine;
mod model;
mod monotonic;
mod owner;
mod places;
mod recorder;
mod schedule;
mod stamps;
mod stories;
mod tests;
mod world;

pub(crate) use flaw::Flaw;
