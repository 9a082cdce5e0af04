//! A proxy for PostgreSQL that survives takeovers: one address, reads at a version on standbys, commits
//! that are never in doubt.
//!
//! It implements the scheduler of dynamic multiversioning (`core::version` cites the paper) for an unmodified
//! PostgreSQL. The `core` decides and does nothing; the `driver` has sockets, clocks and tasks.

pub mod config;
pub mod core;
pub mod driver;
