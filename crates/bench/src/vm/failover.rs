//! A host that is killed under load, and what clients see of it.

use std::time::Duration;

use anyhow::Context;
use cluster::clients::clock::Clock;
use serde::Serialize;

use super::loads::{Load, Running};
use super::stage::{Guest, Stage};
use super::ways::Way;
use super::{Options, Report, Subject};
use crate::statistics::Sample;

/// How long a standby waits for the active host: `silence`, as it is if the configuration does not say.
const SILENCE_MS: f64 = 1500.0;
/// After the kill clients go on for so long.
const AFTER: Duration = Duration::from_secs(8);

/// The kills of one kind of machine.
#[derive(Debug, Clone, Serialize)]
pub struct Failover {
    /// Database in the machine.
    pub guest: Guest,
    /// What its clients did.
    pub load: Load,
    /// How it was protected.
    pub way: Way,
    /// No commits for so long, in milliseconds.
    pub outage_ms: Sample,
    /// Of that, without the time in which the standby waits for the active host.
    pub without_detection_ms: Sample,
    /// From the survivor's decision, which the zones know of, until the machine ran.
    pub takeover_ms: Sample,
    /// Commits a second on the survivor without a standby by those before the kill.
    pub after: Sample,
}

pub(super) async fn measure(
    options: &Options,
    report: &mut Report,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    for guest in &options.guests {
        let writes = options.subjects().into_iter();
        let mut writes = writes.filter(|it| it.guest == *guest && it.load != Load::Scan);
        let Some(subject) = writes.next() else {
            continue;
        };
        let all = guest.ways().contains(&Way::All);
        let ways = if all {
            &[Way::Memory, Way::All][..]
        } else {
            &[Way::Memory]
        };
        let dir = options.dir.join(format!("failover-{guest}"));
        let mut stage = Stage::set(options, subject, &dir, say).await?;
        for way in ways {
            let failover = kills(options, subject, *way, &mut stage, say).await?;
            report.failovers.push(failover);
        }
        let status = stage.status().await?;
        (report.accelerator, report.accelerator_reason) =
            (status.accelerator, status.accelerator_reason);
        drop(stage);
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

async fn kills(
    options: &Options,
    subject: Subject,
    way: Way,
    stage: &mut Stage,
    say: &impl Fn(&str),
) -> anyhow::Result<Failover> {
    let (mut outages, mut takeovers, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        stage.protect().await?;
        stage.pair.reload(&way.settings(options.epoch_ms)).await?;
        let (clock, run) = (Clock::start(), stage.next_run());
        let running = Running::start(subject, &stage.password, options.clients, run, clock)?;
        running.begun(options.clients).await?;
        let from = clock.now();
        tokio::time::sleep(Duration::from_secs(u64::from(options.seconds))).await;
        let dead = stage.active;
        let standby = stage.pair.status(1 - dead).await;
        let before = standby
            .context("the standby does not answer")?
            .stats
            .takeovers;
        let killed = clock.now();
        tokio::task::block_in_place(|| stage.pair.kill(dead))?;
        stage.active = 1 - dead;
        let survivor = stage.pair.wait_taken_over(stage.active, before).await?;
        tokio::time::sleep(AFTER).await;
        let end = clock.now();
        let history = running.stop().await?;
        let outage = history.outage(killed).context("nobody commits any more")?;
        let back = outage.first_after;
        outages.push(back.since(outage.last_before).as_secs_f64() * 1e3);
        takeovers.push(survivor.stats.takeover_ms);
        after.push(history.rate(back, end) / history.rate(from, killed).max(f64::MIN_POSITIVE));
        say(&format!(
            "kill {round} of {} with {way}: no commits for {:.0} ms; the machine ran {:.0} ms after the decision",
            subject.guest,
            outages.last().copied().unwrap_or_default(),
            survivor.stats.takeover_ms
        ));
    }
    Ok(Failover {
        guest: subject.guest,
        load: subject.load,
        way,
        without_detection_ms: Sample::of(outages.iter().map(|ms| ms - SILENCE_MS).collect()),
        outage_ms: Sample::of(outages),
        takeover_ms: Sample::of(takeovers),
        after: Sample::of(after),
    })
}
