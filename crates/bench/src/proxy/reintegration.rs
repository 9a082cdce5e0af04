//! What readers see of a standby that is lost and returns: the reintegration of a failed node in dynamic multiversioning
//! (Section 6.2), with a spare that takes its place.
//!
//! All reads go to one standby, and a second one is the spare: in the *warm* case it gets one read in a hundred, in the
//! *cold* one none, so that its caches hold only what it replayed. The standby is killed with its machine; the spare
//! serves until the standby is back, whose caches are empty.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::clients::schema::Server;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;

use super::Options;
use super::scaling::{READS, Shop};
use crate::statistics::Sample;

/// One loss and return.
#[derive(Debug, Clone, Serialize)]
pub struct Reintegration {
    /// True if the spare got reads before it was needed.
    pub warm: bool,
    /// Interactions in each second.
    pub tps: Vec<f64>,
    /// When the standby was killed, in seconds since the first of them.
    pub killed_s: f64,
    /// When it was started again.
    pub started_s: f64,
    /// When it followed again.
    pub follows_s: f64,
    /// Interactions a second in the middle, before the kill.
    pub before_tps: f64,
    /// The share of that in the worst second between the kill and the return.
    pub worst_share: f64,
    /// From the kill until nine tenths were reached in each of three seconds, if they were before the return.
    pub spare_recovers_s: Option<f64>,
    /// From the return until nine tenths were reached in each of three seconds, if they were.
    pub standby_recovers_s: Option<f64>,
}

const BEFORE: Duration = Duration::from_secs(20);
const AWAY: Duration = Duration::from_secs(30);
const AFTER: Duration = Duration::from_secs(40);
/// How many times the books of the other part: caches must matter.
const BOOKS_FACTOR: u32 = 10;
/// How many times the slice of the other part: there are fewer servers.
const SLICE_FACTOR: u32 = 3;
/// Updates in a hundred interactions.
const UPDATES: u32 = 5;
/// The shop has to open before anything is measured.
const WARM_UP: Duration = Duration::from_secs(20);

