//! Apache Cassandra, unmodified, as the storage tier.

pub mod server;
