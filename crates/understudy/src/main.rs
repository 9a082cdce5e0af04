//! The `understudy` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = understudy::cli::Cli::parse();
    understudy::exit::report(understudy::commands::run(cli))
}
