//! Arguments of the measurements, which are another program.

use std::ffi::OsString;

use clap::Args;

/// Run a benchmark; understudy bench --help lists them.
///
/// The benchmarks are a program of their own, understudy-bench, which must be installed beside this one.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// The benchmark, and its options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}
