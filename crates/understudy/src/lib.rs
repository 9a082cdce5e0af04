//! The `understudy` command as a library, so that the system tests drive the same parts as the
//! command does.

pub mod cluster;
pub mod demo;
