//! `understudy demo`: kill a busy PostgreSQL, watch another take over, count what is there.

pub mod churn;
pub mod clock;
pub mod history;
mod lag;
pub mod load;
pub mod pace;
pub mod picture;
mod progress;
pub mod report;
mod run;
pub mod schema;
pub mod session;
pub mod takeover;
pub mod timeline;
pub mod verify;
pub mod workspace;

pub use run::{Options, run};
