//! The four variants of the protocol at three distances (DAX, figure 6), with six copies as there.
//!
//! Invariant: all variants stand side by side and take turns in every round, so that a slow minute of
//! the machine hits all of them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use dax::storage::Protocol;
use serde::Serialize;
use store::Network;

use super::distances::{Distance, distances};
use super::site::Site;
use super::workload::Workload;
use super::{Options, SERVERS_PER_ZONE};
use crate::statistics::Sample;

/// One variant at one distance.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Which variant.
    pub protocol: Protocol,
    /// Transactions a second.
    pub tps: Sample,
}

/// All variants at one distance.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Distance between the sites.
    pub distance: String,
    /// Each variant, in the paper's order.
    pub cells: Vec<Cell>,
    /// Strong optimistic by Baseline 2, medians.
    pub strong_by_quorum: f64,
    /// Strong optimistic by basic optimistic, medians.
    pub strong_by_basic: f64,
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Row>> {
    let workload = Workload::prepare(dir, &options.bin, options.clients, options.scale)?;
    let mut sites = Vec::new();
    for protocol in Protocol::ALL {
        say(&format!(
            "{}: starting and filling a cluster",
            name(protocol)
        ));
        let site = Site::start(options, dir, protocol, SERVERS_PER_ZONE).await?;
        site.fill(options).await?;
        sites.push((protocol, site));
    }
    let mut rows = Vec::new();
    for distance in distances() {
        rows.push(measure(options, &workload, &mut sites, &distance, say).await?);
    }
    for (_, mut site) in sites {
        site.cluster.check_running()?;
        site.cluster.shutdown();
    }
    Ok(rows)
}

async fn measure(
    options: &Options,
    workload: &Workload,
    sites: &mut [(Protocol, Site)],
    distance: &Distance,
    say: &impl Fn(&str),
) -> anyhow::Result<Row> {
    let mut runs: Vec<Vec<f64>> = vec![Vec::new(); sites.len()];
    for round in 0..=options.rounds {
        for ((protocol, site), runs) in sites.iter_mut().zip(&mut runs) {
            let near = |n: &mut Network| *n = Network::default();
            site.cluster
                .change_network(|n| *n = distance.network.clone())?;
            // The servers look at the file every 200 ms.
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The first round only warms up: round trips are measured anew, caches fill.
            let seconds = if round == 0 { 3 } else { options.seconds };
            let server = site.server()?;
            let length = Duration::from_secs(seconds.into());
            let tps = workload.run(&server, length).await;
            let tps = tps.with_context(|| format!("{} with {}", name(*protocol), distance.name))?;
            if round > 0 {
                runs.push(tps);
            }
            // What waits for distant zones is over before the next one is measured.
            site.cluster.change_network(near)?;
        }
        if round > 0 {
            let last: Vec<String> = sites
                .iter()
                .zip(&runs)
                .filter_map(|((p, _), runs)| Some(format!("{} {:.0}", name(*p), runs.last()?)))
                .collect();
            say(&format!(
                "{}, round {round}: {}",
                distance.name,
                last.join(", ")
            ));
        }
    }
    let cells: Vec<Cell> = sites
        .iter()
        .zip(runs)
        .map(|((protocol, _), runs)| Cell {
            protocol: *protocol,
            tps: Sample::of(runs),
        })
        .collect();
    let ratio = |by: Protocol| {
        let median = |p| cells.iter().find(|c| c.protocol == p).map(|c| c.tps.median);
        let strong = median(Protocol::StrongOptimistic).unwrap_or_default();
        let ratio = strong / median(by).unwrap_or_default().max(f64::MIN_POSITIVE);
        (ratio * 100.0).round() / 100.0
    };
    Ok(Row {
        distance: distance.name.to_owned(),
        strong_by_quorum: ratio(Protocol::Quorum),
        strong_by_basic: ratio(Protocol::BasicOptimistic),
        cells,
    })
}

/// As the paper calls it.
pub(super) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::WriteAll => "Baseline 1",
        Protocol::Quorum => "Baseline 2",
        Protocol::BasicOptimistic => "basic optimistic",
        Protocol::StrongOptimistic => "strong optimistic",
    }
}
