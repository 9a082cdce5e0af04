//! DAX: the block protocol between a volume's one writer, its readers and the zones.
//!
//! ```text
//!   volume ──▶ storage::Storage ──▶ client (driver: sockets, time) ──▶ wire ──▶ replicas in the zones (crate `store`)
//!                                     │      ▲                                    │
//!                              events ▼      │ effects                            └── replica: what one replica does
//!                                   client::core (pure)                               with a request (pure)
//! ```
//!
//! Implements *DAX: A Widely Distributed Multi-tenant Storage Service for DBMS Hosting* (Liu,
//! Aboulnaga, Salem; VLDB 2013), with lexicographic versions, fencing and generations added.
//! `docs/understand/protocol.md` has the messages, the steps and the invariants.
//!
//! Invariants: an epoch has one owner, and once a quorum has accepted it no write of a lower one succeeds; what was
//! acknowledged is on k replicas, and every quorum of readers finds it; a version is given once.
//!
//! ```
//! use dax::ids::{Epoch, Version};
//! use dax::storage::VolumeSettings;
//!
//! // A later epoch wins, whatever the earlier one still writes.
//! let version = |epoch, seq| Version { epoch: Epoch(epoch), seq };
//! assert!(version(2, 1) > version(1, 1_000_000));
//!
//! // Two copies in each of three zones: a write is durable on four of six (the paper's N = 6, k = 4).
//! let settings = VolumeSettings::spread(3, 2);
//! assert_eq!((settings.replicas, settings.sync_replicas), (6, 4));
//! assert!(settings.check().is_ok());
//! ```

pub mod beneath;
pub mod client;
#[cfg(any(test, feature = "conformance"))]
#[allow(clippy::unwrap_used, reason = "a test suite, for others to run")]
pub mod conformance;
mod contents;
pub mod credentials;
mod entropy;
pub mod error;
pub mod forms;
pub mod ids;
pub mod layer;
mod lineage;
pub mod membership;
pub mod memory;
pub mod replica;
pub mod scrub;
mod settings;
pub mod sightings;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod status;
pub mod storage;
pub mod tls;
mod usage;
pub mod wire;
pub mod writer;

pub use error::{Error, ErrorKind, Result};
