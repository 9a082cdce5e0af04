//! `understudy bench branch` and `bench size`.

use cluster::programs;
use cluster::workspace::Workspace;
use understudy::commands::interrupted;
use understudy::exit::Code;

use super::parts::{print, say, understudy};
use crate::branch::{Options, run as run_all, table};
use crate::{cli, size};

pub(super) async fn run(args: cli::BenchBranch) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let options = Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        scale: either(args.scale.scale, 10, 340),
        seconds: either(args.runs.seconds, 5, 30),
        rounds: either(args.runs.rounds, 1, 5),
    };
    let report = tokio::select! {
        report = Box::pin(run_all(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, table)?;
    Ok(Code::Ok)
}

pub(super) async fn run_size(args: cli::BenchSize) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let options = size::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        table_bytes: args.common.either(args.gigabytes, 1, 50) * 1_000_000_000,
    };
    let report = tokio::select! {
        report = Box::pin(size::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, size::table)?;
    Ok(Code::Ok)
}
