//! What clients do to a cluster, and what they saw: the load, its history, and the verdict.

pub mod churn;
pub mod clock;
pub mod history;
pub mod load;
#[cfg(feature = "engine")]
pub mod mysql;
pub mod pace;
pub mod schema;
pub mod session;
pub mod simple;
pub mod verify;
pub mod work;
