//! The agent of one machine: everything between the storage tier and one PostgreSQL server.
//!
//! ```text
//!            registry, channel (coordination)
//!                  │ what is seen        ▲ what it says of itself
//!                  ▼                     │
//!   machine (pure) ──▶ what this node is ──▶ agent: the work of each role
//!       ▲                                     │ standby: follows, moves its base
//!       └───────── what became of it ─────────┤ takeover: from a standby to the active
//!                                             │ active: serves, beats, announces
//!                                             ▼
//!                              mount ◀── PostgreSQL (pgserver)
//! ```
//!
//! Invariants: a node serves only in an epoch that it owns, and kills its server as soon as a higher one
//! exists. What one life of a node holds is gone before the next begins, the server before its mount. What
//! to become is decided by [`machine`], which is pure; nobody else decides.
//!
//! [`agent`] runs a node, [`init`] creates a cluster, [`config`] is what the operator wrote.
//!
//! ```no_run
//! use node::agent::Agent;
//! use node::config::Config;
//!
//! # async fn run(file: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
//! let agent = Agent::bind(Config::load(file)?).await?;
//! agent.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

pub mod agent;
pub mod config;
pub mod init;
pub mod machine;
