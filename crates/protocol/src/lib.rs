//! PostgreSQL's protocol as it stands on the wire, for every process that speaks it between clients and servers.
//!
//! Owns messages as stretches of bytes ([`frame`]) and the login with SCRAM on both sides ([`scram`]). It has no socket, no
//! clock and no SQL. Invariant: a message that is longer than the caller allows, or shorter than its own header says, is an
//! error and is never read past its end.

pub mod frame;
pub mod scram;
