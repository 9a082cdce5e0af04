//! `understudy bench`.

use anyhow::Context;

use crate::bench::pgbench::{self, Options};
use crate::cli;
use crate::cluster::programs;
use crate::demo::workspace::Workspace;
use crate::exit::Code;

/// Runs the benchmark and prints a table, or its report as JSON.
pub async fn run(command: cli::Bench) -> anyhow::Result<Code> {
    let cli::Bench::Pgbench(args) = command;
    let workspace = Workspace::create(args.data.as_deref(), false)?;
    let options = Options {
        bin: programs::find(args.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: std::env::current_exe().context("cannot tell which program this is")?,
        clients: args.clients,
        scale: args.scale,
        seconds: args.seconds.unwrap_or(if args.quick { 5 } else { 60 }),
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }),
        standby: !args.alone,
    };
    let report = tokio::select! {
        report = Box::pin(pgbench::run(&options, |what| eprintln!("  {what}"))) => report?,
        () = super::interrupted() => return Ok(Code::Interrupted),
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", pgbench::table(&report));
    }
    Ok(Code::Ok)
}
