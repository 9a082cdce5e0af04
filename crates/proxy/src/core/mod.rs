//! What a proxy decides: events in, effects out, no clock, socket, thread or chance.
//!
//! Owns sessions and everything they decide by: what statements do (`sql`), what the cluster is
//! (`topology`), which version a read needs (`version`), what became of a commit (`outcome`). `quota` tells which pool may
//! open a connection.

pub mod choice;
mod flaw;
pub mod handover;
pub mod hba;
pub mod outcome;
pub mod quota;
pub mod session;
pub mod settings;
pub mod sql;
pub mod stats;
pub mod topology;
pub mod version;

#[cfg(test)]
mod simulation;
