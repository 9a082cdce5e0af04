//! What each measurement is run with, and what is printed of it.

mod backup;
mod branch;
mod parts;
mod vm;

use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use cluster::programs;
use cluster::workspace::Workspace;
use understudy::commands::{interrupted, on_runtime, start_logging};
use understudy::exit::Code;

use self::parts::{all_unless_given, keep_unless, print, say, understudy, verdict, write};
use crate::cli;
use crate::{
    cassandra, chaos, dax, failover, mariadb, mirror, peers, pgbench, proxy, soak, standby, zones,
};

/// Runs a benchmark and prints tables, or its report as JSON.
///
/// # Errors
/// Whatever the benchmark says; [`understudy::exit`] translates it.
pub fn run(cli: cli::Cli) -> anyhow::Result<Code> {
    // Its own words are the story; a log would only disturb it.
    start_logging(cli.log.as_deref(), "error")?;
    if matches!(cli.command, cli::Bench::Vm(_)) {
        cluster::machine::enter_network()?;
    }
    on_runtime(measure(cli.command))
}

async fn measure(command: cli::Bench) -> anyhow::Result<Code> {
    match command {
        cli::Bench::Pgbench(args) => run_pgbench(args).await,
        cli::Bench::Dax(args) => run_dax(args).await,
        cli::Bench::Cassandra(args) => run_cassandra(args).await,
        cli::Bench::Soak(args) => run_soak(args).await,
        cli::Bench::Chaos(args) => run_chaos(args).await,
        cli::Bench::Standby(args) => run_standby(args).await,
        cli::Bench::Failover(args) => run_failover(args).await,
        cli::Bench::Peers(args) => run_peers(args).await,
        cli::Bench::Zones(args) => run_zones(args).await,
        cli::Bench::Backup(args) => backup::run(args).await,
        cli::Bench::Branch(args) => branch::run(args).await,
        cli::Bench::Size(args) => branch::run_size(args).await,
        cli::Bench::Mariadb(args) => run_mariadb(args).await,
        cli::Bench::Proxy(args) => run_proxy(args).await,
        cli::Bench::Mirror(args) => run_mirror(args).await,
        cli::Bench::Vm(args) => vm::run(args).await,
    }
}

async fn run_pgbench(args: cli::BenchPgbench) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let options = pgbench::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        clients: args.clients,
        scale: args.scale.scale.unwrap_or(20),
        seconds: args.common.either(args.runs.seconds, 5, 60),
        rounds: args.common.either(args.runs.rounds, 3, 5),
        standby: !args.alone,
        tls: args.tls,
    };
    let report = tokio::select! {
        report = Box::pin(pgbench::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, pgbench::table)?;
    Ok(Code::Ok)
}

async fn run_proxy(args: cli::BenchProxy) -> anyhow::Result<Code> {
    use proxy::Measurement;

    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let list = |given: &[u16], quick: &[u16], whole: &[u16]| match given {
        [] if args.common.quick => quick.to_vec(),
        [] => whole.to_vec(),
        given => given.to_vec(),
    };
    let options = proxy::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        parts: match args.part.as_slice() {
            [] => Measurement::value_variants().to_vec(),
            given => given.to_vec(),
        },
        clients: list(&args.clients, &[2], &[1, 8, 32, 200]),
        loads: args.load,
        protocols: args.protocol,
        poolings: args.pooling,
        scale: either(args.scale.scale, 2, 10),
        seconds: either(args.runs.seconds, 2, 5),
        rounds: either(args.runs.rounds, 1, 3),
        idle: either(args.idle, 500, 5000),
        standbys: list(&args.standbys, &[1], &[1, 2, 4, 8]),
        updates: match args.updates.as_slice() {
            [] => vec![0, 5, 20, 50],
            given => given.to_vec(),
        },
        shoppers: args.shoppers,
        books: either(args.books, 1000, 10_000),
        slice_percent: args.slice,
        pinned: !args.unpinned,
    };
    let report = tokio::select! {
        report = Box::pin(proxy::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, proxy::table)?;
    Ok(Code::Ok)
}

