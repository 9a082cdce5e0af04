//! The `understudy` command.

use std::process::ExitCode;

use clap::Parser;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = understudy::cli::Cli::parse();
    understudy::exit::report(understudy::commands::run(cli))
}
