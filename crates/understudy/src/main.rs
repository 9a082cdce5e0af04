//! The `understudy` command.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = understudy::cli::Cli::parse();
    understudy::exit::report(understudy::commands::run(cli))
}
