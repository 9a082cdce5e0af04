//! The `understudy` command as a library, so that the system tests drive the same parts as the
//! command does.

pub mod bench;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod demo;
pub mod exit;
pub mod svg;
