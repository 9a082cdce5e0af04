//! The active's machine is lost under load: how long nobody commits, when throughput is back, what is gone.
//!
//! Invariant: what was acknowledged is known from the clients alone, and is compared with the rows that the
//! new active has.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::probe::{self, Probe};
use super::subscriber::{Subscribed, Subscriber};
use super::system::{DATABASE_CORE, OTHER_CORE, System};
use super::{Options, TIMEOUT};
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::{History, Outage};
use cluster::clients::load::{self, Load};
use cluster::clients::schema::any_writable;
use cluster::clients::session::connect;
use cluster::clients::verify::compare;
use cluster::process::pin;

/// The width of the timeline's slices.
const SLICE: Duration = Duration::from_millis(500);
/// Throughput is back when a second has this share of what there was before.
const BACK_SHARE: f64 = 0.9;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// The prober's time without an acknowledged commit, over the kill.
    pub downtime_ms: f64,
    /// The same of all clients under full load together.
    pub load_downtime_ms: f64,
    /// From the kill to the end of the first second with 90 % of the throughput before, if there was one.
    pub back_ms: Option<f64>,
    /// Commits a second of the load in the stretch before the kill.
    pub tps_before: f64,
    /// In the last five seconds.
    pub tps_after: f64,
    /// Commits that clients and prober were told of.
    pub acknowledged: u64,
    /// Those of them that are not there afterwards.
    pub lost: u64,
    /// Rows that nobody committed.
    pub unexpected: u64,
    /// Commits whose answer never came.
    pub unknown: u64,
    /// The load's commits in each half second.
    pub timeline: Vec<u32>,
    /// When the kill was, in seconds of the timeline.
    pub killed_at_s: f64,
    /// When the lost machine was given back, in seconds of the timeline, if the system has a standby.
    #[serde(default)]
    pub given_back_at_s: Option<f64>,
    /// From then on until the active could be lost again, if that came in time.
    #[serde(default)]
    pub protected_ms: Option<f64>,
    /// Results of a subscriber to the prober's rows, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<Subscribed>,
}

/// Loses it.
pub(super) async fn play(
    system: &mut dyn System,
    options: &Options,
    subscriber: Option<&Subscriber>,
) -> anyhow::Result<Loss> {
    system.wait_protected().await?;
    let servers = any_writable(&system.servers());
    let clock = Clock::start();
    let settings = |clients, rate| load::Options {
        clients,
        rate,
        scale: options.scale,
        retry: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
        connect_within: Duration::from_secs(1),
        ..load::Options::default()
    };
    let load = Load::start(servers.clone(), settings(options.loss_clients, None), clock);
    let prober = Load::of::<Probe>(servers, settings(1, Some(probe::RATE)), clock);
    tokio::time::sleep(options.before).await;
    if options.pinned {
        // What was the standby's machine becomes the database's own.
        system
            .successor()
            .into_iter()
            .try_for_each(|pid| pin(pid, DATABASE_CORE))?;
    }
    let death = system.lose_active().await?;
    let (struck, dead) = (clock.at(death.begin), clock.at(death.end));
    wait_commit(&load, dead).await?;
    wait_commit(&prober, dead).await?;
    tokio::time::sleep(options.after / 2).await;
    let given_back = system.give_back().await?.map(|pid| (pid, clock.now()));
    let protected = match given_back {
        Some((returned, _)) => protect_again(system, returned, options).await?,
        None => None,
    };
    tokio::time::sleep(options.after / 2).await;
    let end = clock.now();
    let (load, prober) = (load.stop().await, prober.stop().await);
    let mut loss = seen(&load, &prober, (struck, dead), end)?;
    loss.given_back_at_s = given_back.map(|(_, at)| at.seconds());
    loss.protected_ms = protected.map(|time| (time.as_secs_f64() * 1000.0).round());
    count_losses(system, &load, &prober, &mut loss).await?;
    if let Some(subscriber) = subscriber {
        loss.subscriber = Some(subscriber.seen(&system.servers()).await?);
    }
    Ok(loss)
}

/// Waits until the active could be lost again, now that the lost machine is back. Returns how long it took, or
/// nothing if it took too long.
async fn protect_again(
    system: &mut dyn System,
    returned: Pid,
    options: &Options,
) -> anyhow::Result<Option<Duration>> {
    let begin = Instant::now();
    if options.pinned {
        // Now this one is elsewhere.
        pin(returned, OTHER_CORE)?;
    }
    match system.wait_protected().await {
        Ok(()) => Ok(Some(begin.elapsed())),
        Err(error) => {
            tracing::warn!(%error, "the lost machine came back, and the system is not protected again");
            Ok(None)
        }
    }
}