/// The cold case, and the warm one.
pub(super) async fn measure(
    options: &Options,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Reintegration>> {
    let mut options = options.clone();
    options.books *= BOOKS_FACTOR;
    options.slice_percent = (options.slice_percent * SLICE_FACTOR).min(100);
    let mut all = Vec::new();
    for warm in [false, true] {
        let name = if warm { "warm" } else { "cold" };
        let mut shop = Shop::open(&options, name, 2).await?;
        let one = lose(&options, &mut shop, warm).await?;
        shop.cluster.shutdown();
        let after = |seconds: Option<f64>| {
            seconds.map_or_else(|| "not".to_owned(), |s| format!("after {s:.0} s"))
        };
        say(&format!(
            "{name} spare: {:.0} interactions/s before, {:.0} % in the worst second, nine tenths {} with the spare, \
             {} with the standby",
            one.before_tps,
            one.worst_share * 100.0,
            after(one.spare_recovers_s),
            after(one.standby_recovers_s)
        ));
        all.push(one);
    }
    Ok(all)
}

async fn lose(options: &Options, shop: &mut Shop, warm: bool) -> anyhow::Result<Reintegration> {
    let share = if warm { "spare = 0.01" } else { "spare = 0.0" };
    let settings = [&READS[..], &["spares = [\"standby2\"]", share]].concat();
    let proxy = shop.cluster.start_proxy(&settings).await?;
    let arguments = shop.arguments(options, UPDATES)?;
    let whole = WARM_UP + BEFORE + AWAY + AFTER + Duration::from_secs(30);
    let mut load = start(options, proxy.server(), &arguments, whole)?;
    tokio::time::sleep(WARM_UP).await;
    while load.seconds.try_recv().is_ok() {}
    let began = Instant::now();
    tokio::time::sleep(BEFORE).await;
    shop.cluster
        .kill_node("standby1")
        .context("it does not run")?;
    let killed_s = began.elapsed().as_secs_f64();
    tokio::time::sleep(AWAY).await;
    let started_s = began.elapsed().as_secs_f64();
    shop.cluster.start_node("standby1")?;
    shop.cluster
        .wait_follows("standby1", Duration::from_secs(60))
        .await?;
    shop.limit("standby1", options.slice_percent)?;
    let follows_s = began.elapsed().as_secs_f64();
    tokio::time::sleep(AFTER).await;
    load.child.kill().await?;
    let mut tps = Vec::new();
    while let Ok(second) = load.seconds.try_recv() {
        tps.push(second);
    }
    ensure!(
        tps.len() as f64 > follows_s,
        "pgbench ended early: only {} seconds",
        tps.len()
    );
    Ok(judge(warm, tps, killed_s, started_s, follows_s))
}

fn judge(
    warm: bool,
    tps: Vec<f64>,
    killed_s: f64,
    started_s: f64,
    follows_s: f64,
) -> Reintegration {
    let (killed, started, follows) = (killed_s as usize, started_s as usize, follows_s as usize);
    let before_tps = Sample::of(tps[..killed].to_vec()).median;
    let least = tps[killed..started]
        .iter()
        .copied()
        .fold(f64::MAX, f64::min);
    let enough = before_tps * 0.9;
    let recovers = |from: usize, to: usize| {
        let windows = tps[from..to].windows(3);
        let mut all = windows.enumerate();
        let found = all.find(|(_, three)| three.iter().all(|tps| *tps >= enough));
        found.map(|(at, _)| at as f64)
    };
    Reintegration {
        warm,
        killed_s,
        started_s,
        follows_s,
        before_tps,
        worst_share: least / before_tps.max(f64::MIN_POSITIVE),
        spare_recovers_s: recovers(killed, started),
        standby_recovers_s: recovers(follows, tps.len()),
        tps,
    }
}

/// pgbench at work.
struct Load {
    child: Child,
    /// The rate of each second.
    seconds: UnboundedReceiver<f64>,
}

fn start(
    options: &Options,
    server: &Server,
    arguments: &[String],
    time: Duration,
) -> anyhow::Result<Load> {
    let mut child = Command::new(options.bin.join("pgbench"))
        .args(arguments)
        .args(["--progress=1", &format!("--time={}", time.as_secs())])
        .args(server.arguments())
        .envs(server.environment())
        .arg(&server.database)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run pgbench")?;
    let stderr = child.stderr.take().context("it was asked for")?;
    let (to, seconds) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if let Some(tps) = progress(&line) {
                // Whoever reads may have done with it.
                let _ = to.send(tps);
            }
        }
    });
    Ok(Load { child, seconds })
}

/// Finds the rate in `progress: 5.0 s, 1234.5 tps, lat ...`.
fn progress(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("progress: ")?;
    let (_, rest) = rest.split_once(", ")?;
    rest.split_once(" tps")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        let line = "progress: 2.0 s, 152.9 tps, lat 6.536 ms stddev 0.361, 0 failed";
        assert_eq!(progress(line), Some(152.9));
        assert_eq!(progress("pgbench (15.1)"), None);
    }

    #[test]
    fn the_return_of_nine_tenths_counts_when_it_lasts() {
        let mut tps = vec![100.0; 5];
        tps.extend([0.0, 95.0, 20.0, 95.0, 92.0, 91.0, 95.0]);
        tps.extend([10.0, 50.0, 99.0, 99.0, 99.0]);
        let judged = judge(true, tps, 5.0, 12.0, 12.0);
        assert_eq!(judged.before_tps, 100.0);
        assert_eq!(judged.worst_share, 0.0);
        assert_eq!(judged.spare_recovers_s, Some(3.0));
        assert_eq!(judged.standby_recovers_s, Some(2.0));
    }
}
