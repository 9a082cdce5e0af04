//! The fencing rules of docs/PROTOCOL.md, *On Cassandra*, in virtual time: a model of Cassandra's
//! replicas and coordinators, owners and readers over it, faults chosen by a seed, checked by the same
//! checkers as the block protocol on zones.
//!
//! ```text
//!   schedule ──▶ owners, readers ──▶ world (network, clocks) ──▶ model (replicas, coordinators, epoch row)
//!       │                                │
//!       └────── history of events ◀──────┘ ──▶ dax::simulation::checkers
//! ```
//!
//! `conformance` holds the model against the real server. `make sim-cassandra` runs many seeds. Built for
//! tests only.

mod client;
mod commits;
mod conformance;
mod faults;
mod flaw;
mod log;
mod model;
mod monotonic;
mod node;
mod owner;
mod reading;
mod recorder;
mod schedule;
mod tests;
mod world;
