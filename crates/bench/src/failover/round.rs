//! One fault: the active is lost, somebody takes over, the lost node comes back.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use tokio::time::Instant;

use super::fault::Fault;
use super::report::Round;
use super::stage::{Stage, TIMEOUT};
use cluster::clients::clock::Offset;
use understudy::demo::takeover::Takeover;

/// Load between two faults.
const SETTLE: Duration = Duration::from_secs(2);
/// A node that was cut off or frozen stays so for this long after the takeover.
const AWAY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Plays it.
pub(super) async fn play(stage: &mut Stage, fault: Fault) -> anyhow::Result<Round> {
    tokio::time::sleep(SETTLE).await;
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let epoch = stage.last_takeover().await?.epoch;
    let at = fault.strike(stage, &active).await?;
    let struck = stage.clock.at(at);
    let takeover = takeover(stage, epoch).await?;
    let done = stage.clock.at(unix(takeover.unix_ms));
    let outage = stage.outage(struck, done).await?;
    let moments = takeover.moments(&stage.clock, struck, outage.first_after);
    tokio::time::sleep(AWAY).await;
    fault.undo(stage, &active)?;
    let protected = protected(stage, takeover.epoch).await?;
    stage.wait_protected().await?;
    ensure!(
        takeover.node != active,
        "{active} took over from itself after {}",
        fault.name()
    );
    Ok(Round {
        fault,
        from: active,
        to: takeover.node,
        downtime_ms: Offset(outage.length().as_micros() as i64).millis(),
        phases_ms: moments.phases(),
        protected_ms: protected.saturating_sub(takeover.unix_ms) as f64,
    })
}

fn unix(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// The record of the takeover that began a later epoch than `before`.
async fn takeover(stage: &Stage, before: u32) -> anyhow::Result<Takeover> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = stage.last_takeover().await?;
        if found.epoch > before {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "no takeover is recorded");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// When a standby could take over from the active of that epoch, Unix milliseconds.
async fn protected(stage: &Stage, epoch: u32) -> anyhow::Result<u64> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(since) = stage.cluster.protected_since(epoch).await? {
            return Ok(since);
        }
        ensure!(Instant::now() < deadline, "nobody protects the new active");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
