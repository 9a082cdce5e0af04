//! The whole protocol in virtual time: real client cores and replicas in schedules that are chosen by
//! a seed, with faults, checked against what the protocol promises.
//!
//! ```text
//!   schedule ──▶ workload, faults ──▶ world (cores, replicas, connections)
//!       │                                  │
//!       └──── history of events ◀──────────┘ ──▶ checkers, one per promise
//! ```
//!
//! `make sim` runs many seeds, `make sim SEED=7` one of them again; docs/PROTOCOL.md says what is
//! simulated and what is checked. A seed gives the same trace every time. Built for tests only.

mod census;
mod checkers;
mod faults;
pub(crate) mod flaw;
mod history;
mod replica;
mod runner;
mod schedule;
mod tests;
mod trace;
mod workload;
mod world;
