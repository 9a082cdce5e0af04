//! `understudy demo`.

use std::path::PathBuf;

use crate::cli;
#[cfg(feature = "vm")]
use crate::cli::VmProtection;
#[cfg(feature = "engine")]
use crate::demo::hosted;
#[cfg(feature = "vm")]
use crate::demo::machine;
use crate::demo::needs::{self, Show};
use crate::demo::{self, Options, mirrored, rounds, timeline};
#[cfg(feature = "backup")]
use crate::demo::{past, regained};
use crate::exit::{Code, Failure, not_built};

use super::product;

/// Runs the demo and prints its story, or its report as JSON.
pub async fn run(args: cli::Demo) -> anyhow::Result<Code> {
    let seed = args
        .seed
        .unwrap_or_else(|| rand::random_range(1..1_000_000));
    check_needs(&args)?;
    if args.vm {
        return product!("vm", run_machine(args, seed).await);
    }
    if args.engine.is_some() {
        return product!("engine", host(args, seed).await);
    }
    // These two start the program itself again.
    if args.mirror && !cfg!(feature = "mirror") {
        return Err(not_built("mirror").into());
    }
    if args.proxy && !cfg!(feature = "proxy") {
        return Err(not_built("proxy").into());
    }
    if args.mirror {
        return mirror(args, seed).await;
    }
    if args.past {
        return product!("backup", of_the_past(args, seed).await);
    }
    if args.proxy && (args.kills, args.switchovers, args.restarts) != (1, 0, 0) {
        return repeat(args, seed).await;
    }
    let picture = args.picture.unwrap_or_else(|| default_picture(seed));
    let options = Options {
        store: args.store,
        duration: args.duration,
        clients: args.clients,
        scale: args.scale,
        seed,
        ddl: args.ddl,
        rejoin: args.rejoin,
        proxy: args.proxy,
        bin: args.bin,
        data: args.data,
        keep: args.keep,
        picture: Some(picture),
    };
    perform(
        args.json,
        demo::run(&options),
        |report| report.passed,
        timeline::render,
    )
    .await
}

/// Looks for the programs of what is built in.
fn check_needs(args: &cli::Demo) -> Result<(), Failure> {
    let show = match (args.vm, args.engine) {
        (true, _) if !cfg!(feature = "vm") => return Ok(()),
        (_, Some(_)) if !cfg!(feature = "engine") => return Ok(()),
        (true, _) => Show::Machine,
        (_, Some(cli::HostedEngine::Mariadb)) => Show::Mariadb,
        (false, None) => Show::Nodes,
    };
    needs::check(show)
}

/// The demo with a virtual machine.
#[cfg(feature = "vm")]
async fn run_machine(args: cli::Demo, seed: u64) -> anyhow::Result<Code> {
    let options = machine::Options {
        image: args.image.zip(args.password_file),
        protection: match args.protection {
            VmProtection::Everything => vm::network::Protection::Everything,
            VmProtection::Commits => vm::network::Protection::Commits,
            VmProtection::Nothing => vm::network::Protection::Nothing,
        },
        checkpoint_interval: args.checkpoint_interval,
        memory_mb: args.memory_mb,
        between: args.duration / (args.kills + 1),
        kills: args.kills,
        clients: args.clients,
        seed,
        data: args.data,
        keep: args.keep,
    };
    perform(
        args.json,
        machine::run(&options),
        |report| report.passed,
        machine::render,
    )
    .await
}

/// The demo with MariaDB.
#[cfg(feature = "engine")]
async fn host(args: cli::Demo, seed: u64) -> anyhow::Result<Code> {
    let options = hosted::Options {
        store: args.store,
        large_writes: args.large_writes,
        between: args.duration / (args.kills + 1),
        kills: args.kills,
        clients: args.clients,
        seed,
        bin: args.bin,
        data: args.data,
        keep: args.keep,
    };
    perform(
        args.json,
        hosted::run(&options),
        |report| report.passed,
        hosted::render,
    )
    .await
}

/// The demo through a proxy, with many kills and planned work.
async fn repeat(args: cli::Demo, seed: u64) -> anyhow::Result<Code> {
    let options = rounds::Options {
        kills: args.kills,
        switchovers: args.switchovers,
        restarts: args.restarts,
        clients: args.clients,
        scale: args.scale,
        seed,
        bin: args.bin,
        data: args.data,
        keep: args.keep,
    };
    perform(
        args.json,
        rounds::run(&options),
        |report| report.passed,
        rounds::render,
    )
    .await
}

/// The demo of branches, restores and rewinds.
#[cfg(feature = "backup")]
async fn of_the_past(args: cli::Demo, seed: u64) -> anyhow::Result<Code> {
    let options = past::Options {
        between: args.duration / 2,
        clients: args.clients,
        scale: args.scale,
        seed,
        bin: args.bin,
        data: args.data,
        keep: args.keep,
    };
    perform(
        args.json,
        past::run(&options),
        |report| report.passed,
        regained::render,
    )
    .await
}

/// The demo of the mirror.
async fn mirror(args: cli::Demo, seed: u64) -> anyhow::Result<Code> {
    let options = mirrored::Options {
        kills: args.kills,
        between: args.duration / (args.kills + 1),
        clients: args.clients,
        scale: args.scale,
        seed,
        bin: args.bin,
        data: args.data,
        keep: args.keep,
    };
    perform(
        args.json,
        mirrored::run(&options),
        |report| report.passed,
        mirrored::render,
    )
    .await
}

/// Runs a demo until it ends or is interrupted, and prints its story, or its report as JSON.
async fn perform<R: serde::Serialize>(
    json: bool,
    demo: impl Future<Output = anyhow::Result<R>>,
    passed: impl Fn(&R) -> bool,
    render: impl Fn(&R) -> String,
) -> anyhow::Result<Code> {
    let report = tokio::select! {
        report = Box::pin(demo) => report?,
        // What was started is cleaned up as the demo is dropped.
        () = super::process::interrupted() => return Ok(Code::Interrupted),
    };
    match json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => print!("{}", render(&report)),
    }
    Ok(if passed(&report) {
        Code::Ok
    } else {
        Code::Failed
    })
}

fn default_picture(seed: u64) -> PathBuf {
    std::env::temp_dir().join(format!("understudy-demo-{seed}.svg"))
}
