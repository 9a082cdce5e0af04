//! The server is killed under load: how long nothing is committed, on a volume where another machine starts it, and on
//! a disk where it is started again at once (a cold restart that nobody has to notice or order, on a disk that survived).

use std::time::Duration;

use anyhow::Context;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::mysql::{Load, Work};
use serde::Serialize;

use super::side::{Side, System};
use super::{Options, parameters};
use crate::statistics::Sample;

/// All kills of one system.
#[derive(Debug, Clone, Serialize)]
pub struct Loss {
    /// System that was killed.
    pub system: System,
    /// From the last commit acknowledged before the kill to the first one after it, in milliseconds.
    pub outage_ms: Sample,
    /// The steps of a takeover, medians in milliseconds; empty on the disk.
    pub phases: Vec<(String, f64)>,
    /// Commits a second before the kill.
    pub tps_before: Sample,
    /// Commits the clients were told of.
    pub acknowledged: u64,
    /// Those of them that were missing at the end.
    pub lost: u64,
    /// True if the sums of all accounts agree, and nothing is there that nobody wrote.
    pub consistent: bool,
}

impl Loss {
    /// True if everything that was acknowledged was there.
    pub(super) fn lost_nothing(&self) -> bool {
        self.lost == 0 && self.consistent
    }
}

const CLIENTS: u16 = 8;
/// Of load after the server is back.
const AFTER: Duration = Duration::from_secs(3);

/// Kills each system in turn, after a load that its pool holds, so that all of it is in the log.
pub(super) async fn measure(options: &Options, say: &impl Fn(&str)) -> anyhow::Result<Vec<Loss>> {
    let parameters = parameters(options, 2.0);
    say(&format!(
        "losses: buffer pool {}, filling both",
        parameters[0].1
    ));
    let systems = [System::Disk, System::Understudy];
    let dir = options.dir.join("losses");
    let mut sides = Vec::new();
    for system in systems {
        let dir = dir.join(system.to_string());
        sides.push(Side::start(options, system, &dir, &parameters).await?);
    }
    let mut seen: [Vec<Kill>; 2] = Default::default();
    for round in 1..=options.kills {
        for (side, seen) in sides.iter_mut().zip(&mut seen) {
            seen.push(kill(options, side).await?);
        }
        let last: Vec<String> = seen
            .iter()
            .zip(systems)
            .filter_map(|(seen, system)| Some(format!("{system} {:.0} ms", seen.last()?.outage_ms)))
            .collect();
        say(&format!("kill {round}: no commits, {}", last.join(", ")));
    }
    let mut losses = Vec::new();
    for ((side, seen), system) in sides.iter().zip(&seen).zip(systems) {
        let verdict = side.verify(options.accounts).await?;
        losses.push(Loss {
            system,
            outage_ms: Sample::of(seen.iter().map(|kill| kill.outage_ms).collect()),
            phases: phases(seen),
            tps_before: Sample::of(seen.iter().map(|kill| kill.tps_before).collect()),
            acknowledged: verdict.acknowledged,
            lost: verdict.lost,
            consistent: verdict.holds() || verdict.lost > 0,
        });
    }
    sides.into_iter().for_each(Side::end);
    Ok(losses)
}

struct Kill {
    outage_ms: f64,
    tps_before: f64,
    phases: Vec<(String, f64)>,
}

async fn kill(options: &Options, side: &mut Side) -> anyhow::Result<Kill> {
    let clock = Clock::start();
    let plan = side.plan(Work::Transfers, CLIENTS, options.accounts);
    let load = Load::start(&side.servers(), &plan, clock);
    let before = Duration::from_secs(u64::from(options.before));
    tokio::time::sleep(before).await;
    let killed = clock.now();
    let at = side.lose().await?;
    tokio::time::sleep(AFTER).await;
    let history = load.stop().await?;
    side.remember(&history);
    let outage = history.outage(clock.at(at)).context("no commit after")?;
    let phases = side.phases().await?;
    side.settle().await;
    Ok(Kill {
        outage_ms: (outage.length().as_secs_f64() * 1000.0).round(),
        tps_before: history.rate(Offset(0), killed),
        phases,
    })
}

/// The median of each step.
fn phases(kills: &[Kill]) -> Vec<(String, f64)> {
    let names = kills.first().map(|kill| kill.phases.iter());
    let median = |name: &String| {
        let all = kills.iter().flat_map(|kill| &kill.phases);
        let values = all.filter(|(phase, _)| phase == name).map(|(_, ms)| *ms);
        Sample::of(values.collect()).median
    };
    let names = names.into_iter().flatten();
    names
        .map(|(name, _)| (name.clone(), median(name)))
        .collect()
}
