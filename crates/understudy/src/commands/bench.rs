//! `understudy bench`: another program, so that what is installed on servers has no benchmarks in it.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::cli;
use crate::exit::{Code, Failure};

const PROGRAM: &str = "understudy-bench";

/// Becomes the program that measures; comes back only if it cannot.
pub fn run(args: &cli::Bench, log: Option<&str>) -> anyhow::Result<Code> {
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    let program = this.with_file_name(PROGRAM);
    let mut command = Command::new(&program);
    if let Some(filter) = log {
        command.args(["--log", filter]);
    }
    Err(refusal(&program, command.args(&args.arguments).exec()))
}

fn refusal(program: &Path, error: std::io::Error) -> anyhow::Error {
    if error.kind() != ErrorKind::NotFound {
        return anyhow::Error::new(error).context(format!("cannot run {}", program.display()));
    }
    let message = format!(
        "benchmarks are not installed: there is no {}",
        program.display()
    );
    Failure::new(Code::Unavailable, message)
        .advise("They are not in the package. Build them: cargo build --release -p bench, in the sources.")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_remedy() {
        let here = Path::new("/usr/bin/understudy-bench");
        let absent = refusal(here, ErrorKind::NotFound.into());
        assert!(absent.is::<Failure>());
        assert!(absent.to_string().contains("/usr/bin/understudy-bench"));
        assert!(!refusal(here, ErrorKind::PermissionDenied.into()).is::<Failure>());
    }
}
