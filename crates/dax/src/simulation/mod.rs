//! The whole protocol in virtual time: real client cores and replicas in schedules that are chosen by
//! a seed, with faults, checked against what the protocol promises.
//!
//! ```text
//!   schedule ──▶ workload, faults ──▶ world (cores, replicas, connections)
//!       │                                  │
//!       └──── history of events ◀──────────┘ ──▶ checkers, one per promise
//! ```
//!
//! `make sim` runs many seeds, `make sim SEED=7` one of them again; docs/understand/simulation.md says what is
//! simulated and what is checked. A seed gives the same trace every time. Built for tests only.
//!
//! The history, its checkers and the trace are open to simulations of other backends (the
//! feature `simulation`): they know nothing of clients, messages or replicas.

pub mod checkers;
#[allow(
    missing_docs,
    reason = "the fields of an event are what they are called"
)]
pub mod history;
pub mod trace;

#[cfg(test)]
pub(crate) mod below;
#[cfg(test)]
mod contents;
#[cfg(test)]
mod exchanges;
#[cfg(test)]
mod faults;
#[cfg(test)]
pub(crate) mod flaw;
#[cfg(test)]
mod releases;
#[cfg(test)]
mod replica;
#[cfg(test)]
mod schedule;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod workload;
#[cfg(test)]
mod world;