async fn run_mirror(args: cli::BenchMirror) -> anyhow::Result<Code> {
    use mirror::Measurement::{Throughput, Transfer, Upgrade};

    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let parts = match args.part.as_slice() {
        [] if args.upgrade_bin.is_none() => vec![Throughput, Transfer],
        [] => vec![Throughput, Transfer, Upgrade],
        given => given.to_vec(),
    };
    let options = mirror::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        upgrade_bin: args.upgrade_bin.clone(),
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        parts,
        loads: args.load.clone(),
        ways: match args.way.as_slice() {
            [] => mirror::Way::value_variants().to_vec(),
            given => given.to_vec(),
        },
        cuts: args.cuts,
        first_cut: args.first_cut,
        random_seconds: args.random_seconds,
        seed: args.seed,
        limits: args.limit.clone(),
        slice_percent: args.slice,
        clients: match args.clients.as_slice() {
            [] if args.common.quick => vec![8],
            [] => vec![1, 8, 32],
            given => given.to_vec(),
        },
        records: match args.records.as_slice() {
            [] if args.common.quick => vec![10_000],
            [] => vec![10_000, 100_000],
            given => given.to_vec(),
        },
        scale: either(args.scale.scale, 2, 10),
        transfer_scale: either(args.transfer_scale, 2, 70),
        seconds: either(args.runs.seconds, 2, 5),
        rounds: either(args.runs.rounds, 1, 3),
    };
    let report = tokio::select! {
        report = Box::pin(mirror::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, mirror::table)?;
    Ok(Code::Ok)
}

