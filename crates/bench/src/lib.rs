//! Measurements that a user can repeat with one command, `understudy bench`.
//!
//! ```text
//!   cli ──▶ commands ──▶ a measurement: clusters (crate `cluster`) in turn, loads on them, faults
//!                            │
//!                            └──▶ lines of JSON ──▶ report: tables and pictures of those lines alone
//! ```
//!
//! Invariants: a measurement checks what it measured (whatever clients were told must be there), fails if that is not
//! so, and prints what it ran on; a report is made of the kept lines, so that anybody can make it again.
//!
//! ```
//! use bench::statistics::Sample;
//!
//! let sample = Sample::of(vec![3.0, 1.0, 2.0]);
//! assert_eq!((sample.median, sample.spread), (2.0, 1.0));
//! ```

pub mod backup;
pub mod branch;
pub mod cassandra;
pub mod chaos;
pub mod cli;
pub mod commands;
pub mod dax;
pub mod failover;
pub(crate) mod filled;
pub(crate) mod lag;
pub mod mariadb;
pub mod mirror;
pub mod peers;
pub mod pgbench;
pub mod proxy;
pub(crate) mod rates;
pub mod size;
pub(crate) mod slice;
pub mod soak;
pub mod standby;
pub mod statistics;
pub mod vm;
pub mod zones;
