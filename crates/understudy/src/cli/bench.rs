//! Arguments of the measurements, which are another program.

use std::ffi::OsString;

use clap::Args;

/// Measure: understudy bench --help says what.
///
/// Another program does it, understudy-bench, which has to be installed beside this one.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// Which measurement, and its options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}
