//! What is done about a slow standby, compared as the paper does (6.6, table 6.3, figures 6.11 to 6.13):
//! nothing, the active waits, the standby skips, the standby reads more at the same time. The active
//! fails under load; the standby takes over.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::Options;
use super::site::{self, ACTIVE, STANDBY};
use cluster::Cluster;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::History;
use cluster::clients::load::{self, Load};
use cluster::clients::session::connect;

/// From the standby to every copy, there and back.
const LATENCY_MS: f64 = 5.0;
/// A standby so far behind counts as slow, so that it happens within a short run.
const MAX_LAG: &str = "max_lag = \"2MiB\"";
/// Throughput that counts as the peak reached again, of what it is in the end.
const PEAK_SHARE: f64 = 0.9;

/// A way to deal with a slow standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// None.
    Nothing,
    /// Active-Wait-Synchronously.
    Wait,
    /// Unsafe-Page-Eviction: here, attaching afresh.
    Skip,
    /// Increase-Read-I/O-Thread: here, blocks read ahead.
    ReadAhead,
}

impl Method {
    /// In the paper's order.
    pub const ALL: [Method; 4] = [
        Method::Wait,
        Method::Skip,
        Method::ReadAhead,
        Method::Nothing,
    ];

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Method::Nothing => "nothing",
            Method::Wait => "the active waits",
            Method::Skip => "the standby skips",
            Method::ReadAhead => "10 reads at once",
        }
    }

    fn settings(self) -> [&'static str; 3] {
        match self {
            Method::Nothing => ["prefetch = 0", "on_lag = \"follow\"", MAX_LAG],
            Method::Wait => ["prefetch = 0", "on_lag = \"wait\"", MAX_LAG],
            Method::Skip => ["prefetch = 0", "on_lag = \"skip\"", MAX_LAG],
            Method::ReadAhead => ["prefetch = 10", "on_lag = \"follow\"", MAX_LAG],
        }
    }
}

/// What one method led to.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Method that was used.
    pub method: Method,
    /// Commits in each second.
    pub commits: Vec<u32>,
    /// When the active was killed.
    pub failure_s: f64,
    /// Commits a second before that.
    pub tps_before: f64,
    /// By those without any method.
    pub ratio: f64,
    /// Log that the standby had not replayed then, seen at most a second before.
    pub lag_bytes_at_failure: u64,
    /// From the failure to the first commit that began after it; `None` if there was none.
    pub downtime_s: Option<f64>,
    /// From the failure to the first second with 90 % of the final throughput.
    pub peak_after_s: Option<f64>,
    /// Blocks that the standby's mount held, second by second before the failure.
    pub blocks_held: Vec<u64>,
    /// How often the standby began anew.
    pub skips: u64,
    /// How long commits were held.
    pub held_ms: u64,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for method in Method::ALL {
        say(&format!("methods: {}", method.describe()));
        let name = method.describe().replace(' ', "-");
        let outcome = measure(options, &dir.join(name), method).await?;
        say(&format!(
            "methods: {}: {:.0} tps, down {:?} s, at the peak after {:?} s",
            method.describe(),
            outcome.tps_before,
            outcome.downtime_s,
            outcome.peak_after_s
        ));
        outcomes.push(outcome);
    }
    let nothing = outcomes.iter().find(|o| o.method == Method::Nothing);
    let usual = nothing.map_or(0.0, |o| o.tps_before);
    for outcome in &mut outcomes {
        outcome.ratio = outcome.tps_before / usual.max(f64::MIN_POSITIVE);
    }
    Ok(outcomes)
}

async fn measure(options: &Options, dir: &Path, method: Method) -> anyhow::Result<Outcome> {
    let mut settings = site::settings(options, dir, &method.settings());
    let often = ("checkpoint_timeout".to_owned(), "30s".to_owned());
    settings.parameters.push(often);
    let mut cluster = site::start(options, settings, options.scale).await?;
    // The standby begins behind what was filled in, and has nothing of it in memory.
    let client = connect(&cluster.server(ACTIVE)?.config()).await?;
    client.batch_execute("CHECKPOINT").await?;
    cluster.start_node(STANDBY)?;
    cluster
        .wait_follows(STANDBY, Duration::from_secs(60))
        .await?;
    cluster.change_network(|n| *n = site::far_standby(LATENCY_MS))?;

    let clock = Clock::start();
    let clients = load::Options {
        clients: options.clients,
        scale: options.scale,
        ..load::Options::default()
    };
    let load = Load::start(cluster.any_writable(), clients, clock);
    let watched = watch(&cluster, Duration::from_secs(options.seconds.0)).await?;
    // A promotion copies the log segment in which the old timeline ends, which from here takes seconds
    // that differ with the place in it. At the start of one there is nothing to copy.
    client.batch_execute("SELECT pg_switch_wal()").await?;
    let killed = cluster.kill_node(ACTIVE).context("the active runs")?;
    let killed = clock.at(killed.at);
    sleep(Duration::from_secs(options.seconds.1)).await;
    let end = clock.now();
    let history = load.stop().await;
    cluster.shutdown();
    Ok(outcome(method, &history, killed, end, watched))
}

