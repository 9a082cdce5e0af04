//! Apache Cassandra, unmodified, as the storage tier.
//!
//! `docs/PROTOCOL.md` ("On Cassandra") has the rows, the gate and why nothing is lost; the rules are
//! named there (C1, L1, ...) and in the code that keeps them.

pub mod server;
