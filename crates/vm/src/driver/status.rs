//! What a host answers operators.

use std::sync::Arc;
use std::time::{Duration, Instant};

use page::put_metric;
use serde::{Deserialize, Serialize};

use super::hub::Hub;
use super::stats::CheckpointStats;
use super::wire::Question;
use crate::core::{Follower, Guard, Role};
use crate::network::Protection;

/// How long a planned failover may take.
const HANDS_OVER_WITHIN: Duration = Duration::from_secs(15);

/// Why nobody starts the machine.
const DOUBTFUL: &str = "the machine ran here last, and this host restarted before all acknowledged output was synced \
    to its disk. The machine starts only where you say: run understudy vm start-from-disk on the host whose disk you \
    trust; the other host's disk has the output of the time before the machine began to run here";

/// What a host says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the host.
    pub name: String,
    /// What it is: `looking`, `copying`, `standby`, `starting` or `active`.
    pub role: String,
    /// Of an active host, how the machine is protected: `alone`, `copying`, `naming`, `protected`, `standby lost`.
    pub protection: Option<String>,
    /// What waits for checkpoints.
    pub waits: Protection,
    /// The last epoch that it owned.
    pub epoch: Option<u32>,
    /// True if it is connected to the other host.
    pub linked: bool,
    /// The last checkpoint: confirmed by the standby, or applied here.
    pub checkpoint: u64,
    /// Frames that wait for one.
    pub waiting: usize,
    /// Connections that were reset after a takeover.
    pub resets: u64,
    /// Frames of the machine that were lost because too many waited.
    pub lost_frames: u64,
    /// What runs the guest's code, and why that.
    pub accelerator: String,
    /// Reason why this accelerator was chosen.
    pub accelerator_reason: String,
    /// What went wrong last.
    pub trouble: Option<String>,
    /// Counts.
    #[serde(flatten)]
    pub stats: CheckpointStats,
}

fn words(guard: &Guard) -> (&'static str, Option<&'static str>, u64) {
    let confirmed = guard.confirmed().0;
    match guard.role() {
        Role::Looking { .. } => ("looking", None, 0),
        Role::Following { whole: None, .. } => ("copying", None, 0),
        Role::Following {
            whole: Some(number),
            ..
        } => ("standby", None, number.0),
        Role::Starting { .. } => ("starting", None, 0),
        Role::Running(follower) => {
            let protection = match follower {
                Follower::None => "alone",
                Follower::Copying(_) => "copying",
                Follower::Naming(_) => "naming",
                Follower::Current { .. } => "protected",
                Follower::Lost { .. } => "standby lost",
            };
            ("active", Some(protection), confirmed)
        }
    }
}

pub fn status(hub: &Hub) -> Status {
    let counts = hub.switch.counts();
    hub.look(|guard| {
        let (role, protection, checkpoint) = words(guard);
        Status {
            name: guard.me().name.clone(),
            role: role.to_owned(),
            protection: protection.map(str::to_owned),
            waits: hub.tuning().protection,
            epoch: guard.epoch(),
            linked: hub.peer.lock().is_some(),
            checkpoint,
            waiting: counts.waiting,
            resets: counts.resets,
            lost_frames: counts.lost,
            accelerator: hub.acceleration.accelerator.to_string(),
            accelerator_reason: hub.acceleration.reason.clone(),
            trouble: match guard.is_doubtful() {
                true => Some(DOUBTFUL.to_owned()),
                false => hub.trouble.lock().clone(),
            },
            stats: hub.stats.lock().told(),
        }
    })
}

/// Answers a question, in JSON.
pub async fn answer(hub: &Arc<Hub>, question: Question) -> Result<String, String> {
    match question {
        Question::Status => serde_json::to_string(&status(hub)).map_err(|error| error.to_string()),
        Question::Metrics => Ok(metrics(&status(hub))),
        Question::History => {
            let history = hub
                .zones
                .history()
                .await
                .map_err(|error| error.to_string())?;
            Ok(format!("[{}]", history.join(",")))
        }
        Question::Failover => fail_over(hub).await,
        Question::StartFromDisk => hub
            .act(Guard::start_from_disk)
            .map(|()| "{}".to_owned())
            .map_err(str::to_owned),
        Question::Reload => hub
            .reload()
            .map(|waits| serde_json::json!({"waits_for_the_next_start": waits}).to_string()),
    }
}