/// What was seen of the nodes before the failure.
#[derive(Debug, Default)]
struct Watched {
    blocks_held: Vec<u64>,
    lag_bytes: u64,
    skips: u64,
    held_ms: u64,
}

async fn watch(cluster: &Cluster, length: Duration) -> anyhow::Result<Watched> {
    let until = Instant::now() + length;
    let mut watched = Watched::default();
    while Instant::now() < until {
        sleep(Duration::from_secs(1)).await;
        let standby = site::ask(cluster, STANDBY).await?.unwrap_or_default();
        let active = site::ask(cluster, ACTIVE).await?.unwrap_or_default();
        let held = standby["held_blocks"].as_u64().unwrap_or_default();
        watched.blocks_held.push(held);
        let skips = standby["skips"]["count"].as_u64();
        watched.skips = skips.unwrap_or(watched.skips);
        let held_ms = active["waits"]["total_ms"].as_u64();
        watched.held_ms = held_ms.unwrap_or(watched.held_ms);
        let redo = site::position(&standby, "redo").max(site::position(&standby, "applied"));
        if redo > volume::lsn::Lsn::ZERO {
            let end = site::log_end(cluster).await?;
            watched.lag_bytes = end.bytes_since(redo);
        }
    }
    Ok(watched)
}

fn outcome(
    method: Method,
    history: &History,
    killed: Offset,
    end: Offset,
    watched: Watched,
) -> Outcome {
    let commits = history.buckets(Duration::from_secs(1), end);
    let downtime = history.outage(killed).map(|o| o.first_after.since(killed));
    let failure_s = killed.seconds();
    // The first seconds open connections and fill buffers.
    let settled = Offset(killed.0 / 5);
    Outcome {
        method,
        failure_s,
        tps_before: history.rate(settled, killed),
        ratio: 0.0,
        lag_bytes_at_failure: watched.lag_bytes,
        downtime_s: downtime.map(|d| d.as_secs_f64()),
        peak_after_s: peak_after(&commits, failure_s),
        blocks_held: watched.blocks_held,
        skips: watched.skips,
        held_ms: watched.held_ms,
        commits,
    }
}

/// From the failure to the first second that has nearly what the last quarter has.
fn peak_after(commits: &[u32], failure_s: f64) -> Option<f64> {
    let first = failure_s.ceil() as usize;
    // The last second is not a whole one.
    let after = commits.get(first..commits.len().saturating_sub(1))?;
    let last = &after[after.len() - after.len() / 4..];
    let final_rate = last.iter().sum::<u32>() as f64 / last.len().max(1) as f64;
    if final_rate == 0.0 {
        return None;
    }
    first_second_at(commits, failure_s, PEAK_SHARE * final_rate)
}

/// From a moment to the end of the first whole second with so many commits.
pub(super) fn first_second_at(commits: &[u32], from_s: f64, wanted: f64) -> Option<f64> {
    let first = from_s.ceil() as usize;
    let after = commits.get(first..)?;
    let at = after.iter().position(|n| f64::from(*n) >= wanted)?;
    Some((first + at) as f64 + 1.0 - from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_reached_in_the_first_second_that_is_as_good_as_the_end() {
        let mut commits = vec![100; 10];
        commits.extend([0, 0, 40, 60, 91, 80, 100, 100, 100, 100, 100, 3]);
        let peak = peak_after(&commits, 9.5).unwrap();
        assert!((peak - 5.5).abs() < 1e-9, "{peak}");
        assert_eq!(peak_after(&[10, 10, 0, 0, 0, 0, 0], 2.0), None);
        assert_eq!(peak_after(&[], 2.0), None);
    }
}
