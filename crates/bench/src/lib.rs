//! Measurements that a user can repeat with one command.

pub mod cassandra;
pub mod chaos;
pub mod cli;
pub mod commands;
pub mod dax;
pub mod failover;
pub(crate) mod lag;
pub mod mariadb;
pub mod peers;
pub mod pgbench;
pub mod soak;
pub mod standby;
pub mod statistics;
pub mod zones;
