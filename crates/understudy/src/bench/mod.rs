//! Measurements that a user can repeat with one command.

pub mod pgbench;
pub mod statistics;
