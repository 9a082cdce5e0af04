//! How soon throughput is back after a takeover, against a cold start on the same volume, with a working
//! set several times as large as `shared_buffers`.
//!
//! Cold is: no process of the cluster ran before, and the kernel has dropped what it kept of the disk.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::time::sleep;

use super::Options;
use super::methods::first_second_at;
use super::site::{self, ACTIVE, STANDBY};
use cluster::Cluster;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use cluster::clients::load::{self, Load};

/// MiB of accounts and their index for each unit of pgbench's scale.
const MIB_PER_SCALE: u32 = 15;
/// The working set by `shared_buffers`.
const TIMES: u32 = 4;
/// Throughput that counts as back, of what it was before the failure.
const BACK_SHARE: f64 = 0.9;
const SECOND: Duration = Duration::from_secs(1);
/// The first seconds after the failure, or the start, that are compared.
const FIRST: Duration = Duration::from_secs(10);

/// What clients got after a takeover, and after a cold start.
#[derive(Debug, Clone, Serialize)]
pub struct Warmth {
    /// `shared_buffers`, in MiB; the database is four times as large.
    pub buffers_mib: u32,
    /// Commits a second before the failure.
    pub tps_before: f64,
    /// After the active was killed.
    pub takeover: Return,
    /// After one node was started on the volume.
    pub cold: Return,
}

/// How throughput came back.
#[derive(Debug, Clone, Serialize)]
pub struct Return {
    /// Until the first commit, from the failure or the start of the node.
    pub downtime_s: Option<f64>,
    /// Until the first second with 90 % of what it was before the failure.
    pub back_after_s: Option<f64>,
    /// Commits a second in the first ten seconds, by those before the failure.
    pub first_share: f64,
    /// Commits in each second from then on.
    pub commits: Vec<u32>,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Warmth> {
    let buffers_mib = (options.scale * MIB_PER_SCALE).div_ceil(TIMES);
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    let buffers = ("shared_buffers".to_owned(), format!("{buffers_mib}MB"));
    settings.parameters.push(buffers);
    say("warm: starting and filling a cluster");
    let mut cluster = site::start(options, settings, options.scale).await?;
    cluster.start_node(STANDBY)?;
    cluster
        .wait_follows(STANDBY, Duration::from_secs(120))
        .await?;

    let clock = Clock::start();
    let load = start(options, &cluster, clock, 0);
    sleep(Duration::from_secs(options.seconds.0)).await;
    let before = Offset(clock.now().0 / 2);
    let killed = cluster.kill_node(ACTIVE).context("the active runs")?;
    let killed = clock.at(killed.at);
    sleep(Duration::from_secs(options.seconds.1)).await;
    let end = clock.now();
    let history = load.stop().await;
    let tps_before = history.rate(before, killed);
    let takeover = returned(&history, killed, end, tps_before);
    say(&format!(
        "warm: takeover: {tps_before:.0} tps before, back after {:?} s, {:.2} in the first seconds",
        takeover.back_after_s, takeover.first_share
    ));

    let cold = cold_start(options, &mut cluster, tps_before).await?;
    say(&format!(
        "warm: cold start: back after {:?} s, {:.2} in the first seconds",
        cold.back_after_s, cold.first_share
    ));
    cluster.shutdown();
    Ok(Warmth {
        buffers_mib,
        tps_before,
        takeover,
        cold,
    })
}

async fn cold_start(
    options: &Options,
    cluster: &mut Cluster,
    tps_before: f64,
) -> anyhow::Result<Return> {
    let zones = cluster.options().zones * cluster.options().servers_per_zone;
    cluster.shutdown();
    drop_caches()?;
    for zone in 1..=zones {
        cluster.start_zone(zone)?;
    }
    let clock = Clock::start();
    let load = start(options, cluster, clock, i64::MAX / 2);
    let started = clock.now();
    cluster.start_node(STANDBY)?;
    sleep(Duration::from_secs(options.seconds.1)).await;
    let end = clock.now();
    let history = load.stop().await;
    Ok(returned(&history, started, end, tps_before))
}

/// Clients that number their transactions from behind `numbered_after` on.
fn start(options: &Options, cluster: &Cluster, clock: Clock, numbered_after: i64) -> Load {
    let clients = load::Options {
        clients: options.clients,
        scale: options.scale,
        retry: Duration::from_millis(10),
        numbered_after,
        ..load::Options::default()
    };
    Load::start(cluster.any_writable(), clients, clock)
}

fn returned(history: &History, from: Offset, end: Offset, tps_before: f64) -> Return {
    let outage = history.outage(from);
    let first = Offset(from.0 + FIRST.as_micros() as i64);
    let commits = history.buckets(SECOND, end);
    let back = first_second_at(&commits, from.seconds(), BACK_SHARE * tps_before);
    let skipped = from.seconds().floor().max(0.0) as usize;
    Return {
        downtime_s: outage.map(|o| o.first_after.since(from).as_secs_f64()),
        back_after_s: back,
        first_share: history.rate(from, first.min(end)) / tps_before.max(f64::MIN_POSITIVE),
        commits: commits.into_iter().skip(skipped).collect(),
    }
}

/// Has the kernel forget what it kept of files.
fn drop_caches() -> anyhow::Result<()> {
    nix::unistd::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .context("cannot have the kernel drop its caches; a cold start is measured as root")
}
