//! What a replication manager decides: events in, effects out, no clock, socket, thread or chance.
//!
//! Owns the order of transactions (`class`, `schedule`), what the log says of them (`record`, `rows`, `catalog`, `log`), how they
//! come from a member (`pgoutput`, `stream`), what a member has of the log (`ledger`), who may serve (`manager`), and which sessions go on
//! elsewhere (`gate`, `moving`).

pub mod cancelled;
pub mod captured;
pub mod catalog;
pub mod class;
pub mod compared;
pub(crate) mod flaw;
pub mod gate;
pub mod ledger;
pub mod log;
pub mod manager;
pub mod moving;
pub mod origin;
pub mod pgoutput;
mod raw;
pub mod record;
pub mod rewind;
pub mod rows;
pub mod schedule;
pub mod stream;
pub mod verifying;
pub mod waited;

#[cfg(test)]
mod simulation;
