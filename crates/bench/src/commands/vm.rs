//! `understudy bench vm`.

use cluster::workspace::Workspace;
use understudy::commands::interrupted;
use understudy::exit::Code;

use super::parts::{keep_unless, print, say, understudy};
use crate::cli;
use crate::vm::{self, Measurement};
use clap::ValueEnum;

pub(super) async fn run(args: cli::BenchVm) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let parts = match args.part.as_slice() {
        [] if args.common.quick => vec![Measurement::Overhead, Measurement::Failover],
        [] => Measurement::value_variants().to_vec(),
        given => given.to_vec(),
    };
    let options = vm::Options {
        dir: workspace.path().to_owned(),
        images: match &args.images {
            Some(dir) => std::path::absolute(dir)?,
            None => workspace.path().join("images"),
        },
        understudy: understudy()?,
        parts,
        guests: args.guest.clone(),
        loads: args.load.clone(),
        clients: args.clients,
        epoch_ms: args.epoch_ms,
        intervals_ms: args.intervals.clone(),
        warehouses: either(args.warehouses, 1, 4),
        scan_mb: either(args.scan_mb, 192, 512),
        memory_mb: args.memory_mb,
        multiples: args.multiples.clone(),
        seconds: either(args.runs.seconds, 4, 10),
        rounds: either(args.runs.rounds, 1, 3),
    };
    vm::needs(&options, say)?;
    let result = tokio::select! {
        report = Box::pin(vm::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(&mut workspace, result.is_ok());
    let report = result?;
    print(&args.common, &report, vm::table)?;
    Ok(Code::Ok)
}
