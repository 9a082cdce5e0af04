//! What standbys cost the active: the same load with none, one and three of them, in turn.
//!
//! On one machine a standby takes processor time that it would not take from another one. So the active's
//! node has the first processor for itself, if what is not a node is started with `taskset` on the others, and
//! standbys run on the last processor when it would be idle otherwise (`SCHED_IDLE`: with a mere `nice` zones
//! would wait for the end of a standby's slice when a message arrives).
//!
//! Machines drift by more than a standby can cost. So runs are short and many, those that are compared follow
//! each other at once, and what counts is the median of their ratios: standbys that shall not be there are
//! stopped (`SIGSTOP`), and ask for nothing then; those that go on first replay what they missed.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::Options;
use super::site::{self, ACTIVE};
use crate::pgbench::timed;
use crate::statistics::Sample;
use cluster::Cluster;

const STANDBYS: [&str; 3] = ["south", "east", "west"];
const COUNTS: [usize; 3] = [0, 1, 3];
/// Runs before those that count: standbys that have just attached read what they have in memory later.
const WARM_UPS: usize = 3;

/// The load with so many standbys.
#[derive(Debug, Clone, Serialize)]
pub struct Cost {
    /// Number of standbys.
    pub standbys: usize,
    /// Transactions a second.
    pub tps: Sample,
    /// By those without standbys in the same round.
    pub ratio: Sample,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Cost>> {
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    settings.nodes.truncate(1);
    settings.nodes.extend(STANDBYS.map(str::to_owned));
    let processors = processors_online()?;
    let last = (processors - 1).to_string();
    let wrapper = ["chrt", "--idle", "0", "taskset", "-c", &last];
    let wrapper: Vec<String> = wrapper.iter().map(ToString::to_string).collect();
    settings.wrappers = STANDBYS
        .map(|name| (name.to_owned(), wrapper.clone()))
        .into();
    if processors > 1 {
        let first = ["taskset", "-c", "0"].map(str::to_owned).to_vec();
        settings.wrappers.push((ACTIVE.to_owned(), first));
    }
    say("cost: starting and filling a cluster");
    let mut cluster = site::start(options, settings, options.scale).await?;
    for name in STANDBYS {
        cluster.start_node(name)?;
    }
    with_standbys(&mut cluster, STANDBYS.len()).await?;
    for _ in 0..WARM_UPS {
        load(options, &cluster).await?;
    }
    let mut runs = COUNTS.map(|_| Vec::new());
    for round in 1..=options.cost.1 {
        // There and back, so that none always comes first.
        let mut order: Vec<usize> = (0..COUNTS.len()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for at in order {
            with_standbys(&mut cluster, COUNTS[at]).await?;
            runs[at].push(load(options, &cluster).await?);
        }
        let last = runs
            .iter()
            .map(|runs| format!("{:.0}", runs[runs.len() - 1]));
        let last = last.collect::<Vec<_>>().join(", ");
        say(&format!("cost: round {round}: {last} tps"));
    }
    cluster.shutdown();
    let alone = runs[0].clone();
    let costs = COUNTS.iter().zip(runs).map(|(standbys, tps)| {
        let ratios = tps.iter().zip(&alone).map(|(tps, alone)| tps / alone);
        Cost {
            standbys: *standbys,
            ratio: Sample::of(ratios.collect()),
            tps: Sample::of(tps),
        }
    });
    Ok(costs.collect())
}

/// All of this machine's, not only those that `taskset` left to us.
fn processors_online() -> anyhow::Result<usize> {
    let file = "/sys/devices/system/cpu/online";
    let ranges = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    // "0-3", or "0,2-3"; the last is the highest.
    let last = ranges.trim().rsplit([',', '-']).next().unwrap_or_default();
    let last: usize = last
        .parse()
        .with_context(|| format!("{file} says {ranges}"))?;
    Ok(last + 1)
}

/// Stops and lets go on until there are so many, and they follow.
async fn with_standbys(cluster: &mut Cluster, count: usize) -> anyhow::Result<()> {
    for (at, name) in STANDBYS.iter().enumerate() {
        let process = cluster.node_process(name).context("it was started")?;
        match at < count {
            true => process.resume(),
            false => drop(process.pause()),
        }
    }
    for name in &STANDBYS[..count] {
        cluster.wait_follows(name, Duration::from_secs(120)).await?;
    }
    Ok(())
}

async fn load(options: &Options, cluster: &Cluster) -> anyhow::Result<f64> {
    let server = cluster.server(ACTIVE)?;
    timed(&options.bin, &server, options.clients, options.cost.0, &[]).await
}
