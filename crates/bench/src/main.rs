//! The `understudy-bench` program, which `understudy bench` runs.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = bench::cli::Cli::parse();
    understudy::exit::report(bench::commands::run(cli))
}
