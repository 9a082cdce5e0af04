//! The `understudy-bench` program, which `understudy bench` runs.

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let cli = bench::cli::Cli::parse();
    understudy::exit::report(bench::commands::run(cli))
}
