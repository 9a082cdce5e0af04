//! Parts that the commands of all measurements share: progress, the program, the answer.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use cluster::workspace::Workspace;
use serde::Serialize;
use understudy::exit::{Code, Failure};

use crate::cli::Common;

pub fn say(what: &str) {
    eprintln!("  {what}");
}

/// The command whose processes are measured: it is beside this program.
pub fn understudy() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    let program = this.with_file_name("understudy");
    if !program.exists() {
        let message = format!("there is no {} to be measured", program.display());
        return Err(Failure::new(Code::Unavailable, message)
            .advise("Build it: make build.")
            .into());
    }
    Ok(program)
}

/// Leaves data and logs in place where something has to be looked at.
pub fn keep_unless(workspace: &mut Workspace, passed: bool) {
    if !passed {
        workspace.keep();
        say(&format!(
            "data and logs stay in {}",
            workspace.path().display()
        ));
    }
}

/// Prints a report as JSON or as tables.
pub fn print<R: Serialize>(
    common: &Common,
    report: &R,
    table: impl FnOnce(&R) -> String,
) -> anyhow::Result<()> {
    match common.json {
        true => println!("{}", serde_json::to_string(report)?),
        false => print!("{}", table(report)),
    }
    Ok(())
}

pub fn verdict(passed: bool) -> Code {
    match passed {
        true => Code::Ok,
        false => Code::Failed,
    }
}

/// Variants that were named, or all.
pub fn all_unless_given<T: ValueEnum + Clone>(given: Vec<T>) -> Vec<T> {
    match given.is_empty() {
        true => T::value_variants().to_vec(),
        false => given,
    }
}

pub fn write(dir: &Path, name: &str, chart: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, chart).with_context(|| format!("cannot write {}", path.display()))
}
