//! DAX: the block protocol between a volume's one writer, its readers and the zones.
//!
//! Implements *DAX: A Widely Distributed Multi-tenant Storage Service for DBMS Hosting* (Liu,
//! Aboulnaga, Salem; VLDB 2013), with lexicographic versions, fencing and generations added.
//! `docs/PROTOCOL.md` has the messages, the steps and the invariants.

pub mod client;
#[cfg(any(test, feature = "conformance"))]
#[allow(clippy::unwrap_used, reason = "a test suite, for others to run")]
pub mod conformance;
pub mod credentials;
pub mod error;
pub mod ids;
pub mod membership;
pub mod memory;
pub mod replica;
pub mod sightings;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod storage;
pub mod tls;
pub mod wire;
pub mod writer;

pub use error::{Error, ErrorKind, Result};
