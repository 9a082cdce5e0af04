//! The `understudy` command as a library, so that `understudy-bench` shares its exit codes and pictures.

pub mod cli;
pub mod commands;
pub mod demo;
pub mod exit;
pub mod svg;
