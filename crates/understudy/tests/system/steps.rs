//! What dies in the middle of a takeover, at each of its steps.
//!
//! The node that takes over says in its log when a step is done; the test reads along and strikes at
//! once, so the next step has just begun.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::clock::Offset;

use crate::stage::{Stage, TIMEOUT};

const STEPS: [&str; 4] = ["fence", "log_tail", "replay", "promote"];

// hazard: WAL-1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn the_new_active_is_killed_at_every_step_of_its_takeover() -> Result<()> {
    let mut stage = Stage::set("steps").await?;
    for step in STEPS {
        let (first, successor, killed) = interrupted(&mut stage, step).await?;
        stage.cluster.kill_node(&successor).context("it runs")?;
        println!("{first} and, after its {step}, {successor} killed");
        // Both come back together: one of them serves, by itself.
        stage.cluster.start_node(&first)?;
        stage.cluster.start_node(&successor)?;
        goes_on(&mut stage, killed).await?;
    }
    stage.verify().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_zone_dies_at_every_step_of_a_takeover() -> Result<()> {
    let mut stage = Stage::set("zone-steps").await?;
    for (zone, step) in (1..=3).cycle().zip(STEPS) {
        let (first, _, killed) = interrupted(&mut stage, step).await?;
        stage.cluster.kill_zone(zone).context("it runs")?;
        println!("{first} and, after the other's {step}, zone {zone} killed");
        stage.outage_after(killed).await?;
        stage.commits(50).await?;
        stage.cluster.start_zone(zone)?;
        stage.cluster.start_node(&first)?;
        goes_on(&mut stage, killed).await?;
    }
    stage.verify().await
}

/// Kills the active and waits until the other node has done a step of its takeover. Returns both, and
/// when the active was killed.
async fn interrupted(stage: &mut Stage, step: &str) -> Result<(String, String, Offset)> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let standby = stage.cluster.names().find(|name| *name != active);
    let standby = standby.context("two nodes")?.to_owned();
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let log = Log::from_here(&stage.cluster.logs().join(format!("{standby}.log")))?;
    let (_, killed) = stage.kill_active().await?;
    tokio::task::block_in_place(|| log.wait_for(&format!("phase=\"{step}\"")))?;
    Ok((active, standby, killed))
}

async fn goes_on(stage: &mut Stage, killed: Offset) -> Result<()> {
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let names: Vec<String> = stage.cluster.names().map(str::to_owned).collect();
    for name in names.iter().filter(|name| **name != active) {
        stage.cluster.wait_follows(name, TIMEOUT).await?;
    }
    Ok(())
}

/// A log file from some moment on.
struct Log {
    path: PathBuf,
    from: usize,
}

impl Log {
    fn from_here(path: &Path) -> Result<Log> {
        let from = std::fs::metadata(path)?.len() as usize;
        let path = path.to_owned();
        Ok(Log { path, from })
    }

    /// Returns as soon as something is written there.
    fn wait_for(&self, what: &str) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let bytes = std::fs::read(&self.path)?;
            let new = String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default());
            if new.contains(what) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "no {what} in {new}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
