//! What a replication manager decides: events in, effects out, no clock, socket, thread or chance.
//!
//! Owns the order of transactions (`class`, `locks`, `schedule`), what the log says of them (`record`, `log`), what a
//! member has of it (`ledger`), and who may serve (`manager`).

pub mod class;
pub(crate) mod flaw;
pub mod ledger;
pub mod locks;
pub mod log;
pub mod manager;
pub mod record;
pub mod schedule;

#[cfg(test)]
mod simulation;
