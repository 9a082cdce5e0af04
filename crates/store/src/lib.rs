//! A zone server: keeps replicas of many volumes' blocks in an embedded key-value store.
//!
//! Owns the server's side of the block protocol ([`dax::wire`]) on std threads. Invariant: what was
//! acknowledged or shown is durable (one fsync for all connections' writes, a group commit), and
//! nothing below the accepted epoch of its volume is ever applied.
//!
//! ```text
//!  socket ─▶ receiver (one per connection) ─┬─ writes, epochs, records ─▶ queue ─▶ committer ─▶ engine
//!                  │ reads: here, or on the pool; inventories on their own thread     │
//!                  ▼                                                                  ▼
//!               engine                        socket ◀─ sender (one per connection) ◀─ acks, replies
//! ```
//!
//! ```no_run
//! use store::{StoreConfig, Zone};
//!
//! # fn serve(config: StoreConfig) -> Result<(), Box<dyn std::error::Error>> {
//! let zone = Zone::open("/var/lib/understudy/zone", config)?;
//! println!("listens at {}", zone.serve("127.0.0.1:7101")?);
//! zone.wait()?;
//! # Ok(())
//! # }
//! ```

mod background;
mod bases;
mod checkpoints;
mod commits;
mod committer;
mod config;
mod connection;
mod copies;
mod decide;
mod engine;
mod error;
mod existence;
mod fair_queue;
mod family;
mod fill;
mod filling;
#[cfg(test)]
mod golden_test;
mod greeting;
mod inventory;
mod janitor;
mod journal;
mod keys;
mod layers;
mod log;
mod meta;
mod meter;
mod network;
mod parking;
mod purge;
mod queue;
mod reads;
mod receiver;
mod removals;
mod room;
mod secure;
mod shared;
#[cfg(test)]
mod simulation;
mod stream;
#[cfg(test)]
mod tests;
mod versions;
mod volume;
mod zone;

pub use config::StoreConfig;
pub use error::{OpenError, ZoneFailed};
pub use network::{Emulated, Link, Network, NetworkError};
pub use zone::Zone;
