//! How far a standby is behind under steady load: at 80 % of what the machine can do, with tables
//! created, changed and dropped all the time, near the zones and far from them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::time::sleep;

use super::Options;
use super::site::{self, ACTIVE, STANDBY};
use crate::lag::{Spread, Watch};
use crate::pgbench::timed;
use cluster::Cluster;
use cluster::clients::churn::Churn;

/// Milliseconds from the standby to every copy, there and back.
const DISTANCES_MS: [f64; 2] = [0.0, 35.0];
/// Of the peak.
const SHARE: f64 = 0.8;
/// Enough reads at once for a standby that is far away (`docs/operate/configure.md`).
const PREFETCH: &str = "prefetch = 40";
/// Rounds of the churn a second.
const CHURN: f64 = 2.0;
const SETTLES: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The lag at a distance.
#[derive(Debug, Clone, Serialize)]
pub struct Lag {
    /// From the standby to every copy, there and back.
    pub distance_ms: f64,
    /// Commits a second without a limit.
    pub peak_tps: f64,
    /// Commits a second while it was measured.
    pub tps: f64,
    /// Rounds of the churn meanwhile.
    pub churn_rounds: u64,
    /// Log that is durable and not replayed, in bytes.
    pub lag_bytes: Spread,
    /// For how long its oldest position has been durable, in milliseconds.
    pub lag_ms: Spread,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Lag>> {
    let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
    settings.network = Some(store::Network::default());
    settings.heartbeat = "wide".into();
    settings.standby.push(PREFETCH.to_owned());
    say("lag: starting and filling a cluster");
    let mut cluster = site::start(options, settings, options.scale).await?;
    cluster.start_node(STANDBY)?;
    let mut found = Vec::new();
    for distance_ms in DISTANCES_MS {
        cluster.change_network(|n| *n = site::far_standby(distance_ms))?;
        cluster
            .wait_follows(STANDBY, Duration::from_secs(120))
            .await?;
        let lag = measure(options, &cluster, distance_ms).await?;
        say(&format!(
            "lag: {distance_ms} ms away: {:.0} of {:.0} tps, lag p50 {} ms, p99 {} ms, at most {} ms",
            lag.tps, lag.peak_tps, lag.lag_ms.p50, lag.lag_ms.p99, lag.lag_ms.max
        ));
        found.push(lag);
    }
    cluster.shutdown();
    Ok(found)
}

async fn measure(options: &Options, cluster: &Cluster, distance_ms: f64) -> anyhow::Result<Lag> {
    let seconds = u32::try_from(options.seconds.0).context("too long")?;
    let (active, standby) = (cluster.server(ACTIVE)?, cluster.server(STANDBY)?);
    let churn = Churn::paced(active.config(), Some(CHURN));
    let load = async |seconds: u32, how: &[&str]| {
        timed(&options.bin, &active, options.clients, seconds, how).await
    };
    let peak_tps = load(seconds.div_ceil(3), &[]).await?;
    let rate = format!("--rate={:.0}", (SHARE * peak_tps).max(1.0));
    let watch = Watch::start(&active, &standby, LOOK_EVERY);
    let before = churn.rounds();
    let watching = async {
        sleep(SETTLES).await;
        watch.looks()
    };
    let paced = [rate.as_str()];
    let (tps, from) = tokio::join!(load(seconds, &paced), watching);
    let (lag_bytes, lag_ms) = watch.spread_since(from);
    Ok(Lag {
        distance_ms,
        peak_tps,
        tps: tps?,
        churn_rounds: churn.stop().await - before,
        lag_bytes,
        lag_ms,
    })
}