async fn run_dax(args: cli::BenchDax) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let options = dax::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        clients: args.clients,
        scale: either(args.scale.scale, 5, 10),
        seconds: either(args.runs.seconds, 5, 20),
        rounds: either(args.runs.rounds, 1, 3),
        outage_seconds: either(args.outage_seconds, 0, 90),
    };
    let report = tokio::select! {
        report = Box::pin(dax::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    if let Some(dir) = &args.charts.charts {
        write(
            dir,
            "dax-variants.svg",
            &dax::draw_variants(&report.variants),
        )?;
        write(dir, "dax-outages.svg", &dax::draw_outages(&report.outages))?;
    }
    print(&args.common, &report, dax::table)?;
    Ok(Code::Ok)
}

async fn run_cassandra(args: cli::BenchCassandra) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let options = cassandra::Options {
        dir: workspace.path().to_owned(),
        distance: args.distance,
        loads: args.load,
        clients: args.clients,
        seconds: args.common.either(args.runs.seconds, 3, 10),
        rounds: args.common.either(args.runs.rounds, 2, 5),
    };
    let report = tokio::select! {
        report = Box::pin(cassandra::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    print(&args.common, &report, cassandra::table)?;
    Ok(Code::Ok)
}

async fn run_soak(args: cli::BenchSoak) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let seconds = Duration::from_secs;
    let quick = |quick, whole| args.common.either(None, seconds(quick), seconds(whole));
    let duration = args.duration.unwrap_or(quick(20, 600));
    let rate = args.common.either(args.rate, 150, 300);
    let options = soak::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        duration,
        afterwards: (duration / 10).clamp(seconds(5), seconds(120)),
        rate: (rate > 0).then_some(f64::from(rate)),
        clients: args.clients,
        scale: args.common.either(args.scale.scale, 2, 4),
        store: args.store,
        checkpoints: quick(5, 30),
        every: quick(1, 2),
    };
    let result = tokio::select! {
        report = Box::pin(soak::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(
        &mut workspace,
        matches!(&result, Ok(report) if report.passed),
    );
    let mut report = result?;
    report.data = workspace.is_kept().then(|| workspace.path().to_owned());
    if let Some(file) = args.picture {
        std::fs::write(&file, soak::draw(&report))
            .with_context(|| format!("cannot write {}", file.display()))?;
        report.picture = Some(file);
    }
    print(&args.common, &report, soak::table)?;
    Ok(verdict(report.passed))
}

async fn run_chaos(args: cli::BenchChaos) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let seconds = Duration::from_secs;
    let either = |given, quick, whole| args.common.either(given, seconds(quick), seconds(whole));
    let options = chaos::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        before: args.before,
        duration: either(args.duration, 60, 600),
        seed: args.seed,
        rate: f64::from(args.rate),
        heartbeat: args.heartbeat,
        flaw: args.flaw,
    };
    let result = tokio::select! {
        report = Box::pin(chaos::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(&mut workspace, matches!(&result, Ok(it) if it.passed));
    let mut report = result?;
    report.data = workspace.is_kept().then(|| workspace.path().to_owned());
    print(&args.common, &report, chaos::table)?;
    Ok(verdict(report.passed))
}

async fn run_standby(args: cli::BenchStandby) -> anyhow::Result<Code> {
    let workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let before = u64::from(either(args.seconds, 40, 600));
    let options = standby::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        parts: all_unless_given(args.only),
        scale: either(args.scale.scale, 10, 40),
        transactions: either(None, 300, 3000),
        seconds: (before, before / 2),
        size_mib: either(args.size, 300, 4096),
        cost: (either(None, 5, 10), either(args.rounds, 3, 20)),
        clients: args.clients,
    };
    let report = tokio::select! {
        report = Box::pin(standby::run(&options, say)) => report?,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    if let Some(dir) = &args.charts.charts {
        if !report.curve.is_empty() {
            write(
                dir,
                "standby-curve.svg",
                &standby::draw_curve(&report.curve),
            )?;
        }
        if !report.methods.is_empty() {
            let chart = standby::draw_methods(&report.methods);
            write(dir, "standby-methods.svg", &chart)?;
        }
    }
    print(&args.common, &report, standby::table)?;
    Ok(Code::Ok)
}

async fn run_failover(args: cli::BenchFailover) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick| args.common.either(given, quick, 20);
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let options = failover::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        parts: all_unless_given(args.only),
        faults: all_unless_given(args.fault),
        rounds: either(args.rounds, 3),
        row: either(args.row, 5),
        busy: args.common.either(args.busy, minutes(1), minutes(30)),
        clients: args.clients,
        scale: args.scale.scale.unwrap_or(7),
        seed: args.seed,
    };
    let result = tokio::select! {
        report = Box::pin(failover::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(
        &mut workspace,
        matches!(&result, Ok(report) if report.passed),
    );
    let report = result?;
    if let Some(dir) = &args.charts.charts {
        write(dir, "failover.svg", &failover::draw(&report))?;
    }
    print(&args.common, &report, failover::table)?;
    Ok(verdict(report.passed))
}

async fn run_zones(args: cli::BenchZones) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let options = zones::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        clients: args.clients,
        scale: args.common.either(args.scale.scale, 2, 20),
        around: Duration::from_secs(args.common.either(None, 5, 30)),
        scrub_rate: args.scrub_rate,
    };
    let result = tokio::select! {
        report = Box::pin(zones::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(
        &mut workspace,
        matches!(&result, Ok(report) if report.passed),
    );
    let report = result?;
    print(&args.common, &report, zones::table)?;
    Ok(verdict(report.passed))
}

async fn run_mariadb(args: cli::BenchMariadb) -> anyhow::Result<Code> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let options = mariadb::Options {
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        clients: args.clients,
        accounts: either(args.accounts, 100_000, 1_000_000),
        seconds: either(args.runs.seconds, 3, 10),
        rounds: either(args.runs.rounds, 1, 5),
        kills: either(args.kills, 1, 5),
        before: either(None, 5, 20),
    };
    let result = tokio::select! {
        report = Box::pin(mariadb::run(&options, say)) => report,
        () = interrupted() => return Ok(Code::Interrupted),
    };
    keep_unless(
        &mut workspace,
        matches!(&result, Ok(report) if report.passed),
    );
    let report = result?;
    print(&args.common, &report, mariadb::table)?;
    Ok(verdict(report.passed))
}

async fn run_peers(args: cli::BenchPeers) -> anyhow::Result<Code> {
    let records = match &args.from {
        Some(file) => peers::read(file)?,
        None => match measure_peers(&args).await? {
            Some(records) => records,
            None => return Ok(Code::Interrupted),
        },
    };
    let report = peers::Report::of(&records);
    if let Some(dir) = &args.report {
        for (name, text) in report.files() {
            write(dir, &name, &text)?;
        }
    }
    if !args.common.json {
        print!("{}", report.table());
    }
    Ok(verdict(report.lost_by_understudy() == 0))
}

fn modes_and_clients(args: &cli::BenchPeers) -> Vec<(peers::Mode, u16)> {
    let modes = match args.common.quick && args.load.is_empty() {
        _ if args.subscriber => Vec::new(),
        true => vec![peers::Mode::ReadWrite, peers::Mode::ReadOnly],
        false => all_unless_given(args.load.clone()),
    };
    let left_out = |mode| mode == peers::Mode::TpcC && args.load.is_empty() && !peers::has_go_tpc();
    if modes.iter().any(|mode| left_out(*mode)) {
        say("there is no go-tpc (scripts/peers installs it), so TPC-C is left out");
    }
    let modes = modes.into_iter().filter(|mode| !left_out(*mode));
    let clients = |mode| match mode {
        peers::Mode::ReadWrite => args.clients.clone(),
        _ => vec![args.other_clients],
    };
    let loads = modes.flat_map(|mode| clients(mode).into_iter().map(move |n| (mode, n)));
    loads.collect()
}

/// Measures; what the file has afterwards. `None` if interrupted.
async fn measure_peers(args: &cli::BenchPeers) -> anyhow::Result<Option<Vec<peers::Record>>> {
    let mut workspace = Workspace::create(args.common.data.as_deref(), false)?;
    let either = |given, quick, whole| args.common.either(given, quick, whole);
    let seconds = |quick, whole| Duration::from_secs(args.common.either(None, quick, whole));
    let options = peers::Options {
        bin: programs::find(args.programs.bin.as_deref())?,
        dir: workspace.path().to_owned(),
        understudy: understudy()?,
        systems: all_unless_given(args.system.clone()),
        rounds: either(args.runs.rounds, 1, 5),
        loads: modes_and_clients(args),
        seconds: either(args.runs.seconds, 5, 70),
        loss_clients: args.loss_clients,
        before: seconds(6, 30),
        after: seconds(8, 60),
        scale: either(args.scale.scale, 5, 20),
        buffers_mb: args.buffers_mb,
        checkpoint_seconds: args.checkpoint_seconds,
        patroni_ttl: args.patroni_ttl,
        subscriber: args.subscriber,
        distance: args.distance,
        pinned: !args.unpinned,
    };
    let records = parking_lot::Mutex::new(Vec::new());
    let found = |record: &peers::Record| {
        records.lock().push(record.clone());
        if args.common.json {
            println!("{}", serde_json::to_string(record)?);
        }
        match &args.output {
            Some(file) => peers::append(file, record),
            None => Ok(()),
        }
    };
    let result = tokio::select! {
        result = Box::pin(peers::run(&options, say, found)) => result,
        () = interrupted() => return Ok(None),
    };
    keep_unless(&mut workspace, result.is_ok());
    result?;
    Ok(Some(match &args.output {
        Some(file) => peers::read(file)?,
        None => records.into_inner(),
    }))
}
