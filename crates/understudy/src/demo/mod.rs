//! `understudy demo`: kill a busy PostgreSQL, watch another take over, count what is there.

pub mod churn;
pub mod clock;
pub mod history;
pub mod load;
pub mod picture;
pub mod report;
pub mod schema;
pub mod session;
pub mod timeline;
pub mod verify;