/// The standby takes over, and the machine here is gone.
async fn fail_over(hub: &Hub) -> Result<String, String> {
    let began = Instant::now();
    hub.act(|guard, out| guard.hand_over(out))
        .map_err(str::to_owned)?;
    while hub.look(|guard| matches!(guard.role(), Role::Running(_))) {
        if began.elapsed() > HANDS_OVER_WITHIN {
            return Err("the standby did not take over; see both hosts' status".to_owned());
        }
        if hub.look(|guard| *guard.role() == Role::Running(Follower::None)) {
            return Err("the standby was lost; the machine runs on here".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(format!(
        "{{\"handed_over_ms\":{}}}",
        began.elapsed().as_millis()
    ))
}

/// As Prometheus reads it: what is now, and what was counted.
fn metrics(status: &Status) -> String {
    let stats = &status.stats;
    let flag = |is_so: bool| f64::from(u8::from(is_so));
    let is_protected = status.protection.as_deref() == Some("protected");
    let gauges = [
        (
            "active",
            "Whether this host runs the machine.",
            flag(status.role == "active"),
        ),
        (
            "standby",
            "Whether it holds checkpoints of the machine.",
            flag(status.role == "standby"),
        ),
        (
            "protected",
            "Whether a current standby holds its checkpoints.",
            flag(is_protected),
        ),
        (
            "linked",
            "Whether it is connected to the other host.",
            flag(status.linked),
        ),
        (
            "epoch",
            "The last epoch that this host owned.",
            f64::from(status.epoch.unwrap_or(0)),
        ),
        (
            "waiting_frames",
            "Frames that wait for a checkpoint.",
            status.waiting as f64,
        ),
        (
            "pause_p50_seconds",
            "How long a checkpoint stops the machine.",
            stats.pause_ms_p50 / 1e3,
        ),
        (
            "pause_p99_seconds",
            "How long 99 % of them stop it at most.",
            stats.pause_ms_p99 / 1e3,
        ),
        (
            "safe_p50_seconds",
            "From the beginning of a checkpoint until the standby holds it.",
            stats.safe_ms_p50 / 1e3,
        ),
        (
            "safe_p99_seconds",
            "What 99 % of them take at most.",
            stats.safe_ms_p99 / 1e3,
        ),
    ];
    let counters = [
        (
            "checkpoints_total",
            "Checkpoints that were made.",
            stats.epochs,
        ),
        ("pages_total", "Pages that had been written.", stats.pages),
        (
            "pages_unchanged_total",
            "Of those, as they had been sent.",
            stats.pages_unchanged,
        ),
        (
            "pages_as_blocks_total",
            "Of those, named as a block of the disk.",
            stats.pages_as_blocks,
        ),
        (
            "raw_bytes_total",
            "Bytes of pages and disk that had been written.",
            stats.raw_bytes,
        ),
        (
            "sent_bytes_total",
            "Bytes that were sent.",
            stats.sent_bytes,
        ),
        (
            "disk_waits_total",
            "Writes that waited because the standby was slow.",
            stats.disk_waits,
        ),
        (
            "takeovers_total",
            "How often this host took over.",
            stats.takeovers,
        ),
        (
            "resets_total",
            "Connections reset after a takeover.",
            status.resets,
        ),
        (
            "lost_frames_total",
            "Frames of the machine that were lost because too many waited.",
            status.lost_frames,
        ),
    ];
    let mut out = String::new();
    for (name, help, value) in gauges {
        put_metric(
            &mut out,
            &format!("understudy_vm_{name}"),
            help,
            "gauge",
            value,
        );
    }
    for (name, help, value) in counters {
        put_metric(
            &mut out,
            &format!("understudy_vm_{name}"),
            help,
            "counter",
            value,
        );
    }
    out
}
