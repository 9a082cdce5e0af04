//! The demo with a virtual machine: two hosts, one machine with PostgreSQL; the processes of the host that runs it are killed under load,
//! as often as wanted, and every acknowledged commit is looked for.
//!
//! Everything is in a network namespace of its own: zones and hosts as child processes, the hosts' tap devices in one bridge, and the
//! clients, which connect to the machine itself.

mod stage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use cluster::machine::GUEST;
use cluster::machine::clients::{Clients, Seen, amcheck};
use cluster::workspace::Workspace;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use vm::network::Protection;

use super::progress::Progress;
use stage::Stage;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// An image, if there is one already, and a file with its password.
    pub image: Option<(PathBuf, PathBuf)>,
    /// What waits for checkpoints.
    pub protection: Protection,
    /// Between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Megabytes of memory.
    pub memory_mb: u64,
    /// Length of the load before the first kill, and after each.
    pub between: Duration,
    /// How often the active host is killed.
    pub kills: u32,
    /// Concurrent clients.
    pub clients: u16,
    /// Decides the moments of the kills.
    pub seed: u64,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
}

/// What the demo found: `--json` prints exactly this.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if nothing was lost, the tables and indexes are sound, and connections went on that had to.
    pub passed: bool,
    /// How often the host of the machine was killed.
    pub kills: u32,
    /// What waited for checkpoints.
    pub protection: Protection,
    /// Commits that clients were told of.
    pub acknowledged: u64,
    /// Of those, how many are not there.
    pub lost: u64,
    /// From the last acknowledged commit before a kill to the first one after it: the median.
    pub downtime_ms: f64,
    /// After each kill.
    pub downtimes_ms: Vec<f64>,
    /// The longest of them.
    pub downtime_worst_ms: f64,
    /// Connections that were open at a kill, all kills together.
    pub connections: u64,
    /// Of those, how many went on without an error.
    pub connections_kept: u64,
    /// Checkpoints that were made before the kills.
    pub epochs: u64,
    /// What one of them took on the connection.
    pub bytes_per_epoch: u64,
    /// How many times as many bytes the pages and blocks have that were written.
    pub times_fewer_bytes: f64,
    /// How long a checkpoint stopped the machine: the median.
    pub pause_ms_p50: f64,
    /// From the decision to take over until the machine ran: the median.
    pub takeover_ms: f64,
    /// Commits a second while nothing was killed.
    pub tps: f64,
    /// What `pg_amcheck` says after each kill: "OK", or the first complaint.
    pub amcheck: String,
    /// What ran the machine's code, and why that.
    pub accelerator: String,
    /// Reason why this accelerator was chosen.
    pub accelerator_reason: String,
    /// Repeats the moments of the kills.
    pub seed: u64,
}

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. Lost commits are no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, workspace.path()).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    result
}

/// Sums over the hosts that were killed.
#[derive(Default)]
struct Sums {
    epochs: u64,
    raw_bytes: u64,
    sent_bytes: u64,
    pauses: Vec<f64>,
    takeovers: Vec<f64>,
    /// What was not sound, after the first kill after which something was not.
    amcheck: Option<String>,
}

async fn on_stage(options: &Options, dir: &Path) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let mut stage = Stage::set(options, dir, &progress).await?;
    let clients = Clients::start(options.clients, &stage.password).await?;
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let mut sums = Sums::default();
    let mut kills = Vec::new();
    for number in 1..=options.kills {
        let protected = stage.wait_protected(&progress).await?;
        tokio::time::sleep(options.between.mul_f64(rng.random_range(0.5..1.5))).await;
        let status = stage
            .pair
            .status(protected)
            .await
            .context("the active host does not answer")?;
        sums.epochs += status.stats.epochs;
        sums.raw_bytes += status.stats.raw_bytes;
        sums.sent_bytes += status.stats.sent_bytes;
        sums.pauses.push(status.stats.pause_ms_p50);
        let before = clients.connections();
        let killed = stage.pair.kill(protected)?;
        progress.say(&format!("{number}: {} is killed", status.name));
        stage.pair.wait_active(1 - protected).await?;
        clients.wait_commits_after(killed).await?;
        let survivor = stage
            .pair
            .status(1 - protected)
            .await
            .context("the survivor does not answer")?;
        let found = amcheck(&stage.password).await?;
        if found != "OK" {
            sums.amcheck.get_or_insert(found);
        }
        kills.push((killed, before.len() as u64, clients.kept(&before)));
        sums.takeovers.push(survivor.stats.takeover_ms);
        if number < options.kills {
            stage.pair.restart(protected)?;
        }
    }
    let seen = clients.stop().await?;
    progress.say("verifying");
    let lost = seen.lost(&stage.password).await?;
    let report = judge(options, &stage, &seen, lost, &kills, sums);
    progress.set_state("done");
    Ok(report)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

fn judge(
    options: &Options,
    stage: &Stage,
    seen: &Seen,
    lost: u64,
    kills: &[(std::time::Instant, u64, u64)],
    sums: Sums,
) -> Report {
    let amcheck = sums.amcheck.unwrap_or_else(|| "OK".to_owned());
    let downtimes: Vec<f64> = kills.iter().map(|(at, _, _)| seen.outage_ms(*at)).collect();
    let worst = downtimes.iter().copied().fold(0.0, f64::max);
    let (connections, kept) = kills
        .iter()
        .fold((0, 0), |sum, kill| (sum.0 + kill.1, sum.1 + kill.2));
    let out: f64 = downtimes.iter().sum::<f64>() / 1e3;
    let must_keep_all = options.protection == Protection::Everything;
    Report {
        passed: lost == 0 && amcheck == "OK" && (!must_keep_all || kept == connections),
        kills: options.kills,
        protection: options.protection,
        acknowledged: seen.commits.len() as u64,
        lost,
        downtime_ms: median(downtimes.clone()),
        downtimes_ms: downtimes,
        downtime_worst_ms: worst,
        connections,
        connections_kept: kept,
        epochs: sums.epochs,
        bytes_per_epoch: sums.sent_bytes.checked_div(sums.epochs).unwrap_or(0),
        times_fewer_bytes: sums.raw_bytes as f64 / sums.sent_bytes.max(1) as f64,
        pause_ms_p50: median(sums.pauses),
        takeover_ms: median(sums.takeovers),
        tps: seen.commits.len() as f64 / (seen.ran.as_secs_f64() - out).max(1.0),
        amcheck,
        accelerator: stage.accelerator.0.clone(),
        accelerator_reason: stage.accelerator.1.clone(),
        seed: options.seed,
    }
}

/// The story in a few lines.
pub fn render(report: &Report) -> String {
    let verdict = if report.passed { "passed" } else { "FAILED" };
    format!(
        "\n  The host of a machine at {GUEST} ({}: {}) was killed {} times under load: {} commits acknowledged, {} LOST\n  \
         {} of {} connections went on; no commits for {:.0} ms (median), {:.0} ms at most\n  \
         {} checkpoints, {} bytes each, {:.0} times fewer than was written; the machine stood still for {:.1} ms (median)\n  \
         {:.0} commits a second while nothing was killed; pg_amcheck: {}\n\n  {verdict} (seed {})\n",
        report.accelerator,
        report.accelerator_reason,
        report.kills,
        report.acknowledged,
        report.lost,
        report.connections_kept,
        report.connections,
        report.downtime_ms,
        report.downtime_worst_ms,
        report.epochs,
        report.bytes_per_epoch,
        report.times_fewer_bytes,
        report.pause_ms_p50,
        report.tps,
        report.amcheck,
        report.seed,
    )
}
