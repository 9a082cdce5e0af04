//! The `understudy` command.

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let cli = understudy::cli::Cli::parse();
    understudy::exit::report(understudy::commands::run(cli))
}
