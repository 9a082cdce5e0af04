//! Apache Cassandra, unmodified, as the storage tier.
//!
//! ```text
//!   Storage (of dax) ──▶ client ──▶ driver ──▶ Cassandra: a row for each version of a block, a cell's timestamp
//!                          │                               for its version, one row that says whose epoch it is
//!                          ├── writer, queue: what is pending, and what a read must find (pure)
//!                          └── lease: the time in which the owner may acknowledge (pure) ──▶ the gate
//! ```
//!
//! `docs/understand/protocol-cassandra.md` has the rows, the gate and why nothing is lost; its rules (C1, L1,
//! ...) are named in the code that keeps them. [`Client`] is a [`dax::storage::Storage`]. What decides
//! is pure: `writer` (pending writes and what reads must return), `send_queue`, `lease`, `row`, `schema`. `driver` is
//! what the client asks of the outside (a session, a clock, tasks); the simulation has another one, in virtual time.
//! [`server`] runs a cluster of it on this machine, for trying out and for tests.
//!
//! Without the feature `client` there is only what a configuration needs: its keys, and the names that are allowed.
//!
//! Invariants: nothing is acknowledged but while the lease stands on the owner's own clock (the gate), and a new owner
//! begins only when every lease before it has ended; the order of versions is the order of Cassandra's timestamps.
//!
//! ```
//! # #[cfg(feature = "client")] {
//! use cassandra::row::timestamp;
//! use dax::ids::{Epoch, Version};
//!
//! let version = |epoch, seq| Version { epoch: Epoch(epoch), seq };
//! // A later epoch wins over whatever an earlier one still has under way.
//! assert!(timestamp(version(2, 1)) > timestamp(version(1, 1_000_000)));
//! # }
//! ```

#[cfg(feature = "client")]
pub mod client;
pub mod config;
#[cfg(feature = "client")]
mod connect;
#[cfg(feature = "client")]
mod driver;
#[cfg(feature = "client")]
mod entry;
#[cfg(feature = "client")]
mod filling;
#[cfg(feature = "client")]
pub mod lease;
#[cfg(feature = "client")]
mod removal;
#[cfg(feature = "client")]
pub mod row;
pub mod schema;
#[cfg(feature = "client")]
mod send_queue;
#[cfg(feature = "client")]
pub mod server;
#[cfg(feature = "client")]
mod setup;
#[cfg(feature = "client")]
#[cfg(test)]
mod simulation;
#[cfg(feature = "client")]
mod volumes;
#[cfg(feature = "client")]
pub mod writer;

#[cfg(feature = "client")]
pub use client::Client;
pub use config::{Config, Credentials, Fencing, TlsFiles};
#[cfg(feature = "client")]
pub use connect::connect;
#[cfg(feature = "client")]
pub use filling::fill_volume;
#[cfg(feature = "client")]
pub use removal::remove_volume;
#[cfg(feature = "client")]
pub use setup::create_volume;