/// Waits until somebody else than the dead has acknowledged a commit.
async fn wait_commit(load: &Load, dead: Offset) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while silence(&load.history(), dead).is_none() {
        ensure!(
            Instant::now() < deadline,
            "nobody accepts commits; last trouble: {:?}",
            load.trouble()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The time without acknowledged commits around a moment.
fn silence(history: &History, at: Offset) -> Option<Outage> {
    let first_after = history.commits().find(|commit| commit.ended > at)?.ended;
    let before = history.commits().rfind(|commit| commit.ended <= at);
    Some(Outage {
        last_before: before.map_or(Offset(0), |commit| commit.ended),
        first_after,
    })
}

fn seen(
    load: &History,
    prober: &History,
    (struck, dead): (Offset, Offset),
    end: Offset,
) -> anyhow::Result<Loss> {
    let downtime = |history: &History| {
        let silence = silence(history, dead).context("no commit after the kill")?;
        anyhow::Ok(silence.length().as_secs_f64() * 1000.0)
    };
    // The first second opens connections.
    let before = load.rate(Offset(1_000_000), struck);
    Ok(Loss {
        downtime_ms: downtime(prober)?.round(),
        load_downtime_ms: downtime(load)?.round(),
        back_ms: back(load, (struck, dead), end, before),
        tps_before: before,
        tps_after: load.rate(Offset(end.0 - 5_000_000), end),
        acknowledged: 0,
        lost: 0,
        unexpected: 0,
        unknown: 0,
        timeline: load.buckets(SLICE, end),
        killed_at_s: struck.seconds(),
        given_back_at_s: None,
        protected_ms: None,
        subscriber: None,
    })
}

/// From the kill to the end of the first second that has nearly the rate `before`, in milliseconds.
fn back(load: &History, (struck, dead): (Offset, Offset), end: Offset, before: f64) -> Option<f64> {
    const STEP: i64 = 100_000;
    const SECOND: i64 = 1_000_000;
    let mut from = silence(load, dead)?.first_after;
    while from.0 + SECOND <= end.0 {
        let to = Offset(from.0 + SECOND);
        if load.rate(from, to) >= BACK_SHARE * before {
            return Some(Offset(to.0 - struck.0).millis());
        }
        from = Offset(from.0 + STEP);
    }
    None
}

async fn count_losses(
    system: &dyn System,
    load: &History,
    prober: &History,
    loss: &mut Loss,
) -> anyhow::Result<()> {
    let writable = any_writable(&system.servers());
    let client = connect(&writable)
        .await
        .context("nobody accepts writes afterwards")?;
    for (history, table) in [(load, "understudy_ledger"), (prober, probe::TABLE)] {
        let comparison = compare(history, &probe::rows(&client, table).await?);
        loss.acknowledged += comparison.acknowledged;
        loss.unknown += comparison.unknown;
        loss.lost += comparison.lost.len() as u64;
        loss.unexpected += comparison.unexpected.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::clients::history::{Attempt, Outcome};

    #[test]
    fn throughput_is_back_after_the_first_good_second() {
        let commit = |n: i64, ms: i64| Attempt {
            client: 1,
            n,
            outcome: Outcome::Acknowledged,
            began: Offset(ms * 1000 - 500),
            ended: Offset(ms * 1000),
        };
        // 100 a second for two seconds, nothing for one, 50 a second for one, then 100 again.
        let fast = (0..200).map(|n| commit(n, n * 10));
        let slow = (0..50).map(|n| commit(1000 + n, 3000 + n * 20));
        let again = (0..300).map(|n| commit(2000 + n, 4000 + n * 10));
        let history = History::new(fast.chain(slow).chain(again).collect());
        let (killed, end) = ((Offset(1_900_000), Offset(2_000_000)), Offset(7_000_000));
        let length = silence(&history, killed.1).unwrap().length();
        assert_eq!(length, Duration::from_millis(1010));
        // The second from 3.8 s on has 10 slow and 80 fast ones.
        let back_ms = back(&history, killed, end, 100.0).unwrap();
        assert_eq!(back_ms, 2900.0);
        assert_eq!(back(&history, killed, end, 200.0), None);
    }
}
