//! Benchmarks that end with a verdict, in their short form, as system tests. Run with `make test-system`,
//! which builds the command that they measure as well.

mod chaos;
mod soak;

use std::path::{Path, PathBuf};

/// The command, which is built beside the program that `understudy bench` runs.
fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_understudy-bench")).with_file_name("understudy")
}
