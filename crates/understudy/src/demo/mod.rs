//! `understudy demo`: kill a busy PostgreSQL, watch another take over, count what is there.

pub mod hosted;
mod lag;
pub mod machine;
pub mod mirrored;
pub mod picture;
mod progress;
pub mod proxied;
pub mod report;
pub mod rounds;
mod run;
pub mod takeover;
pub mod timeline;

pub use run::{Options, run};
