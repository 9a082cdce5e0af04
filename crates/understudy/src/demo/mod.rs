//! `understudy demo`: kill a busy PostgreSQL, watch another take over, count what is there.

#[cfg(feature = "engine")]
pub mod hosted;
mod lag;
#[cfg(feature = "vm")]
pub mod machine;
pub mod mirrored;
pub mod needs;
#[cfg(feature = "backup")]
pub mod past;
pub mod picture;
mod progress;
pub mod proxied;
#[cfg(feature = "backup")]
pub mod regained;
pub mod report;
pub mod rounds;
mod run;
pub mod takeover;
pub mod timeline;

pub use run::{Options, run};
