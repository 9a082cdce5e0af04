//! The `understudy` command as a library, so that `understudy-bench` shares its exit codes and pictures.
//!
//! ```text
//!   arguments ──▶ cli ──▶ commands ──▶ coordination, operations, node, engine, store
//!                                          │
//!   exit code, "error: ... detail: ... hint: ..." ◀── exit: the one place where errors become words
//! ```
//!
//! Invariant: a command that failed prints why to standard error and ends with the code that [`exit`] has for it;
//! standard output holds nothing but what was asked for.
//!
//! ```
//! use understudy::exit::{Code, Failure};
//!
//! let failure = Failure::new(Code::Unavailable, "no zone answers").advise("Start one.");
//! assert_eq!(failure.to_string(), "no zone answers");
//! ```

pub mod cli;
pub mod commands;
pub mod demo;
pub mod exit;
pub mod svg;
