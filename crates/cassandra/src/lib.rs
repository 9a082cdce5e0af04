//! Apache Cassandra, unmodified, as the storage tier.
//!
//! `docs/PROTOCOL.md` ("On Cassandra") has the rows, the gate and why nothing is lost; its rules (C1, L1,
//! ...) are named in the code that keeps them. [`Client`] is a [`dax::storage::Storage`]. What decides
//! is pure: `writer` (pending writes and what reads must return), `lane`, `lease`, `row`, `schema`.
//! [`server`] runs a cluster of it on this machine, for trying out and for tests.

pub mod client;
pub mod config;
mod connect;
mod lane;
pub mod lease;
pub mod row;
pub mod schema;
pub mod server;
mod setup;
#[cfg(test)]
mod simulation;
mod statements;
pub mod writer;

pub use client::Client;
pub use config::{Config, Credentials, Fencing, TlsFiles};
pub use connect::connect;
pub use setup::create_volume;
