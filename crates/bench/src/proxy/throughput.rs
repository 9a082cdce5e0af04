//! How many transactions a second each way lets through, and how long they take.

use std::path::Path;

use cluster::Cluster;
use serde::Serialize;

use super::ways::{Open, Pooling, Way};
use super::{Load, Options, Protocol};
use crate::peers::footprint::cpu_seconds;
use crate::rates::{Logs, Rate};
use crate::statistics::Sample;

/// One load, on all ways.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// What was sent.
    pub load: Load,
    /// Protocol in which it was sent.
    pub protocol: Protocol,
    /// How servers were shared.
    pub pooling: Pooling,
    /// By how many clients.
    pub clients: u16,
    /// Each way, in the order of [`Way::ALL`].
    pub ways: Vec<Measured>,
}

/// One load on one way.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Way that was measured.
    pub way: Way,
    /// Transactions a second.
    pub tps: Sample,
    /// The middle latency in milliseconds.
    pub p50_ms: Sample,
    /// The latency that one transaction in a hundred exceeds, in milliseconds.
    pub p99_ms: Sample,
    /// Processor time of the pooler for a transaction, in microseconds; 0 without one.
    pub cpu_us: Sample,
}

/// What one run gave.
struct Run {
    rate: Rate,
    cpu_us: f64,
}

/// Of so many read-only transactions one is logged: the log itself costs.
const LOGGED_SHARE: f64 = 0.1;

/// Measures every combination.
pub(super) async fn measure(
    options: &Options,
    cluster: &Cluster,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for &pooling in &options.poolings {
        let mut ways = Vec::new();
        for way in Way::ALL {
            ways.push(Open::new(way, cluster, pooling, &options.dir).await?);
        }
        for &load in &options.loads {
            for &protocol in &options.protocols {
                for &clients in &options.clients {
                    let empty = Workload {
                        load,
                        protocol,
                        pooling,
                        clients,
                        ways: Vec::new(),
                    };
                    workloads.push(alternate(options, &ways, empty, say).await?);
                }
            }
        }
    }
    Ok(workloads)
}

/// Runs one load in turn on all ways. A short run of each before them does not count.
async fn alternate(
    options: &Options,
    ways: &[Open],
    mut workload: Workload,
    say: &impl Fn(&str),
) -> anyhow::Result<Workload> {
    let mut runs: Vec<Vec<Run>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..=options.rounds {
        for (way, runs) in ways.iter().zip(&mut runs) {
            let seconds = if round == 0 { 1 } else { options.seconds };
            let run = timed(options, way, &workload, seconds).await?;
            if round > 0 {
                runs.push(run);
            }
        }
    }
    let of = |runs: &[Run], value: fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
    let measured = ways.iter().zip(&runs).map(|(open, runs)| Measured {
        way: open.way,
        tps: of(runs, |run| run.rate.tps),
        p50_ms: of(runs, |run| run.rate.p50_ms),
        p99_ms: of(runs, |run| run.rate.p99_ms),
        cpu_us: of(runs, |run| run.cpu_us),
    });
    workload.ways = measured.collect();
    say(&sentence(&workload));
    Ok(workload)
}

fn sentence(workload: &Workload) -> String {
    let ways = workload.ways.iter().map(|one| {
        let (tps, p50_us) = (one.tps.median, one.p50_ms.median * 1000.0);
        let cpu_us = one.cpu_us.median;
        format!("{} {tps:.0} tps, {p50_us:.0} us (cpu {cpu_us:.1})", one.way)
    });
    format!(
        "{:?}, {:?}, {} pooling, {} clients: {}",
        workload.load,
        workload.protocol,
        workload.pooling.name(),
        workload.clients,
        ways.collect::<Vec<_>>().join("; ")
    )
}

async fn timed(
    options: &Options,
    way: &Open,
    workload: &Workload,
    seconds: u32,
) -> anyhow::Result<Run> {
    let protocol = match workload.protocol {
        Protocol::Simple => "simple",
        Protocol::Extended => "extended",
    };
    let mut arguments = vec![
        format!("--protocol={protocol}"),
        "--no-vacuum".to_owned(),
        format!("--client={}", workload.clients),
        "--jobs=1".to_owned(),
        format!("--time={seconds}"),
    ];
    if workload.load == Load::SelectOnly {
        arguments.push("--select-only".to_owned());
        arguments.push(format!("--sampling-rate={LOGGED_SHARE}"));
    }
    let dir: &Path = &options.dir.join("logs");
    let used = || way.pid().and_then(cpu_seconds).unwrap_or_default();
    let before = used();
    let logs = Logs::create(dir)?;
    let rate = logs.run(&options.bin, &way.server, &arguments).await?;
    let cpu_us = (used() - before) * 1e6 / (rate.transactions as f64).max(1.0);
    Ok(Run { rate, cpu_us })
}
