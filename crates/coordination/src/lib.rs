//! What the machines of a cluster say to each other and agree on, for every process that belongs to it: a
//! node's agent, a proxy, a command.
//!
//! ```text
//!   a process ──▶ config ──▶ tier ───────▶ storage tier (zones, or Cassandra)
//!      │          who I am,     │             │
//!      │          where it is   └─▶ records ──┘ heartbeat, members, control, history
//!      │                              │
//!      │                              ▼
//!      │                          detector, liveness (pure): is the active gone, who is alive?
//!      │                              ▲
//!      └──▶ channel ◀────────────────┘ hints; triggers, progress, requests
//!             ▲
//!             └── other processes, over TCP inside of TLS, or a Unix socket
//! ```
//!
//! Invariants: what is agreed on is in the registry, written by one writer for each record and to a
//! majority; the [`channel`] only says it sooner, and nothing depends on it. A process talks to nobody
//! who cannot show that it belongs to the cluster, as soon as a network may be between them
//! ([`config::TlsConfig`]). Nothing here runs a PostgreSQL server or decides what a machine becomes.
//!
//! Who is the active, and where do clients reach it?
//!
//! ```no_run
//! use coordination::config::ClusterConfig;
//! use coordination::records::{Heartbeat, Member, Record};
//! use coordination::tier;
//!
//! # async fn look(text: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let config = ClusterConfig::parse(text, None)?;
//! let storage = tier::connect(&config, "example").await?;
//! if let Some(beat) = Heartbeat::load(storage.as_ref()).await?
//!     && let Some(active) = Member::of(storage.as_ref(), &beat.node).await?
//! {
//!     println!("{} serves at {}, epoch {}", active.name, active.postgres, beat.epoch);
//! }
//! # Ok(())
//! # }
//! ```

pub mod address;
pub mod channel;
pub mod config;
pub mod detector;
#[cfg(test)]
mod golden_test;
pub mod liveness;
pub mod records;
pub mod room;
pub mod service;
pub mod tier;
