//! Tests over real Cassandra nodes, which are fetched with Maven and started on this machine.
//!
//! `make test-cassandra` runs them; they are ignored otherwise, as they take a minute each.
#![allow(clippy::unwrap_used, reason = "tests")]

mod backend;
mod layers;
mod reclaim;
mod server;
