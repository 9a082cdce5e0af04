//! Servers that are lost under load (DAX, figures 8 to 10): six copies in three zones, as the paper
//! has them, one of which is lost near the tenant, far from it, or with its whole zone.

use std::path::Path;
use std::time::Duration;

use dax::storage::Protocol;
use serde::Serialize;

use super::distances::regions;
use super::site::Site;
use super::variants::name;
use super::workload::Workload;
use super::{Options, SERVERS_PER_ZONE};

/// What happens to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outage {
    /// Figure 8: one of two servers in the tenant's zone dies, and comes back.
    NearServer,
    /// Figure 9: one of two servers in another zone dies, and comes back.
    FarServer,
    /// Figure 10: a whole zone is lost for good: here one without the tenant (losing the tenant's is
    /// a takeover).
    Zone,
}

impl Outage {
    /// All, as the paper orders them.
    pub const ALL: [Outage; 3] = [Outage::NearServer, Outage::FarServer, Outage::Zone];

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Outage::NearServer => "one server of the tenant's zone lost, and back",
            Outage::FarServer => "one server of another zone lost, and back",
            Outage::Zone => "a whole zone lost for good",
        }
    }

    /// Servers that die, counted from 1, zone by zone.
    fn victims(self) -> &'static [usize] {
        match self {
            Outage::NearServer => &[1],
            Outage::FarServer => &[3],
            Outage::Zone => &[3, 4],
        }
    }

    fn comes_back(self) -> bool {
        self != Outage::Zone
    }
}

/// Throughput second by second through one outage.
#[derive(Debug, Clone, Serialize)]
pub struct Timeline {
    /// What happened.
    pub outage: Outage,
    /// Under which variant.
    pub protocol: Protocol,
    /// Transactions in each second.
    pub tps: Vec<f64>,
    /// When the servers were killed.
    pub lost_at_s: u64,
    /// When they were started again, if they were.
    pub back_at_s: Option<u64>,
}

impl Timeline {
    /// The lowest of the means over three seconds, after the start.
    pub fn worst(&self) -> f64 {
        self.means().fold(f64::MAX, f64::min)
    }

    /// The highest of them.
    pub fn best(&self) -> f64 {
        self.means().fold(0.0, f64::max)
    }

    fn means(&self) -> impl Iterator<Item = f64> {
        // The first seconds open connections and plan statements.
        let settled = self.tps.get(2..).unwrap_or_default();
        settled.windows(3).map(|w| w.iter().sum::<f64>() / 3.0)
    }
}

/// Measures; `say` hears what is going on.
pub(super) async fn run(
    options: &Options,
    dir: &Path,
    say: &impl Fn(&str),
) -> anyhow::Result<Vec<Timeline>> {
    let workload = Workload::prepare(dir, &options.bin, options.clients, options.scale)?;
    let mut timelines = Vec::new();
    for protocol in [Protocol::Quorum, Protocol::StrongOptimistic] {
        say(&format!(
            "{}: starting and filling a cluster of six servers",
            name(protocol)
        ));
        let mut site = Site::start(options, dir, protocol, SERVERS_PER_ZONE).await?;
        site.fill(options).await?;
        site.cluster.change_network(|n| *n = regions().network)?;
        for outage in Outage::ALL {
            let timeline = watch(options, &workload, &mut site, outage, protocol).await?;
            say(&format!(
                "{}, {}: {:.0} to {:.0} tps",
                name(protocol),
                outage.describe(),
                timeline.worst(),
                timeline.best()
            ));
            timelines.push(timeline);
        }
        site.cluster.shutdown();
    }
    Ok(timelines)
}

async fn watch(
    options: &Options,
    workload: &Workload,
    site: &mut Site,
    outage: Outage,
    protocol: Protocol,
) -> anyhow::Result<Timeline> {
    let lost_at_s = u64::from(options.outage_seconds) / 3;
    let back_at_s = outage.comes_back().then_some(lost_at_s * 2);
    let server = site.server()?;
    let length = Duration::from_secs(options.outage_seconds.into());
    let watching = workload.watch(&server, length);
    let disturbing = async {
        tokio::time::sleep(Duration::from_secs(lost_at_s)).await;
        for victim in outage.victims() {
            site.cluster.kill_zone(*victim);
        }
        if back_at_s.is_some() {
            tokio::time::sleep(Duration::from_secs(lost_at_s)).await;
            for victim in outage.victims() {
                site.cluster.start_zone(*victim)?;
            }
        }
        anyhow::Ok(())
    };
    let (tps, disturbed) = tokio::join!(watching, disturbing);
    disturbed?;
    Ok(Timeline {
        outage,
        protocol,
        tps: tps?,
        lost_at_s,
        back_at_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_and_worst_are_means_of_three_seconds() {
        let timeline = Timeline {
            outage: Outage::Zone,
            protocol: Protocol::Quorum,
            tps: vec![0.0, 900.0, 30.0, 60.0, 90.0, 0.0, 0.0, 30.0],
            lost_at_s: 1,
            back_at_s: None,
        };
        assert_eq!((timeline.worst(), timeline.best()), (10.0, 60.0));
    }
}
